package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

const (
	// How long a node may take to open its journal.
	startTimeout = 60 * time.Second
	// How long a graceful stop may take, including all grace periods.
	stopTimeout = 30 * time.Second
)

// A process is one node of the fleet: a process of this binary, started again as a host each time
// after it ended. It keeps its ID when a node with another name takes its place.
type process struct {
	id     string
	fleet  *fleet
	stderr *os.File

	mu            sync.Mutex
	config        host.Config
	generation    int
	running       *processRun // nil while there is none
	damaged       bool        // files are damaged: the process may end by itself
	snapshotsSeen map[int]int // snapshots received, by partition, as counted so far
}

// A processRun is one process of a node, from its start to its end.
type processRun struct {
	number      int
	command     *exec.Cmd
	in          io.Closer
	socket      string        // the name of its socket; "" until it is ready
	endExpected bool          // the harness sent the signal that ends it
	killed      bool          // was killed because it did not stop
	ended       chan struct{} // closed after the process ended
}

// newProcess prepares a node of a fleet, whose network has a place with that ID.
func newProcess(id string, config host.Config, fleet *fleet) (*process, error) {
	stderr, err := os.Create(filepath.Join(fleet.dir, id+".log"))
	if err != nil {
		return nil, err
	}
	return &process{id: id, fleet: fleet, config: config, stderr: stderr, snapshotsSeen: make(map[int]int)}, nil
}

// start starts a process and returns when its node serves calls. If it returns an error, no process
// is left.
func (p *process) start(ctx context.Context) error {
	l, ready, err := p.launch()
	if err != nil {
		return fmt.Errorf("start %s: %w", p.id, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case line := <-ready:
		if line == host.Ready {
			p.mu.Lock()
			l.socket = p.socketName(l.number)
			p.mu.Unlock()
			return nil
		}
		err = errors.New("ended before it was ready, see its log")
	case <-ctx.Done():
		err = ctx.Err()
	}
	return errors.Join(fmt.Errorf("start %s: %w", p.id, err), p.kill())
}

// launch starts a process. It returns the run and a channel that receives its first line of output.
func (p *process) launch() (*processRun, <-chan string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running != nil {
		return nil, nil, errors.New("already running")
	}
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	p.generation++
	config := p.config
	config.Generation, config.Socket = p.generation, filepath.Join(p.fleet.sockets, p.socketName(p.generation))
	encoded, err := json.Marshal(config)
	if err != nil {
		return nil, nil, err
	}
	command := exec.Command(self)
	command.Env = append(os.Environ(), host.Env+"="+string(encoded))
	command.Stderr = p.stderr
	// A signal from the terminal is for the harness, which ends the nodes itself.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := command.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := p.fleet.network.Start(p.id, command); err != nil {
		return nil, nil, err
	}
	l := &processRun{number: p.generation, command: command, in: in, endExpected: p.damaged, ended: make(chan struct{})}
	p.running = l
	ready := make(chan string, 1)
	go p.watch(l, out, ready)
	return l, ready, nil
}

// watch waits for the first line and for the end of a process.
func (p *process) watch(l *processRun, out io.Reader, ready chan<- string) {
	lines := bufio.NewScanner(out)
	if lines.Scan() {
		ready <- lines.Text()
	}
	close(ready)
	_, _ = io.Copy(io.Discard, out)
	status := "exit status 0"
	if err := l.command.Wait(); err != nil {
		status = err.Error()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == l {
		p.running = nil
		p.fleet.network.Ended(p.id)
	}
	log := p.fleet.log
	log.Exit(evidence.Exit{Node: p.id, Generation: l.number, Expected: l.endExpected, Killed: l.killed, Status: status, At: log.Now()})
	close(l.ended) // the evidence has the end before anything that follows it
}

// socketName returns the name of the socket of one of its processes.
func (p *process) socketName(generation int) string { return fmt.Sprintf("%s.%d", p.id, generation) }

// socket returns the address at which the node serves calls, and the number of its process.
func (p *process) socket() (address string, number int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil {
		return "", 0
	}
	return p.running.socket, p.running.number
}

// end sends a signal to the process and waits for its end. It does nothing if there is none.
func (p *process) end(signal syscall.Signal) error {
	p.mu.Lock()
	l := p.running
	if l != nil {
		l.endExpected = true
	}
	p.mu.Unlock()
	if l == nil {
		return nil
	}
	if err := l.command.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-l.ended:
		return nil
	case <-time.After(stopTimeout):
	}
	// Invariant S26 reports that. SIGQUIT makes the process write its stacks to its log.
	p.mu.Lock()
	l.killed = true
	p.mu.Unlock()
	_ = l.command.Process.Signal(syscall.SIGQUIT)
	select {
	case <-l.ended:
	case <-time.After(time.Second):
		_ = l.command.Process.Kill()
		<-l.ended
	}
	return nil
}

// kill ends the process as a crash does.
func (p *process) kill() error { return p.end(syscall.SIGKILL) }

// setDamaged sets whether the node's files are damaged.
func (p *process) setDamaged(damaged bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.damaged = damaged
}

// settings returns the configuration of the next start.
func (p *process) settings() host.Config {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.config
}

// setConfig sets the configuration from the next start on, which may be of another node.
func (p *process) setConfig(config host.Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.config = config
}

// pause stops the process with SIGSTOP; resume continues it.
func (p *process) pause() error  { return p.signal(syscall.SIGSTOP) }
func (p *process) resume() error { return p.signal(syscall.SIGCONT) }

func (p *process) signal(signal syscall.Signal) error {
	pid := p.pid()
	if pid == 0 {
		return fmt.Errorf("%s is not running", p.id)
	}
	return syscall.Kill(pid, signal)
}

// pid returns the process ID, or 0 if there is none.
func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil {
		return 0
	}
	return p.running.command.Process.Pid
}

// stop stops the process gracefully, with SIGTERM.
func (p *process) stop() error { return p.end(syscall.SIGTERM) }
