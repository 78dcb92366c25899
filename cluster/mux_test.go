package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// An invalid request is rejected before anything is done with it, and its target must be known.
func FuzzCheckRequest(f *testing.F) {
	for _, request := range []*clusterpb.Request{
		{Instance: "i", Call: &clusterpb.Request_Start{Start: &clusterpb.StartRequest{Name: "a", Send: &clusterpb.SendRequest{Name: "b"}}}},
		{Instance: "../i", Call: &clusterpb.Request_Control{Control: &clusterpb.ControlRequest{Kind: 99}}},
		{Call: &clusterpb.Request_List{List: &clusterpb.ListRequest{States: []string{"running"}}}},
		{Call: &clusterpb.Request_Purge{Purge: &clusterpb.PurgeRequest{Instances: []string{"i"}}}},
	} {
		encoded, err := proto.Marshal(request)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(encoded)
	}
	f.Fuzz(func(t *testing.T, encoded []byte) {
		request := new(clusterpb.Request)
		if proto.Unmarshal(encoded, request) != nil {
			return
		}
		err := checkRequest(request, replay.PayloadMax)
		if kindOf(request).ofInstance && err == nil && checkID(request.Instance) != nil {
			t.Errorf("%v was let through", request)
		}
	})
}

// A request that is too large or malformed is answered with an error; the node and the connection
// continue.
func TestCallServer_RejectsBadRequests(t *testing.T) {
	checkGoroutineLeaks(t)
	nodes := startPeers(t, 3)
	ctx := testContext(t)
	leader := leaderOf(t, nodes)
	leads := func(request *clusterpb.Request) (leader *Node) {
		eventually(t, "a node leads", func() bool {
			i := slices.IndexFunc(nodes, func(n *Node) bool { return n.partitionFor(request).isLeader() })
			leader = nodes[max(i, 0)]
			return i >= 0
		})
		return leader
	}
	pool := newCallPool(&transport.Dialer{Links: transport.NewLinks(nil, 1)})
	defer pool.Close()
	ask := func(request *clusterpb.Request) *clusterpb.Failure {
		request.Protocol = protocolVersion
		for { // a former leader cannot give a definite answer
			failure := pool.ask(ctx, leads(request).config.Listen, request).GetFailure()
			if failure == nil || !wire.IsRetryable(failure) || ctx.Err() != nil {
				return failure
			}
		}
	}
	send := func(id, name string, data int) *clusterpb.Request {
		return &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Send{Send: &clusterpb.SendRequest{Name: name, RequestId: strings.Repeat("x", data)}}}
	}
	for name, request := range map[string]*clusterpb.Request{
		"a path for an ID":      send("../../etc/passwd", "e", 1),
		"an ID with a line end": send("a\nb", "e", 1),
		"an ID with markup":     send("<script>", "e", 1),
		"an ID with NUL":        send("a\x00", "e", 1),
		"a long ID":             send(strings.Repeat("x", 1<<20), "e", 1),
		"no name":               send("i", "", 1),
		"a long request ID":     send("i", "e", 257),
		"more than is taken":    send("i", "e", transport.RequestBytesMax+1),
		"an unknown signal":     {Instance: "i", Call: &clusterpb.Request_Control{Control: &clusterpb.ControlRequest{Kind: 99}}},
		"a list without end":    {Call: &clusterpb.Request_List{List: &clusterpb.ListRequest{Limit: 1 << 31}}},
		"a purge of too many":   {Call: &clusterpb.Request_Purge{Purge: &clusterpb.PurgeRequest{Instances: make([]string, 1001)}}},
		"nothing":               {},
	} {
		failure := ask(request)
		if failure == nil || !failure.NotExecuted || wire.IsRetryable(failure) {
			t.Errorf("%s: %v; want a definite rejection", name, failure)
		}
	}
	garbage := append([]byte(transport.PreambleMagic), byte(transport.Calls))
	for i := range 1 << 16 {
		garbage = append(garbage, byte(i*i>>3))
	}
	conn, err := net.Dial("tcp", leader.config.Listen)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = conn.Write(garbage) // may be cut off
	_ = conn.SetReadDeadline(time.Now().Add(testTimeout))
	for buffer := make([]byte, 1024); err == nil; {
		_, err = conn.Read(buffer)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		t.Error("garbage keeps its connection")
	}
	for i, node := range nodes {
		callThrough(ctx, t, node, fmt.Sprintf("after-%d", i))
	}
}

