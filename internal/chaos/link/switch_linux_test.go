package link

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// newSwitch returns a switch with the nodes a and b.
func newSwitch(t *testing.T) *Switch {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can create network namespaces")
	}
	s, err := NewSwitch()
	if err != nil {
		t.Skip("SKIPPED: cannot create network namespaces: ", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, node := range []string{"a", "b"} {
		if _, err := s.Add(node); err != nil {
			t.Fatal(err)
		}
		address := netip.MustParseAddr(fmt.Sprintf(losslessAddress, 100+node[0]))
		if err := s.Do(node, func() error {
			inside, err := netlink.LinkByName(insideName)
			if err != nil {
				return err
			}
			return addAddress(inside, address)
		}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// inNamespace calls a function in the namespace of a node.
func inNamespace[T any](t *testing.T, s *Switch, node string, f func() (T, error)) T {
	t.Helper()
	var made T
	if err := s.Do(node, func() (err error) {
		made, err = f()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return made
}

// addressOf returns the address of a node.
func (s *Switch) addressOf(node string) string {
	return netip.AddrPortFrom(s.ports[node].address, nodePort).String()
}

// listenUDP returns a UDP socket of a node.
func listenUDP(t *testing.T, s *Switch, node, address string) *net.UDPConn {
	t.Helper()
	return inNamespace(t, s, node, func() (*net.UDPConn, error) {
		return net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(address)))
	})
}

// losslessAddress is a second address of every node that the switch does not know. Packets from it
// are never lost.
const losslessAddress = "10.77.0.%d"

// sendPackets sends packets from one node to another, then one that is never lost, and returns how
// many arrived before that one. They are sent on one processor, because the kernel keeps their
// order only then.
func sendPackets(t *testing.T, s *Switch, from, to string, n int) (arrived int) {
	t.Helper()
	receiver, sender := listenUDP(t, s, to, s.addressOf(to)), listenUDP(t, s, from, s.addressOf(from))
	defer receiver.Close()
	defer sender.Close()
	other := listenUDP(t, s, from, fmt.Sprintf(losslessAddress+":0", 100+from[0]))
	defer other.Close()
	target := receiver.LocalAddr().(*net.UDPAddr).AddrPort()
	pinToOneCPU(t, func() error {
		for range n {
			if _, err := sender.WriteToUDPAddrPort([]byte("one"), target); err != nil {
				return err
			}
		}
		_, err := other.WriteToUDPAddrPort([]byte("last"), target)
		return err
	})
	_ = receiver.SetReadDeadline(time.Now().Add(time.Minute))
	for b := make([]byte, 8); ; arrived++ {
		got, err := receiver.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		if string(b[:got]) == "last" {
			return arrived
		}
	}
}

func pinToOneCPU(t *testing.T, f func() error) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	for i := range 1024 {
		if before.IsSet(i) {
			one.Set(i)
			break
		}
	}
	err := unix.SchedSetaffinity(0, &one)
	if err == nil {
		err = errors.Join(f(), unix.SchedSetaffinity(0, &before))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestSwitch_CutDropsOneDirection(t *testing.T) {
	s := newSwitch(t)
	const packets = 20
	for _, c := range []struct {
		name        string
		cut         []direction
		there, back int
	}{
		{"nothing is cut", nil, packets, packets},
		{"there", []direction{{"a", "b"}}, 0, packets},
		{"back", []direction{{"b", "a"}}, packets, 0},
		{"both", []direction{{"a", "b"}, {"b", "a"}}, 0, 0},
		{"somewhere else", []direction{{"a", "trial"}, {"trial", "b"}}, packets, packets},
		{"healed", nil, packets, packets},
	} {
		for _, d := range c.cut {
			if err := s.Set(d.from, d.to, Condition{Cut: true}); err != nil {
				t.Fatal(err)
			}
		}
		if there, back := sendPackets(t, s, "a", "b", packets), sendPackets(t, s, "b", "a", packets); there != c.there || back != c.back {
			t.Errorf("%s: %d and %d packets arrived; want %d and %d", c.name, there, back, c.there, c.back)
		}
		if err := s.Heal(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSwitch_DropsGivenShare(t *testing.T) {
	s := newSwitch(t)
	const rounds, packets = 40, 50 // bounded by the receive buffer of the socket
	if err := s.Set("a", "b", Condition{Loss: 0.3}); err != nil {
		t.Fatal(err)
	}
	arrived := 0
	for range rounds {
		arrived += sendPackets(t, s, "a", "b", packets)
	}
	// Seven standard deviations on either side.
	if share := float64(arrived) / (rounds * packets); share < 0.62 || share > 0.78 {
		t.Errorf("share of packets that arrived: %.2f; want 0.7", share)
	}
}

func TestSwitch_ConnectionResumesAfterHeal(t *testing.T) {
	for _, cut := range []direction{{"a", "b"}, {"b", "a"}} {
		s := newSwitch(t)
		listener := inNamespace(t, s, "b", func() (net.Listener, error) { return net.Listen("tcp4", s.addressOf("b")) })
		defer listener.Close()
		go func() {
			if conn, err := listener.Accept(); err == nil {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}
		}()
		conn := inNamespace(t, s, "a", func() (net.Conn, error) { return net.Dial("tcp4", s.addressOf("b")) })
		defer conn.Close()
		write(t, conn, "one")
		expect(t, conn, "one")
		if err := s.Set(cut.from, cut.to, Condition{Cut: true}); err != nil {
			t.Fatal(err)
		}
		write(t, conn, "two")
		expectNothing(t, conn)
		if err := s.Heal(); err != nil {
			t.Fatal(err)
		}
		expect(t, conn, "two")
	}
}

func TestSwitch_CutHidesRejectedConnection(t *testing.T) {
	for _, cut := range []direction{{"a", "b"}, {"b", "a"}} {
		s := newSwitch(t)
		if err := s.Set(cut.from, cut.to, Condition{Cut: true}); err != nil {
			t.Fatal(err)
		}
		rejected := make(chan error)
		go func() {
			rejected <- s.Do("a", func() error {
				_, err := net.Dial("tcp4", s.addressOf("b")) // a port without a listener
				return err
			})
		}()
		select {
		case err := <-rejected:
			t.Errorf("%v is cut, but got %v", cut, err)
			continue
		case <-time.After(50 * time.Millisecond): // time for a wrong answer to arrive
		}
		if err := s.Heal(); err != nil {
			t.Fatal(err)
		}
		if err := <-rejected; !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("healed: %v", err)
		}
	}
}

func TestSwitch_RejectsDelay(t *testing.T) {
	s := newSwitch(t)
	for _, c := range []Condition{{Delay: time.Millisecond}, {Jitter: time.Millisecond}} {
		if err := s.Set("a", "b", c); !errors.Is(err, ErrDelay) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A node that was moved listens at another address, which is reached like the one before.
func TestSwitch_MovesNode(t *testing.T) {
	s := newSwitch(t)
	first, second := s.Move("a"), s.Move("a")
	if first == second {
		t.Errorf("moved twice to %s", first)
	}
	listener := inNamespace(t, s, "a", func() (net.Listener, error) { return net.Listen("tcp", second) })
	defer listener.Close()
	connection := inNamespace(t, s, "b", func() (net.Conn, error) { return net.DialTimeout("tcp", second, 10*time.Second) })
	if err := connection.Close(); err != nil {
		t.Error(err)
	}
}

func TestSwitch_CloseReleasesResources(t *testing.T) {
	newSwitch(t) // or skip
	before := openFiles(t)
	s, err := NewSwitch()
	if err != nil {
		t.Fatal(err)
	}
	if opened := openFiles(t); len(opened) <= len(before) {
		t.Errorf("open with the switch: %v; before: %v", opened, before)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if after := openFiles(t); len(after) > len(before) {
		t.Errorf("open after Close: %v; before: %v", after, before)
	}
}

// openFiles lists the namespaces and BPF objects that this process has open.
func openFiles(t *testing.T) (open []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		target, _ := os.Readlink("/proc/self/fd/" + entry.Name())
		if strings.HasPrefix(target, "net:") || strings.HasPrefix(target, "/proc/") || strings.Contains(target, "bpf") {
			open = append(open, target)
		}
	}
	return open
}
