package cluster

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
)

func TestUserTimeout_EndsUnacknowledgedConnections(t *testing.T) {
	fleet := newTestCluster(t, 3)
	for _, n := range fleet.all() { // to the leader and back
		if _, err := n.Client().Members(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	seen := make(map[bool]int) // by whether they were accepted
	for _, n := range fleet.all() {
		for _, l := range n.dialer.Links.All() {
			got, err := userTimeout(l.Raw())
			if errors.Is(err, net.ErrClosed) {
				continue
			}
			seen[l.IsAccepted()]++
			if err != nil || got != int(transport.UnackedTimeMax.Milliseconds()) {
				t.Errorf("a connection (accepted: %v) is closed after %d ms, %v", l.IsAccepted(), got, err)
			}
		}
	}
	if seen[true] == 0 || seen[false] == 0 {
		t.Errorf("connections by whether they were accepted: %v", seen)
	}
}

func userTimeout(conn net.Conn) (milliseconds int, err error) {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := raw.Control(func(fd uintptr) {
		milliseconds, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
	})
	return milliseconds, errors.Join(failed, err)
}
