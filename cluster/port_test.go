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
		met, err := readPreamble(from)
		ours := bytes.HasPrefix(sent, []byte(preambleMagic+"r")) || bytes.HasPrefix(sent, []byte(preambleMagic+"c"))
		if ours != (err == nil) {
			t.Fatalf("%q: %v, %v", sent, met, err)
		}
		if ours && (byte(met.purpose) != sent[len(preambleMagic)] || from.Len() != len(sent)-len(preambleMagic)-1) {
			t.Errorf("%q: %v, %d bytes left", sent, met, from.Len())
		}
	})
}

func FuzzPurposeOf(f *testing.F) {
	f.Add("tenuto-raft/1")
	f.Add("h2")
	f.Fuzz(func(t *testing.T, protocol string) {
		if got, err := purposeOf(protocol); err == nil && protocols[got] != protocol {
			t.Errorf("%q: %q", protocol, got)
		}
	})
}

// A request is checked before anything is done with it, and what it has to do
// with is known, or it is refused.
func FuzzCheckRequest(f *testing.F) {
	for _, request := range []*clusterpb.Request{
		{Instance: "i", Call: &clusterpb.Request_Start{Start: &clusterpb.StartRequest{Name: "a", Send: &clusterpb.SendRequest{Name: "b"}}}},
		{Instance: "../i", Call: &clusterpb.Request_Signal{Signal: &clusterpb.SignalRequest{Kind: 99}}},
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

// What is too large, or no request at all, is answered with an error; the node and
// the connection go on.
func TestOversizedAndMalformedRequestsAreRefused(t *testing.T) {
	noGoroutinesLeft(t)
	nodes := startPeers(t, 3)
	ctx := testContext(t)
	leader := leaderOf(t, nodes)
	leads := func(request *clusterpb.Request) (leader *Node) {
		eventually(t, "a node leads", func() bool {
			i := slices.IndexFunc(nodes, func(n *Node) bool { return n.groupFor(request).leads() })
			leader = nodes[max(i, 0)]
			return i >= 0
		})
		return leader
	}
	pool := newCallPool(&dialer{links: newLinks(nil)})
	defer pool.close()
	ask := func(request *clusterpb.Request) *clusterpb.Failure {
		request.Protocol = protocolVersion
		for { // a leader that has just lost the lead cannot be definite
			failure := pool.ask(ctx, leads(request).config.Listen, request).GetFailure()
			if failure == nil || !repeatable(failure) || ctx.Err() != nil {
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
		"an unknown signal":     {Instance: "i", Call: &clusterpb.Request_Signal{Signal: &clusterpb.SignalRequest{Kind: 99}}},
		"a list without end":    {Call: &clusterpb.Request_List{List: &clusterpb.ListRequest{Limit: 1 << 31}}},
		"a purge of too many":   {Call: &clusterpb.Request_Purge{Purge: &clusterpb.PurgeRequest{Instances: make([]string, 1001)}}},
		"nothing":               {},
	} {
		failure := ask(request)
		if failure == nil || !failure.NotExecuted || repeatable(failure) {
			t.Errorf("%s: %v; want a definite refusal", name, failure)
		}
	}
	garbage := append([]byte(preambleMagic), byte(forCalls))
	for i := range 1 << 16 {
		garbage = append(garbage, byte(i*i>>3))
	}
	conn, err := net.Dial("tcp", leader.config.Listen)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = conn.Write(garbage) // may be cut off
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	for buffer := make([]byte, 1024); err == nil; {
		_, err = conn.Read(buffer)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		t.Error("garbage keeps its connection")
	}
	for i, node := range nodes {
		tell(ctx, t, node, fmt.Sprintf("after-%d", i))
	}
}

func TestConnectionsOfAKindAreCapped(t *testing.T) {
	all := newLinks(nil)
	name := "x"
	open := func(purpose purpose, role Role) (*link, error) {
		here, there := net.Pipe()
		t.Cleanup(func() { _ = there.Close() })
		l := &link{Conn: here, raw: here, accepted: true, meeting: meeting{purpose: purpose, peer: Principal{role, name}}}
		return l, all.add(l)
	}
	var last *link
	for i := range clientLinksMax {
		if i > 0 && i%clientLinksShare == 0 {
			if _, err := open(forCalls, RoleClient); err == nil {
				t.Errorf("client %s has more than its share", name)
			}
			name += "x"
		}
		l, err := open(forCalls, RoleClient)
		if err != nil {
			t.Fatal(err)
		}
		last = l
	}
	name = "another"
	if _, err := open(forCalls, RoleClient); err == nil {
		t.Error("one more client was let in")
	}
	if _, err := open(forCalls, RoleNode); err != nil {
		t.Errorf("clients keep a node out: %v", err)
	}
	if _, err := open(forRaft, RoleNode); err != nil {
		t.Errorf("clients keep Raft out: %v", err)
	}
	if err := errors.Join(last.Close(), last.Close()); err != nil {
		t.Error(err)
	}
	if _, err := open(forCalls, RoleClient); err != nil {
		t.Errorf("in the place of one that was closed: %v", err)
	}
	if _, err := open(forCalls, RoleClient); err == nil {
		t.Error("a place was given away twice")
	}
}

// A node that is started again reads its journal first. Members that come meanwhile are
// refused, but not as strangers.
func TestMembersThatComeBeforeTheNodeIsOpenAreNotLoggedAsStrangers(t *testing.T) {
	noGoroutinesLeft(t)
	ours, log, opened := newAuthority(t), new(logbook), make(chan struct{})
	ring, err := newKeyring(ours.keys(ours.node("n1")), "tenuto", func(Principal) error { return nil }, quiet())
	if err != nil {
		t.Fatal(err)
	}
	members := func(id string) bool { return id == "n2" }
	port, err := listen("127.0.0.1:0", &dialer{ring: ring, links: newLinks(members)}, opened, log.logger())
	if err != nil {
		t.Fatal(err)
	}
	defer port.close()
	isLetIn := func(id string) bool {
		conn, err := overTLS(ours.node(id), forRaft)(port.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		var answer [1]byte
		if _, err := io.ReadFull(conn, answer[:]); err != nil {
			t.Fatalf("%s hears nothing: %v", id, err) // least of all that its certificate is bad
		}
		return answer[0] == admitted
	}
	if isLetIn("n2") || isLetIn("n3") {
		t.Error("let in before it is known who is a member")
	}
	close(opened)
	if !isLetIn("n2") || isLetIn("n3") {
		t.Error("the member is kept out, or a stranger let in")
	}
	port.close() // waits for what is still to be logged
	if all, strangers := log.lines("connection refused"), log.lines("n3 is no member"); all != 1 || strangers != 1 {
		t.Errorf("%d lines of refusals, %d of the stranger; want one:\n%s", all, strangers, log.text.String())
	}
}

// Who is not let in hears why: that the node has just begun to start, or that one of the two
// speaks TLS and the other does not. No good certificate is called bad.
func TestWhoIsNotLetInHearsWhy(t *testing.T) {
	noGoroutinesLeft(t)
	ours, log := newAuthority(t), new(logbook)
	dialerOf := func(id string, secured bool) *dialer {
		d := &dialer{links: newLinks(func(string) bool { return true }), nodeAt: func(string) string { return "" }}
		if secured {
			ring, err := newKeyring(ours.keys(ours.node(id)), "tenuto", func(Principal) error { return nil }, quiet())
			if err != nil {
				t.Fatal(err)
			}
			d.ring = ring
		}
		return d
	}
	ports := make(map[bool]*port)
	for _, secured := range []bool{false, true} {
		port, err := listen("127.0.0.1:0", dialerOf("n1", secured), make(chan struct{}), log.logger())
		if err != nil {
			t.Fatal(err)
		}
		defer port.close()
		ports[secured] = port
	}
	for _, c := range []struct {
		from, to     bool // with TLS
		heard, noted string
	}{
		{true, true, "refused: " + errUnopened.Error(), ""},
		{false, true, "TLS is required", "TLS is required"},
		{true, false, "speaks without TLS", "opened with TLS, which this node does not speak"},
	} {
		conn, err := dialerOf("n2", c.from).dial(testContext(t), ports[c.to].listener.Addr().String(), forRaft)
		if err == nil {
			_ = conn.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.heard) || strings.Contains(err.Error(), "certificate") {
			t.Errorf("TLS %t to TLS %t: %v; want %q", c.from, c.to, err, c.heard)
		}
		if c.noted != "" {
			eventually(t, "it is logged: "+c.noted, func() bool { return log.lines(c.noted) == 1 })
		}
	}
}
