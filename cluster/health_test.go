package cluster

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

func probeHealth(t *testing.T, node *Node, path string) (code int, body map[string]any) {
	t.Helper()
	recorder := httptest.NewRecorder()
	node.HealthHandler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, path, nil))
	if err := json.Unmarshal(recorder.Body.Bytes(), &body); err != nil {
		t.Fatalf("body of %s: %v: %s", path, err, recorder.Body)
	}
	return recorder.Code, body
}

func TestHealth_SingleNodeReadyUntilStop(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	if err := node.Health().Ready(); err != nil {
		t.Fatal(err)
	}
	code, body := probeHealth(t, node, "/readyz")
	if code != http.StatusOK || body["ok"] != true || body["role"] != "leader" || body["leader"] != node.ID() {
		t.Errorf("ready: got %d, %v", code, body)
	}
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	code, body = probeHealth(t, node, "/readyz")
	if code != http.StatusServiceUnavailable || body["reason"] != "tenuto: the node is stopping" || body["draining"] != true {
		t.Errorf("ready after Close: got %d, %v", code, body)
	}
	if code, body := probeHealth(t, node, "/healthz"); code != http.StatusOK {
		t.Errorf("a node that has stopped is not a broken one: got %d, %v", code, body)
	}
}

func TestHealth_FailedNodeIsNotAliveHidesReason(t *testing.T) {
	node := startNode(t, Config{InMemory: true})
	node.partitions[0].journal.Fail(errors.New("entry of order-17 does not check"))
	health := node.Health()
	if !errors.Is(health.Live(), ErrNodeFailed) || !errors.Is(health.Ready(), ErrNodeFailed) || health.Err == nil {
		t.Errorf("got %+v", health)
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		recorder := httptest.NewRecorder()
		node.HealthHandler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, path, nil))
		if recorder.Code != http.StatusServiceUnavailable || strings.Contains(recorder.Body.String(), "order-17") {
			t.Errorf("%s: got %d, %s", path, recorder.Code, recorder.Body)
		}
	}
}

func TestHealth_FollowerReadyOnlyWithLeader(t *testing.T) {
	peers := loopbackPeers(t, 2)
	var nodes []*Node
	for i := range peers {
		nodes = append(nodes, startNode(t, peerConfig(t, peers, i, definitions()...)))
	}
	for _, node := range nodes {
		eventually(t, "every node is ready", func() bool { return node.Health().Ready() == nil })
	}
	var leader, follower *Node
	eventually(t, "one node leads and the other follows it", func() bool {
		leader = leaderOf(t, nodes)
		follower = nodesExcept(nodes, leader)[0]
		health := follower.Health()
		return health.Role == RoleFollower && health.Leader == leader.ID() && health.Ready() == nil
	})
	if err := leader.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other has no leader", func() bool { return errors.Is(follower.Health().Ready(), ErrNoLeader) })
	if err := follower.Health().Live(); err != nil {
		t.Errorf("a node without a leader is alive: got %v", err)
	}
}

func TestHealth_ReadinessNamesMissing(t *testing.T) {
	good := Health{NodeID: "n1", PartitionHealth: PartitionHealth{Role: RoleFollower, Leader: "n2"}}
	for want, change := range map[error]func(*Health){
		nil:                    func(*Health) {},
		ErrNodeFailed:          func(h *Health) { h.Failed, h.Draining = true, true },
		replay.ErrNodeStopping: func(h *Health) { h.Draining = true },
		ErrNoMembership:        func(h *Health) { h.Role = RoleNone },
		ErrDiskHangs:           func(h *Health) { h.DiskHangs = 1 },
		ErrNoLeader:            func(h *Health) { h.SinceContact = readyContactMax + time.Nanosecond },
		ErrDiskFull:            func(h *Health) { h.DiskFull = true },
		ErrBehind:              func(h *Health) { h.Behind = readyBehindMax + 1 },
	} {
		h := good
		change(&h)
		if got := h.Ready(); !errors.Is(got, want) {
			t.Errorf("%+v: got %v, want %v", h, got, want)
		}
	}
	for _, lag := range []time.Duration{-1, readyLagMax + 1} {
		h := good
		if h.Lag = lag; !errors.Is(h.Ready(), ErrBehind) {
			t.Errorf("a lag of %v: got %v", lag, h.Ready())
		}
	}
}

// Elected, the node does not lead before its epoch is committed.
func TestHealth_JustElectedNodeKnowsNoLeader(t *testing.T) {
	node := startNewestProtocol(t, Config{})
	pa := node.partitionOf("")
	serving := pa.actorPartition.Swap(nil)
	elected := node.Health()
	pa.actorPartition.Store(serving)
	if elected.Leader != "" || !errors.Is(elected.Ready(), ErrNoLeader) {
		t.Errorf("%+v: %v", elected.PartitionHealth, elected.Ready())
	}
	if h := node.Health(); h.Leader != h.NodeID || h.Ready() != nil {
		t.Errorf("%+v: %v", h.PartitionHealth, h.Ready())
	}
}