// A restarted node reads its journal first. Members that connect meanwhile are rejected, but not
// logged as strangers.
func TestMux_EarlyMembersAreNotLogged(t *testing.T) {
	checkGoroutineLeaks(t)
	trusted, log, opened := newAuthority(t), new(logRecorder), make(chan struct{})
	tlsSource, err := newTLSSource(trusted.keys(trusted.Node("n1")), "tenuto", func(Principal) error { return nil }, testLogger())
	if err != nil {
		t.Fatal(err)
	}
	members := func(id string) bool { return id == "n2" }
	mux, err := transport.Listen("127.0.0.1:0", &transport.Dialer{TLSSource: tlsSource, Links: transport.NewLinks(members, 1)}, opened, log.logger())
	if err != nil {
		t.Fatal(err)
	}
	defer mux.Close()
	isAdmitted := func(id string) bool {
		conn, err := attackOverTLS(trusted.Node(id), transport.Raft)(mux.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		var answer [1]byte
		if _, err := io.ReadFull(conn, answer[:]); err != nil {
			t.Fatalf("%s gets no answer: %v", id, err)
		}
		return answer[0] == transport.Admitted
	}
	if isAdmitted("n2") || isAdmitted("n3") {
		t.Error("accepted before the members are known")
	}
	close(opened)
	if !isAdmitted("n2") || isAdmitted("n3") {
		t.Error("the member is rejected, or a stranger accepted")
	}
	mux.Close() // waits for pending log lines
	if all, unknownMembers := log.countLines("incoming connection rejected"), log.countLines("n3 opened a Raft connection but is not a member"); all != 1 || unknownMembers != 1 {
		t.Errorf("%d lines of rejections, %d of the stranger; want one:\n%s", all, unknownMembers, log.all())
	}
}

// A rejected peer gets the reason: the node is starting, or only one of the two sides uses TLS. No
// valid certificate is called bad.
func TestMux_RejectionSaysWhy(t *testing.T) {
	checkGoroutineLeaks(t)
	trusted, log := newAuthority(t), new(logRecorder)
	dialerOf := func(id string, secured bool) *transport.Dialer {
		d := &transport.Dialer{Links: transport.NewLinks(func(string) bool { return true }, 1), NodeAt: func(string) string { return "" }}
		if secured {
			tlsSource, err := newTLSSource(trusted.keys(trusted.Node(id)), "tenuto", func(Principal) error { return nil }, testLogger())
			if err != nil {
				t.Fatal(err)
			}
			d.TLSSource = tlsSource
		}
		return d
	}
	ports := make(map[bool]*transport.Mux)
	for _, secured := range []bool{false, true} {
		mux, err := transport.Listen("127.0.0.1:0", dialerOf("n1", secured), make(chan struct{}), log.logger())
		if err != nil {
			t.Fatal(err)
		}
		defer mux.Close()
		ports[secured] = mux
	}
	for _, c := range []struct {
		from, to    bool // with TLS
		hint, noted string
	}{
		{true, true, "rejected: the node is starting and does not know its members yet", ""},
		{false, true, "requires TLS", "requires TLS"},
		{true, false, "does not use TLS", "uses TLS, which this node does not have"},
	} {
		conn, err := dialerOf("n2", c.from).Dial(testContext(t), ports[c.to].Addr().String(), transport.Raft)
		if err == nil {
			_ = conn.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.hint) || strings.Contains(err.Error(), "certificate") {
			t.Errorf("TLS %t to TLS %t: %v; want %q", c.from, c.to, err, c.hint)
		}
		if c.noted != "" {
			eventually(t, "it is logged: "+c.noted, func() bool { return log.countLines(c.noted) == 1 })
		}
	}
}
