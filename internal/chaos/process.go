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
	// How long a node takes to open its journal.
	startLimit = 60 * time.Second
	// How long one that is asked to stop may take, with all its graces.
	endLimit = 30 * time.Second
)

// A process is one node of the fleet: a process of this binary, started again
// as a host each time that it ends. Its ID stays when it is replaced by a node of
// another name.
type process struct {
	id     string
	fleet  *fleet
	stderr *os.File

	mu      sync.Mutex
	config  host.Config
	life    int
	running *life       // nil while there is none
	damaged bool        // its files: a process that ends by itself is no surprise
	told    map[int]int // snapshots of each group that it was sent, as far as was looked
}

// A life is one process of a node.
type life struct {
	number  int
	command *exec.Cmd
	in      io.Closer
	door    string        // the name of its socket; "" until it is ready
	wanted  bool          // its end
	forced  bool          // it had to be killed
	ended   chan struct{} // closed after it
}

// newProcess prepares a node of a fleet, whose network has a place of that ID.
func newProcess(id string, config host.Config, fleet *fleet) (*process, error) {
	stderr, err := os.Create(filepath.Join(fleet.dir, id+".log"))
	if err != nil {
		return nil, err
	}
	return &process{id: id, fleet: fleet, config: config, stderr: stderr, told: make(map[int]int)}, nil
}

// start starts a process and returns when its node takes calls. Nothing of it is
// left when there is an error.
func (p *process) start(ctx context.Context) error {
	l, ready, err := p.begin()
	if err != nil {
		return fmt.Errorf("start %s: %w", p.id, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	select {
	case line := <-ready:
		if line == host.Ready {
			p.mu.Lock()
			l.door = p.doorOf(l.number)
			p.mu.Unlock()
			return nil
		}
		err = errors.New("it ended at once, see its log")
	case <-ctx.Done():
		err = ctx.Err()
	}
	return errors.Join(fmt.Errorf("start %s: %w", p.id, err), p.kill())
}

// begin starts a process and returns it, and where its first line will come.
func (p *process) begin() (*life, <-chan string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running != nil {
		return nil, nil, errors.New("it runs already")
	}
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	p.life++
	config := p.config
	config.Life, config.Door = p.life, filepath.Join(p.fleet.doors, p.doorOf(p.life))
	encoded, err := json.Marshal(config)
	if err != nil {
		return nil, nil, err
	}
	command := exec.Command(self)
	command.Env = append(os.Environ(), host.Env+"="+string(encoded))
	command.Stderr = p.stderr
	// A signal at the terminal is for the harness, which ends the nodes itself.
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
	l := &life{number: p.life, command: command, in: in, wanted: p.damaged, ended: make(chan struct{})}
	p.running = l
	ready := make(chan string, 1)
	go p.watch(l, out, ready)
	return l, ready, nil
}

// watch waits for the first line and for the end of a process.
func (p *process) watch(l *life, out io.Reader, ready chan<- string) {
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
	close(l.ended)
	log := p.fleet.log
	log.Exit(evidence.Exit{Node: p.id, Life: l.number, Wanted: l.wanted, Forced: l.forced, Status: status, At: log.Now()})
}

// doorOf returns the name of the socket of one of its processes.
func (p *process) doorOf(life int) string { return fmt.Sprintf("%s.%d", p.id, life) }

// door returns where the node takes calls, and which of its processes does.
func (p *process) door() (address string, number int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil {
		return "", 0
	}
	return p.running.door, p.running.number
}

// end ends the process by a signal and waits until it is gone. It does nothing
// when there is none.
func (p *process) end(signal syscall.Signal) error {
	p.mu.Lock()
	l := p.running
	if l != nil {
		l.wanted = true
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
	case <-time.After(endLimit):
	}
	// That is judged; the stacks that SIGQUIT has it write are in its log.
	p.mu.Lock()
	l.forced = true
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

// damage says whether the node's files are damaged.
func (p *process) damage(damaged bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.damaged = damaged
}

// settings returns what the node is told when it starts.
func (p *process) settings() host.Config {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.config
}

// become makes another node of it from its next start on.
func (p *process) become(config host.Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.config = config
}

// pause stops the process where it is; resume lets it go on.
func (p *process) pause() error  { return p.signal(syscall.SIGSTOP) }
func (p *process) resume() error { return p.signal(syscall.SIGCONT) }

func (p *process) signal(signal syscall.Signal) error {
	pid := p.pid()
	if pid == 0 {
		return fmt.Errorf("%s does not run", p.id)
	}
	return syscall.Kill(pid, signal)
}

// pid returns the process's number, 0 if there is none.
func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil {
		return 0
	}
	return p.running.command.Process.Pid
}

// stop ends the process as its owner does: it may finish what it is at.
func (p *process) stop() error { return p.end(syscall.SIGTERM) }
