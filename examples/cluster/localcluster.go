package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/tenuto-dev/tenuto/cluster"
)

// A localCluster runs the nodes as processes. Its methods may be called concurrently.
type localCluster struct {
	mu    sync.Mutex
	nodes []*process
}

// A process is the current process of a node.
type process struct {
	settings Settings
	state    string // running, killed, paused or ended (see its log)
	command  *exec.Cmd
	input    io.Closer // the process ends when its input does
	exited   chan struct{}
}

const (
	running = "running"
	killed  = "killed"
	paused  = "paused"
	ended   = "ended by itself"
)

// startLocalCluster starts three nodes with their journals below dir.
func startLocalCluster(dir string) (*localCluster, error) {
	f := new(localCluster)
	var peers []cluster.Peer
	for i := range 3 {
		listener, err := net.Listen("tcp", "127.0.0.1:0") // for a free port
		if err != nil {
			return nil, err
		}
		peers = append(peers, cluster.Peer{NodeID: fmt.Sprintf("n%d", i+1), Address: listener.Addr().String()})
		_ = listener.Close()
	}
	for _, peer := range peers {
		settings := Settings{ID: peer.NodeID, Address: peer.Address, Dir: filepath.Join(dir, peer.NodeID), Peers: peers}
		f.nodes = append(f.nodes, &process{settings: settings, state: killed})
	}
	if err := f.restart(); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

func (l *localCluster) addresses() (all []string) {
	for _, peer := range l.nodes[0].settings.Peers {
		all = append(all, peer.Address)
	}
	return all
}

// restart starts killed processes and continues paused ones.
func (l *localCluster) restart() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.nodes {
		var err error
		switch p.state {
		case paused:
			err = p.command.Process.Signal(unpauseSignal)
		case killed, ended:
			err = l.start(p)
		}
		if err != nil {
			return fmt.Errorf("restart %s: %w", p.settings.ID, err)
		}
		p.state = running
	}
	return nil
}

// start starts a process. The caller holds mu.
func (l *localCluster) start(p *process) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	encoded, err := json.Marshal(p.settings)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(p.settings.Dir+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the process has its own descriptor
	p.command = exec.Command(self)
	p.command.Env = append(os.Environ(), nodeEnv+"="+string(encoded))
	p.command.Stderr = log
	if p.input, err = p.command.StdinPipe(); err != nil {
		return err
	}
	if err := p.command.Start(); err != nil {
		return err
	}
	p.exited = make(chan struct{})
	go l.await(p, p.command, p.exited)
	return nil
}

// await waits for the end of a process.
func (l *localCluster) await(p *process, command *exec.Cmd, exited chan struct{}) {
	_ = command.Wait()
	l.mu.Lock()
	if p.command == command && p.state != killed {
		p.state = ended
	}
	l.mu.Unlock()
	close(exited)
}

// kill kills a node's process and returns when it has ended.
func (l *localCluster) kill(id string) error {
	var gone chan struct{}
	err := l.withRunning(id, func(p *process) error {
		p.state, gone = killed, p.exited
		return p.command.Process.Kill()
	})
	if err == nil {
		<-gone
	}
	return err
}

// pause stops a node's process without ending it.
func (l *localCluster) pause(id string) error {
	return l.withRunning(id, func(p *process) error {
		err := p.command.Process.Signal(pauseSignal)
		if err == nil {
			p.state = paused
		}
		return err
	})
}

// withRunning calls a function with the process of a running node.
func (l *localCluster) withRunning(id string, do func(*process) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.nodes {
		if p.settings.ID != id {
			continue
		}
		if p.state != running {
			return fmt.Errorf("%s is %s", id, p.state)
		}
		return do(p)
	}
	return fmt.Errorf("there is no node %q", id)
}

// states returns the nodes and their states, in order.
func (l *localCluster) states() (ids, states []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.nodes {
		ids, states = append(ids, p.settings.ID), append(states, p.state)
	}
	return ids, states
}

// close ends all processes.
func (l *localCluster) close() {
	l.mu.Lock()
	var gone []chan struct{}
	for _, p := range l.nodes {
		if p.exited != nil {
			p.state = killed
			_ = p.command.Process.Kill() // also if paused
			gone = append(gone, p.exited)
		}
	}
	l.mu.Unlock()
	for _, ended := range gone {
		<-ended
	}
}
