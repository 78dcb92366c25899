package transport

import (
	"errors"
	"net"
	"testing"
	"time"
)

func TestMux_CapsConnectionsPerPurpose(t *testing.T) {
	all := NewLinks(nil, 1)
	name := "x"
	open := func(purpose Purpose, role Kind) (*Link, error) {
		here, there := net.Pipe()
		t.Cleanup(func() { _ = there.Close() })
		l := &Link{Conn: here, raw: here, accepted: true, handshakeResult: handshakeResult{purpose: purpose, peer: Principal{role, name}}}
		return l, all.add(l)
	}
	var last *Link
	for i := range clientLinksMax {
		if i > 0 && i%linksPerClientMax == 0 {
			if _, err := open(Calls, KindClient); err == nil {
				t.Errorf("client %s has more than its share", name)
			}
			name += "x"
		}
		l, err := open(Calls, KindClient)
		if err != nil {
			t.Fatal(err)
		}
		last = l
	}
	name = "another"
	if _, err := open(Calls, KindClient); err == nil {
		t.Error("one more client was let in")
	}
	if _, err := open(Calls, KindNode); err != nil {
		t.Errorf("clients keep a node out: %v", err)
	}
	if _, err := open(Raft, KindNode); err != nil {
		t.Errorf("clients keep Raft out: %v", err)
	}
	if err := errors.Join(last.Close(), last.Close()); err != nil {
		t.Error(err)
	}
	if _, err := open(Calls, KindClient); err != nil {
		t.Errorf("in place of a closed connection: %v", err)
	}
	if _, err := open(Calls, KindClient); err == nil {
		t.Error("a slot was used twice")
	}
}

func TestTLS_ClosesConnectionsNoLongerTrusted(t *testing.T) {
	now := time.Now()
	members := map[string]bool{"n1": true}
	all := NewLinks(func(id string) bool { return members[id] }, 1)
	cases := map[string]struct {
		link   *Link
		closed bool
	}{
		"young":                                 {&Link{handshakeResult: handshakeResult{Raft, Principal{KindNode, "n1"}, now.Add(time.Hour)}}, false},
		"expired":                               {&Link{handshakeResult: handshakeResult{Raft, Principal{KindNode, "n1"}, now.Add(-time.Second)}}, true},
		"calls of a removed node":               {&Link{accepted: true, handshakeResult: handshakeResult{Calls, Principal{KindNode, "n2"}, now.Add(time.Hour)}}, true},
		"calls to a node that is not known yet": {&Link{handshakeResult: handshakeResult{Calls, Principal{KindNode, "n2"}, now.Add(time.Hour)}}, false},
		"of a removed node":                     {&Link{handshakeResult: handshakeResult{Raft, Principal{KindNode, "n2"}, now.Add(time.Hour)}}, true},
		"calls of a client":                     {&Link{handshakeResult: handshakeResult{Calls, Principal{KindClient, "n2"}, now.Add(time.Hour)}}, false},
		"of an expired client":                  {&Link{handshakeResult: handshakeResult{Calls, Principal{KindClient, "n2"}, now.Add(-time.Second)}}, true},
		"without a certificate":                 {&Link{handshakeResult: handshakeResult{purpose: Calls, peer: Principal{Kind: KindLocal}}}, false},
	}
	for name, c := range cases {
		here, there := net.Pipe()
		defer there.Close()
		c.link.Conn, c.link.raw = here, here
		if err := all.add(c.link); err != nil {
			t.Fatal(err)
		}
		all.Sweep(now)
		if got := here.SetDeadline(time.Time{}) != nil; got != c.closed {
			t.Errorf("%s: closed is %v; want %v", name, got, c.closed)
		}
	}
	all.Sweep(now.Add(AgeMax + time.Minute))
	if cases["young"].link.raw.SetDeadline(time.Time{}) == nil {
		t.Error("one that was young once is still open")
	}
}

func TestDialer_NoPlaintextToOtherMachines(t *testing.T) {
	if isLoopback(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}) || isLoopback(&net.UnixAddr{}) || !isLoopback(&net.TCPAddr{IP: net.IPv6loopback}) {
		t.Error("loopback is mistaken")
	}
}
