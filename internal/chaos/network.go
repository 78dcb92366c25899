package main

import (
	"fmt"
	"io"
	"net"
	"os/exec"

	"github.com/tenuto-dev/tenuto/internal/chaos/link"
)

// A network is what nodes reach each other by.
type network interface {
	// Add makes room for a node, and returns where that listens and where the
	// others reach it.
	Add(node string) (listen, advertised string, err error)
	// Start starts the process of a node.
	Start(node string, process *exec.Cmd) error
	// Ended tells that it is gone.
	Ended(node string)
	// Set changes what the direction from one node to another is like. What cannot
	// be had is a *skipError.
	Set(from, to string, c link.Condition) error
	// Heal makes all directions like new.
	Heal() error
	Close() error
}

// The networks that there are.
const (
	byProxies    = "proxies"
	byNamespaces = "namespaces"
	byEither     = "auto" // namespaces where they can be had, or else proxies
)

// newNetwork returns a network of a kind, and says which it is.
func newNetwork(kind string, out io.Writer) (network, error) {
	switch kind {
	case byProxies, byNamespaces, byEither:
	default:
		return nil, fmt.Errorf("no network is called %q; there are %s, %s and %s", kind, byProxies, byNamespaces, byEither)
	}
	if kind != byProxies {
		n, err := newNamespaces()
		if err == nil {
			fmt.Fprintln(out, "network: a namespace for each node")
			return n, nil
		}
		if kind == byNamespaces {
			return nil, fmt.Errorf("a namespace for each node: %w", err)
		}
		fmt.Fprintln(out, "a namespace for each node cannot be had:", err)
	}
	fmt.Fprintln(out, "network: proxies on loopback")
	return proxies{link.NewMesh()}, nil
}

// proxies are a network on loopback.
type proxies struct{ mesh *link.Mesh }

func (p proxies) Add(node string) (listen, advertised string, err error) {
	if listen, err = freeAddress(); err != nil {
		return "", "", err
	}
	advertised, err = p.mesh.Add(node, listen)
	return listen, advertised, err
}

// freeAddress returns an address at which nobody listens.
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
