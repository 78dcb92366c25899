package link

import (
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"
)

// echo starts a server that sends back what it receives.
func echo(t *testing.T) string {
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

// newMesh returns a mesh in which this process is node a, and a connection from it to node b, an
// echo server.
func newMesh(t *testing.T) (*Mesh, net.Conn) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: the owner of a connection is known on Linux only")
	}
	m := NewMesh()
	t.Cleanup(m.Close)
	m.SetProcess("a", os.Getpid())
	address, err := m.Add("b", echo(t))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return m, conn
}

func write(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Fatalf("got %q, %v; want %q", got, err, want)
	}
}

// expectNothing waits a short time for unexpected bytes.
func expectNothing(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Fatalf("got %d bytes, %v; want nothing", n, err)
	}
}

func TestMesh_CutDelaysUntilHealed(t *testing.T) {
	for _, cut := range []direction{{"a", "b"}, {"b", "a"}} {
		m, conn := newMesh(t)
		write(t, conn, "one")
		expect(t, conn, "one")
		m.Set(cut.from, cut.to, Condition{Cut: true})
		write(t, conn, "two")
		expectNothing(t, conn)
		m.Heal()
		expect(t, conn, "two")
	}
}

func TestMesh_CutLeavesOtherDirections(t *testing.T) {
	m, conn := newMesh(t)
	m.Set("a", "c", Condition{Cut: true})
	m.Set("c", "b", Condition{Cut: true})
	write(t, conn, "one")
	expect(t, conn, "one")
}

func TestMesh_KeepsOrderUnderDelayAndLoss(t *testing.T) {
	m, conn := newMesh(t)
	m.Set("a", "b", Condition{Delay: 2 * time.Millisecond, Jitter: 2 * time.Millisecond, Loss: 0.05})
	want := ""
	for range 100 {
		write(t, conn, "0123456789")
		want += "0123456789"
	}
	expect(t, conn, want)
}

func TestMesh_ClosesUnknownConnection(t *testing.T) {
	m, _ := newMesh(t)
	m.SetProcess("a", 0)
	expectClosed(t, m)
}

func TestMesh_ClosesConnectionToStoppedNode(t *testing.T) {
	m, conn := newMesh(t)
	m.SetProcess("b", 1)
	write(t, conn, "one")
	expect(t, conn, "one")
	m.SetProcess("b", 0)
	expectClosed(t, m)
}

func expectClosed(t *testing.T, m *Mesh) {
	t.Helper()
	m.mu.Lock()
	address := m.listeners["b"].Addr().String()
	m.mu.Unlock()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("got %v; want EOF", err)
	}
}
