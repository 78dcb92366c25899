package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/bench/child"
	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay"
)

// processVariable is the environment variable with the settings of a process of the application.
const processVariable = "TENUTO_FORTY_PROCESS"

// settings are those of a node, or of a worker, which has no Dir.
type settings struct {
	Name, Dir, Listen string
	Peers             []cluster.Peer
	Verbose           bool
}

const (
	nodes             = 5
	voters            = 3
	replaceVoterAfter = 3 * time.Second
	slotsOfNode       = 16
	slotsOfWorker     = 4
)

// A begun attempt is one line of a process: "begin", instance, event_id, number.
type begun struct {
	instance string
	eventID  uint64
	number   int
}

var (
	step   = replay.Activity[int, string]("step")
	errand = replay.Orchestration[int, []string]("errand")
)

// runErrand runs four steps at once and two more, and returns what ran them.
func runErrand(ctx *replay.Context, n int) ([]string, error) {
	var futures []*replay.Future[string]
	for i := range 4 {
		futures = append(futures, step.Start(ctx, 200+(37*n+i*61)%600))
	}
	places, err := replay.All(ctx, futures...)
	for range 2 {
		if err != nil {
			return nil, err
		}
		var place string
		place, err = step.Call(ctx, 200)
		places = append(places, place)
	}
	return places, err
}

// stepsOfErrand is the number of activities of an errand.
const stepsOfErrand = 6

// runProcess runs a node or a worker until its input ends. Each line of input asks for a
// measurement.
func runProcess(encoded string, in io.Reader, out io.Writer) error {
	var s settings
	if err := json.Unmarshal([]byte(encoded), &s); err != nil {
		return err
	}
	lines := &lineWriter{to: out}
	place := new(atomic.Pointer[string])
	place.Store(&s.Name)
	body := step.Bind(func(ctx context.Context, milliseconds int) (string, error) {
		attempt := replay.ActivityInfo(ctx)
		lines.write("begin %s %d %d", attempt.Instance, attempt.EventID, attempt.Number)
		select {
		case <-time.After(time.Duration(milliseconds) * time.Millisecond):
			return *place.Load(), nil
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	})
	logger := slog.New(slog.DiscardHandler)
	if s.Verbose {
		logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})).With("process", s.Name)
	}
	stop, err := s.open(body, logger, place)
	if err != nil {
		return err
	}
	lines.write("ready")
	for commands := bufio.NewScanner(in); commands.Scan(); {
		use, err := measureProcess()
		if err != nil {
			return err
		}
		encoded, err := json.Marshal(use)
		if err != nil {
			return err
		}
		lines.write("use %s", encoded)
	}
	return stop()
}

// open starts the node or the worker. place is updated with the role of a node.
func (s settings) open(body replay.Definition, logger *slog.Logger, place *atomic.Pointer[string]) (stop func() error, err error) {
	ctx := context.Background()
	if s.Dir == "" {
		var addresses []string
		for _, peer := range s.Peers {
			addresses = append(addresses, peer.Address)
		}
		worker := "worker"
		place.Store(&worker)
		client, err := cluster.Dial(ctx, cluster.DialConfig{
			Addresses: addresses, WorkerName: s.Name, Definitions: []replay.Definition{body}, ActivitiesMax: slotsOfWorker, Logger: logger,
			CallTimeout: time.Minute,
		})
		if err != nil {
			return nil, err
		}
		return client.Close, nil
	}
	node, err := cluster.Start(ctx, cluster.Config{
		NodeID: s.Name, Dir: s.Dir, Listen: s.Listen, Peers: s.Peers, ActivitiesMax: slotsOfNode, Logger: logger,
		Settings:    cluster.Settings{Voters: voters, ReplaceVoterAfter: replaceVoterAfter, ActivityPlacement: "spread"},
		Definitions: []replay.Definition{body, errand.Bind(runErrand)},
	})
	if err != nil {
		return nil, err
	}
	following, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { followRole(following, node, s.Name, place) })
	return func() error {
		cancel()
		running.Wait()
		return node.Stop(ctx)
	}, nil
}

// followRole keeps place up to date: "leader", "voter" or "standby".
func followRole(ctx context.Context, node *cluster.Node, name string, place *atomic.Pointer[string]) {
	for ctx.Err() == nil {
		members, err := node.Client().Members(ctx)
		for _, m := range members {
			if role := m.Role; err == nil && m.NodeID == name {
				if m.Leader {
					role = "leader"
				}
				place.Store(&role)
			}
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// A lineWriter writes whole lines.
type lineWriter struct {
	mu sync.Mutex
	to io.Writer
}

func (l *lineWriter) write(format string, of ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.to, format+"\n", of...)
}

// A use is what a process uses: memory, and the traffic of its TCP connections until now.
type use struct {
	RSS, Heap                                uint64
	BytesIn, BytesOut, PacketsIn, PacketsOut uint64
}

func measureProcess() (u use, err error) {
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	u.Heap = memory.HeapAlloc
	err = errors.Join(u.addResident(), u.addTraffic())
	return u, err
}

// A process is a node or a worker of the application.
type process struct {
	settings settings
	command  *exec.Cmd
	in       io.WriteCloser
	ready    chan error
	uses     chan use
	ended    chan struct{} // closed when all its lines are read

	mu    sync.Mutex
	begun []begun
}

// startProcess starts a process. It is ready when ready has received nil.
func startProcess(s settings) (*process, error) {
	command, in, out, err := child.Start(processVariable, s)
	if err != nil {
		return nil, err
	}
	p := &process{settings: s, command: command, in: in, ready: make(chan error, 1), uses: make(chan use, 1), ended: make(chan struct{})}
	go p.read(out)
	return p, nil
}

// read reads the lines of the process until it ends.
func (p *process) read(out io.Reader) {
	defer close(p.ended)
	defer func() {
		select {
		case p.ready <- fmt.Errorf("%s ended before it was ready", p.settings.Name):
		default:
		}
	}()
	for lines := bufio.NewScanner(out); lines.Scan(); {
		line := lines.Text()
		var b begun
		var u use
		switch {
		case line == "ready":
			p.ready <- nil
		case len(line) > 4 && line[:4] == "use ":
			if json.Unmarshal([]byte(line[4:]), &u) == nil {
				p.uses <- u
			}
		default:
			if n, _ := fmt.Sscanf(line, "begin %s %d %d", &b.instance, &b.eventID, &b.number); n == 3 {
				p.mu.Lock()
				p.begun = append(p.begun, b)
				p.mu.Unlock()
			}
		}
	}
}

// awaitReady returns when the process is ready, or with an error if it has ended before. It must be
// called once.
func (p *process) awaitReady(ctx context.Context) error {
	select {
	case err := <-p.ready:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// measure returns what the process uses.
func (p *process) measure(ctx context.Context) (use, error) {
	if _, err := fmt.Fprintln(p.in); err != nil {
		return use{}, err
	}
	select {
	case u := <-p.uses:
		return u, nil
	case <-p.ended:
		return use{}, fmt.Errorf("%s has ended", p.settings.Name)
	case <-ctx.Done():
		return use{}, ctx.Err()
	}
}

// attempts returns the attempts that have begun in the process.
func (p *process) attempts() []begun {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.begun[:len(p.begun):len(p.begun)]
}

// kill ends the process as kill -9 does, and returns when all its lines are read.
func (p *process) kill() {
	_ = p.command.Process.Kill()
	<-p.ended
	_ = p.command.Wait()
}

// stop ends the process in order.
func (p *process) stop() {
	_ = p.in.Close()
	<-p.ended
	_ = p.command.Wait()
}
