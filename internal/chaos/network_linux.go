package main

import (
	"errors"
	"os"
	"os/exec"

	"github.com/tenuto-dev/tenuto/internal/chaos/link"
)

// namespaces are a network of network namespaces.
type namespaces struct{ *link.Switch }

func newNamespaces() (network, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("only root can create network namespaces")
	}
	s, err := link.NewSwitch()
	if err != nil {
		return nil, err
	}
	return namespaces{s}, nil
}

func (n namespaces) Add(node string) (listen, advertised string, err error) {
	listen, err = n.Switch.Add(node)
	return listen, listen, err
}

func (n namespaces) Move(node string) (listen, advertised string, err error) {
	listen = n.Switch.Move(node)
	return listen, listen, nil
}

func (n namespaces) Start(node string, process *exec.Cmd) error { return n.Do(node, process.Start) }

// Ended does nothing. The namespace stays, like a machine whose process has ended.
func (namespaces) Ended(string) {}

func (n namespaces) Set(from, to string, c link.Condition) error {
	err := n.Switch.Set(from, to, c)
	if errors.Is(err, link.ErrDelay) {
		return &skipError{err.Error()}
	}
	return err
}
