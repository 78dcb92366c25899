package main

import (
	"fmt"
	"io"
	"net"
	"os/exec"

	"github.com/tenuto-dev/tenuto/internal/chaos/link"
)

// A network connects the nodes.
type network interface {
	// Add adds a node. It returns the address at which the node listens and the one at which the
	// others reach it.
	Add(node string) (listen, advertised string, err error)
	// Move gives a node another address, for its next process. It returns a *skipError if the
	// network cannot.
	Move(node string) (listen, advertised string, err error)
	// Start starts the process of a node.
	Start(node string, process *exec.Cmd) error
	// Ended must be called after the process of a node has ended.
	Ended(node string)
	// Set sets the condition of the direction from one node to another. It returns a *skipError for
	// a condition that the network does not support.
	Set(from, to string, c link.Condition) error
	// Heal resets the conditions of all directions.
	Heal() error
	Close() error
}

// The kinds of networks.
const (
	networkProxies    = "proxies"
	networkNamespaces = "namespaces"
	networkAuto       = "auto" // namespaces if possible, or else proxies
)

// newNetwork returns a network of a kind, and writes which one it is.
func newNetwork(kind string, out io.Writer) (network, error) {
	switch kind {
	case networkProxies, networkNamespaces, networkAuto:
	default:
		return nil, fmt.Errorf("unknown network %q; there are %s, %s and %s", kind, networkProxies, networkNamespaces, networkAuto)
	}
	if kind != networkProxies {
		n, err := newNamespaces()
		if err == nil {
			fmt.Fprintln(out, "network: a namespace for each node")
			return n, nil
		}
		if kind == networkNamespaces {
			return nil, fmt.Errorf("a namespace for each node: %w", err)
		}
		fmt.Fprintln(out, "no network namespaces:", err)
	}
	fmt.Fprintln(out, "network: proxies on loopback")
	return proxies{link.NewMesh()}, nil
}

// proxies are a network of proxies on loopback.
type proxies struct{ mesh *link.Mesh }

func (p proxies) Add(node string) (listen, advertised string, err error) {
	if listen, err = freeAddress(); err != nil {
		return "", "", err
	}
	advertised, err = p.mesh.Add(node, listen)
	return listen, advertised, err
}

func (proxies) Move(string) (listen, advertised string, err error) {
	return "", "", &skipError{"proxies keep their addresses"}
}

// freeAddress returns an address that no process listens on.
func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}

func (p proxies) Start(node string, process *exec.Cmd) error {
	if err := process.Start(); err != nil {
		return err
	}
	p.mesh.SetProcess(node, process.Process.Pid)
	return nil
}

func (p proxies) Ended(node string) { p.mesh.SetProcess(node, 0) }

func (p proxies) Set(from, to string, c link.Condition) error {
	p.mesh.Set(from, to, c)
	return nil
}

func (p proxies) Heal() error {
	p.mesh.Heal()
	return nil
}

func (p proxies) Close() error {
	p.mesh.Close()
	return nil
}
