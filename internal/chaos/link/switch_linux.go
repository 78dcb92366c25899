package link

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
)

// A Switch joins nodes that are each in their own network namespace. The kernel drops packets
// between them. Its methods may be called concurrently.
//
// It needs root and Linux 6.6 with veth, bridges and BPF. Nothing that it creates has a name
// outside of it. The kernel removes everything after this process and the nodes have ended, however
// they end, and any number of switches can coexist.
type Switch struct {
	filter *filter
	bridge *namespace
	link   *netlink.Bridge // in the namespace bridge

	mu          sync.Mutex
	ports       map[string]*port
	conditioned map[direction]bool // the directions with a condition since the last Heal
}

// A port connects one node.
type port struct {
	namespace *namespace
	address   netip.Addr
	attached  io.Closer
	number    uint16 // at which the node listens
}

const (
	nodePort = 7400
	portsMax = 254 // in 10.77.0.0/24
	// The name of each node's interface.
	insideName = "eth0"
)

// ErrDelay is returned for a condition with a delay.
var ErrDelay = errors.New("packets between namespaces can be dropped but not delayed")

// NewSwitch returns a switch without nodes, or an error if this system does not support switches.
func NewSwitch() (*Switch, error) {
	s := &Switch{ports: make(map[string]*port), conditioned: make(map[direction]bool)}
	err := s.make()
	if err == nil {
		_, err = s.Add("trial")
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Switch) make() error {
	var err error
	if s.filter, err = newFilter(); err != nil {
		return err
	}
	if s.bridge, err = newNamespace(); err != nil {
		return err
	}
	return s.bridge.do(func() error {
		s.link = &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "switch"}}
		if err := netlink.LinkAdd(s.link); err != nil {
			return fmt.Errorf("add bridge: %w", err)
		}
		return netlink.LinkSetUp(s.link)
	})
}

// Add creates a namespace for a node and returns the address at which the node listens and the
// others reach it.
func (s *Switch) Add(node string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	number := len(s.ports) + 1
	if number > portsMax {
		return "", fmt.Errorf("a switch has at most %d ports", portsMax)
	}
	p := &port{address: netip.AddrFrom4([4]byte{10, 77, 0, byte(number)}), number: nodePort}
	var err error
	if p.namespace, err = newNamespace(); err != nil {
		return "", err
	}
	s.ports[node] = p
	if err := s.connect(p, fmt.Sprintf("port%d", number)); err != nil {
		return "", fmt.Errorf("namespace of %s: %w", node, err)
	}
	return netip.AddrPortFrom(p.address, p.number).String(), nil
}

// Move returns another address for a node, with the same conditions.
func (s *Switch) Move(node string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.ports[node]
	p.number++
	return netip.AddrPortFrom(p.address, p.number).String()
}

// connect connects a port. The node's interface does not merge segments, so that one loss affects
// one packet and not many.
func (s *Switch) connect(p *port, name string) error {
	outside := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, MasterIndex: s.link.Index},
		PeerName:  insideName, PeerNamespace: netlink.NsFd(p.namespace.file.Fd()),
	}
	if err := s.bridge.do(func() (err error) {
		if err := netlink.LinkAdd(outside); err != nil {
			return err
		}
		if p.attached, err = s.filter.attach(outside.Index); err != nil {
			return err
		}
		return netlink.LinkSetUp(outside)
	}); err != nil {
		return err
	}
	return p.namespace.do(func() error {
		loopback, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		inside, err := netlink.LinkByName(insideName)
		if err != nil {
			return err
		}
		return errors.Join(
			netlink.LinkSetUp(loopback),
			netlink.LinkSetGSOMaxSegs(inside, 1),
			netlink.LinkSetUp(inside),
			addAddress(inside, p.address),
		)
	})
}

func addAddress(to netlink.Link, address netip.Addr) error {
	return netlink.AddrAdd(to, &netlink.Addr{IPNet: &net.IPNet{IP: address.AsSlice(), Mask: net.CIDRMask(24, 32)}})
}

// Do calls a function on a thread in the namespace of a node. Sockets that it opens and processes
// that it starts belong to the namespace.
func (s *Switch) Do(node string, f func() error) error {
	s.mu.Lock()
	p := s.ports[node]
	s.mu.Unlock()
	return p.namespace.do(f)
}

// Set sets the condition of the direction from one node to another. It returns [ErrDelay] for a
// condition with a delay.
func (s *Switch) Set(from, to string, c Condition) error {
	if c.Delay > 0 || c.Jitter > 0 {
		return ErrDelay
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.set(direction{from, to}, c)
}

func (s *Switch) set(d direction, c Condition) error {
	s.conditioned[d] = true
	share := c.Loss
	if c.Cut {
		share = 1
	}
	return s.filter.set(s.ports[d.from].address, s.ports[d.to].address, share)
}

// Heal resets the conditions of all directions.
func (s *Switch) Heal() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for d := range s.conditioned {
		errs = append(errs, s.set(d, Condition{}))
	}
	clear(s.conditioned)
	return errors.Join(errs...)
}

// Close removes everything. The processes in the namespaces must have ended.
func (s *Switch) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, p := range s.ports {
		if p.attached != nil {
			errs = append(errs, p.attached.Close())
		}
		errs = append(errs, p.namespace.file.Close())
	}
	clear(s.ports)
	if s.bridge != nil {
		errs = append(errs, s.bridge.file.Close())
	}
	if s.filter != nil {
		errs = append(errs, s.filter.close())
	}
	return errors.Join(errs...)
}
