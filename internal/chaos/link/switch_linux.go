package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
)

// A Switch joins nodes that are each in a network namespace of its own. What is
// lost on the way is lost by the kernel. Its methods may be called concurrently.
//
// It needs root and Linux 6.6 with veth, bridges and BPF. Nothing that it makes has
// a name outside: whatever becomes of this process, all is gone when it and the
// nodes have ended, and any number of switches have nothing to do with each other.
type Switch struct {
	filter *filter
	bridge *namespace

	mu    sync.Mutex
	ports map[string]*port
	lossy map[direction]bool // that have had a condition since they were like new
}

// A port is where a node is.
type port struct {
	namespace *namespace
	address   netip.Addr
	attached  *os.File
}

const (
	nodePort = 7400
	portsMax = 254 // in 10.77.0.0/24
)

// ErrDelay is returned for a condition with a delay.
var ErrDelay = errors.New("packets between namespaces are lost, but not delayed")

// NewSwitch returns a switch without nodes, when it has tried that it can have
// some.
func NewSwitch() (*Switch, error) {
	s := &Switch{ports: make(map[string]*port), lossy: make(map[direction]bool)}
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
	if _, err := exec.LookPath("ip"); err != nil {
		return err
	}
	var err error
	if s.filter, err = newFilter(); err != nil {
		return err
	}
	if s.bridge, err = newNamespace(); err != nil {
		return err
	}
	return s.bridge.ip(nil, "link add switch type bridge", "link set switch up")
}

// Add makes a namespace for a node and returns the address at which it listens
// there, by which the others reach it.
func (s *Switch) Add(node string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	number := len(s.ports) + 1
	if number > portsMax {
		return "", fmt.Errorf("a switch has %d ports at most", portsMax)
	}
	p := &port{address: netip.AddrFrom4([4]byte{10, 77, 0, byte(number)})}
	var err error
	if p.namespace, err = newNamespace(); err != nil {
		return "", err
	}
	s.ports[node] = p
	if err := s.plug(p, fmt.Sprintf("port%d", number)); err != nil {
		return "", fmt.Errorf("namespace of %s: %w", node, err)
	}
	return netip.AddrPortFrom(p.address, nodePort).String(), nil
}

// plug connects a port. What a node sends is no larger than what a wire takes, so
// that it is single packets that are lost.
func (s *Switch) plug(p *port, name string) error {
	if err := s.bridge.ip(p.namespace.file,
		"link add "+name+" type veth peer name eth0 netns /proc/self/fd/3",
		"link set "+name+" master switch up",
	); err != nil {
		return err
	}
	if err := p.namespace.ip(nil,
		"link set lo up",
		"link set eth0 gso_max_segs 1 up",
		"addr add "+p.address.String()+"/24 dev eth0",
	); err != nil {
		return err
	}
	return s.bridge.do(func() error {
		outside, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		p.attached, err = s.filter.attach(outside.Index)
		return err
	})
}

// Do calls a function on a thread that is in the namespace of a node. What the
// function opens and starts belongs there.
func (s *Switch) Do(node string, f func() error) error {
	s.mu.Lock()
	p := s.ports[node]
	s.mu.Unlock()
	return p.namespace.do(f)
}

// Set changes what the direction from one node to another is like. A delay is
// refused with [ErrDelay].
func (s *Switch) Set(from, to string, c Condition) error {
	if c.Delay > 0 || c.Jitter > 0 {
		return ErrDelay
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.set(direction{from, to}, c)
}

func (s *Switch) set(d direction, c Condition) error {
	s.lossy[d] = true
	share := c.Loss
	if c.Cut {
		share = 1
	}
	return s.filter.set(s.ports[d.from].address, s.ports[d.to].address, share)
}

// Heal makes all directions like new.
func (s *Switch) Heal() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for d := range s.lossy {
		errs = append(errs, s.set(d, Condition{}))
	}
	clear(s.lossy)
	return errors.Join(errs...)
}

// Close takes everything away, once the processes in the namespaces have ended.
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
