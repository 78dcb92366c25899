package clustertest

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// startEchoServer starts a server that sends back what it receives.
func startEchoServer(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return listener.Addr().String()
}

// newTestNetwork returns a network of three nodes, and the address at which node 0 reaches node 1.
func newTestNetwork(t *testing.T) (*network, string) {
	t.Helper()
	w, err := newNetwork(3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	for i := range 3 {
		w.attach(i, startEchoServer(t))
	}
	return w, w.routeFrom(0)(w.address(1))
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func write(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

func expectRead(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	_ = conn.SetReadDeadline(time.Now().Add(timeoutDefault))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Fatalf("got %q, %v; want %q", got, err, want)
	}
}

// expectNothing checks for a while that no byte arrives.
func expectNothing(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Fatalf("got %d bytes, %v; want nothing", n, err)
	}
}

func TestNetwork_BlockedTrafficResumes(t *testing.T) {
	w, address := newTestNetwork(t)
	for _, blocked := range []struct {
		name       string
		begin, end func()
		outsideToo bool
	}{
		{"cut", func() { w.cut(1, 0) }, w.heal, false},
		{"the sender paused", func() { w.pause(0, true) }, func() { w.pause(0, false) }, false},
		{"the receiver paused", func() { w.pause(1, true) }, func() { w.pause(1, false) }, true},
	} {
		t.Run(blocked.name, func(t *testing.T) {
			conn, client, other := dial(t, address), dial(t, w.address(1)), dial(t, w.address(2))
			write(t, conn, "one")
			expectRead(t, conn, "one")
			blocked.begin()
			write(t, conn, "two")
			expectNothing(t, conn)
			late := dial(t, address)
			write(t, late, "late")
			expectNothing(t, late)
			write(t, client, "client")
			if blocked.outsideToo {
				expectNothing(t, client)
			} else {
				expectRead(t, client, "client")
			}
			write(t, other, "other")
			expectRead(t, other, "other")
			blocked.end()
			expectRead(t, conn, "two")
			expectRead(t, late, "late")
			if blocked.outsideToo {
				expectRead(t, client, "client")
			}
		})
	}
}

func TestNetwork_DetachClosesConnections(t *testing.T) {
	w, address := newTestNetwork(t)
	for name, kill := range map[string]int{"that has opened it": 0, "that it was opened to": 1} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, address)
			write(t, conn, "one")
			expectRead(t, conn, "one")
			target := w.listenAddress(kill)
			w.detach(kill)
			for _, conn := range []net.Conn{conn, dial(t, address)} {
				_ = conn.SetReadDeadline(time.Now().Add(timeoutDefault))
				if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("got %v; want the end", err)
				}
			}
			w.attach(kill, target)
			conn = dial(t, address)
			write(t, conn, "two")
			expectRead(t, conn, "two")
		})
	}
}
