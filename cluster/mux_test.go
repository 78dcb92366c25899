package cluster

import (
	"bytes"
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

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

func FuzzReadPreamble(f *testing.F) {
	f.Add([]byte(preambleMagic + "r"))
	f.Add([]byte(preambleMagic + "c and more"))
	f.Add([]byte("\x16\x03\x01\x02\x00\x01"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		from := bytes.NewReader(sent)
		found, err := readPreamble(from)
		trusted := bytes.HasPrefix(sent, []byte(preambleMagic+"r")) || bytes.HasPrefix(sent, []byte(preambleMagic+"c"))
		if trusted != (err == nil) {
			t.Fatalf("%q: %v, %v", sent, found, err)
		}
		if trusted && (byte(found.purpose) != sent[len(preambleMagic)] || from.Len() != len(sent)-len(preambleMagic)-1) {
			t.Errorf("%q: %v, %d bytes left", sent, found, from.Len())
		}
	})
}

func FuzzPurposeOf(f *testing.F) {
	f.Add("tenuto-raft/1")
	f.Add("h2")
	f.Fuzz(func(t *testing.T, protocol string) {
		if got, err := purposeOf(protocol); err == nil && alpnNames[got] != protocol {
			t.Errorf("%q: %q", protocol, got)
		}
	})
}

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
		err := checkRequest(request)
		if namesInstance(request) && err == nil && checkID(request.Instance) != nil {
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
	pool := newCallPool(&dialer{links: newLinks(nil)})
	defer pool.close()
	ask := func(request *clusterpb.Request) *clusterpb.Failure {
		request.Protocol = protocolVersion
		for { // a former leader cannot give a definite answer
			failure := pool.ask(ctx, leads(request).config.Listen, request).GetFailure()
			if failure == nil || !isRetryable(failure) || ctx.Err() != nil {
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
		"a long request ID":     send("i", "e", 129),
		"more than is taken":    send("i", "e", requestBytesMax+1),
		"an unknown signal":     {Instance: "i", Call: &clusterpb.Request_Control{Control: &clusterpb.ControlRequest{Kind: 99}}},
		"a list without end":    {Call: &clusterpb.Request_List{List: &clusterpb.ListRequest{Limit: 1 << 31}}},
		"a purge of too many":   {Call: &clusterpb.Request_Purge{Purge: &clusterpb.PurgeRequest{Instances: make([]string, 1001)}}},
		"nothing":               {},
	} {
		failure := ask(request)
		if failure == nil || !failure.NotExecuted || isRetryable(failure) {
			t.Errorf("%s: %v; want a definite refusal", name, failure)
		}
	}
	garbage := append([]byte(preambleMagic), byte(purposeCalls))
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

func TestMux_CapsConnectionsPerPurpose(t *testing.T) {
	all := newLinks(nil)
	name := "x"
	open := func(purpose purpose, role PrincipalKind) (*link, error) {
		here, there := net.Pipe()
		t.Cleanup(func() { _ = there.Close() })
		l := &link{Conn: here, raw: here, accepted: true, handshakeResult: handshakeResult{purpose: purpose, peer: Principal{role, name}}}
		return l, all.add(l)
	}
	var last *link
	for i := range clientLinksMax {
		if i > 0 && i%linksPerClientMax == 0 {
			if _, err := open(purposeCalls, PrincipalClient); err == nil {
				t.Errorf("client %s has more than its share", name)
			}
			name += "x"
		}
		l, err := open(purposeCalls, PrincipalClient)
		if err != nil {
			t.Fatal(err)
		}
		last = l
	}
	name = "another"
	if _, err := open(purposeCalls, PrincipalClient); err == nil {
		t.Error("one more client was let in")
	}
	if _, err := open(purposeCalls, PrincipalNode); err != nil {
		t.Errorf("clients keep a node out: %v", err)
	}
	if _, err := open(purposeRaft, PrincipalNode); err != nil {
		t.Errorf("clients keep Raft out: %v", err)
	}
	if err := errors.Join(last.Close(), last.Close()); err != nil {
		t.Error(err)
	}
	if _, err := open(purposeCalls, PrincipalClient); err != nil {
		t.Errorf("in place of a closed connection: %v", err)
	}
	if _, err := open(purposeCalls, PrincipalClient); err == nil {
		t.Error("a slot was used twice")
	}
}

// A restarted node reads its journal first. Members that connect meanwhile are rejected, but not
// logged as strangers.
func TestMux_EarlyMembersAreNotLogged(t *testing.T) {
	checkGoroutineLeaks(t)
	trusted, log, opened := newAuthority(t), new(logRecorder), make(chan struct{})
	tlsSource, err := newTLSSource(trusted.keys(trusted.node("n1")), "tenuto", func(Principal) error { return nil }, testLogger())
	if err != nil {
		t.Fatal(err)
	}
	members := func(id string) bool { return id == "n2" }
	mux, err := listen("127.0.0.1:0", &dialer{tlsSource: tlsSource, links: newLinks(members)}, opened, log.logger())
	if err != nil {
		t.Fatal(err)
	}
	defer mux.close()
	isAdmitted := func(id string) bool {
		conn, err := attackOverTLS(trusted.node(id), purposeRaft)(mux.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		var answer [1]byte
		if _, err := io.ReadFull(conn, answer[:]); err != nil {
			t.Fatalf("%s gets no answer: %v", id, err)
		}
		return answer[0] == handshakeAdmitted
	}
	if isAdmitted("n2") || isAdmitted("n3") {
		t.Error("accepted before the members are known")
	}
	close(opened)
	if !isAdmitted("n2") || isAdmitted("n3") {
		t.Error("the member is rejected, or a stranger accepted")
	}
	mux.close() // waits for pending log lines
	if all, unknownMembers := log.countLines("connection refused"), log.countLines("n3 opened a Raft connection but is not a member"); all != 1 || unknownMembers != 1 {
		t.Errorf("%d lines of refusals, %d of the stranger; want one:\n%s", all, unknownMembers, log.text.String())
	}
}

// A rejected peer gets the reason: the node is starting, or only one of the two sides uses TLS. No
// valid certificate is called bad.
func TestMux_RejectionSaysWhy(t *testing.T) {
	checkGoroutineLeaks(t)
	trusted, log := newAuthority(t), new(logRecorder)
	dialerOf := func(id string, secured bool) *dialer {
		d := &dialer{links: newLinks(func(string) bool { return true }), nodeAt: func(string) string { return "" }}
		if secured {
			tlsSource, err := newTLSSource(trusted.keys(trusted.node(id)), "tenuto", func(Principal) error { return nil }, testLogger())
			if err != nil {
				t.Fatal(err)
			}
			d.tlsSource = tlsSource
		}
		return d
	}
	ports := make(map[bool]*connMux)
	for _, secured := range []bool{false, true} {
		mux, err := listen("127.0.0.1:0", dialerOf("n1", secured), make(chan struct{}), log.logger())
		if err != nil {
			t.Fatal(err)
		}
		defer mux.close()
		ports[secured] = mux
	}
	for _, c := range []struct {
		from, to    bool // with TLS
		hint, noted string
	}{
		{true, true, "refused: " + errNotReady.Error(), ""},
		{false, true, "requires TLS", "requires TLS"},
		{true, false, "does not use TLS", "uses TLS, which this node does not have"},
	} {
		conn, err := dialerOf("n2", c.from).dial(testContext(t), ports[c.to].listener.Addr().String(), purposeRaft)
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
