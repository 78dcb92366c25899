package host

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay"
)

// Brief is the orchestration of which many are started to see how many can be done:
// BriefLength activities that do nothing, one after the other.
const (
	Brief       = "chaos.brief"
	BriefLength = 3
)

var (
	brief = replay.Orchestration[int, int](Brief)
	idle  = replay.Activity[int, int]("chaos.idle")
)

func runBrief(ctx *replay.Context, n int) (int, error) {
	for range BriefLength {
		var err error
		if n, err = idle.Call(ctx, n); err != nil {
			return 0, err
		}
	}
	return n, nil
}

func beIdle(_ context.Context, n int) (int, error) { return n + 1, nil }

// A Pressure is a load that a host puts on its own node, as the application does in
// which a node is embedded. Every call starts an instance and waits for its end.
type Pressure struct {
	Prefix string // of the instances' IDs; no two nodes may have the same
	For    time.Duration
	// So many callers, each of which makes one call after the other; or, if PerSecond is
	// not 0, so many calls a second, whatever becomes of them.
	Callers   int
	PerSecond float64
	// Have a start that is refused repeated, as calls do unless they are told not to.
	// Otherwise the first refusal is the end of the call.
	Insist bool
}

// A Pressed is what came of a call under pressure.
type Pressed struct {
	At time.Duration // when it was begun, since the pressure was
	// How long it took until the start was acknowledged, 0 if it was not; and until the
	// end of the instance, or the trouble.
	Accepted time.Duration
	Took     time.Duration
	// "" if the instance has ended as it should; Busy if it was refused; or what else
	// went wrong.
	Trouble string
}

// A Burden is what a pressure was to the process: its calls, what they and the node
// have cost, and how long goroutines that could run had to wait for it.
type Burden struct {
	Calls      Lots
	Processors time.Duration // used by the process
	RunQueue   Delays
}

// Lots are calls in lots of burdenLot, and one of those that are left. There may be
// millions, and one slice of all of them would be copied as it grows, for which the
// process stops.
type Lots [][]Pressed

const burdenLot = 4096

func (l *Lots) add(call Pressed) {
	last := len(*l) - 1
	if last < 0 || len((*l)[last]) == burdenLot {
		*l = append(*l, make([]Pressed, 0, burdenLot))
		last++
	}
	(*l)[last] = append((*l)[last], call)
}

// Write writes a burden for [Burden.Read]. It is to cost little: it is read on the machine
// that is measured, where nodes are that must not miss a heartbeat.
func (b *Burden) Write(w io.Writer) error {
	lots := gob.NewEncoder(w)
	if err := lots.Encode(Burden{Processors: b.Processors, RunQueue: b.RunQueue}); err != nil {
		return err
	}
	for _, lot := range b.Calls {
		if err := lots.Encode(lot); err != nil {
			return err
		}
	}
	return nil
}

// Read reads a burden to the end of what was written.
func (b *Burden) Read(r io.Reader) error {
	lots := gob.NewDecoder(r)
	if err := lots.Decode(b); err != nil {
		return err
	}
	for {
		var lot []Pressed
		if err := lots.Decode(&lot); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		b.Calls = append(b.Calls, lot)
	}
}

// Delays are bounds of how long something took.
type Delays struct{ P50, P99, Max time.Duration }

// Busy is the trouble of a call that was refused because there is too much to do.
const Busy = "busy"

const (
	// How long one call may take under pressure, and how many may be under way at
	// once: what is more is not begun, and told as Swamped.
	pressedLimit = 10 * time.Second
	pressedMax   = 20_000
	Swamped      = "swamped"
)

// Press puts a pressure on a node and tells what came of it.
func Press(ctx context.Context, client *cluster.Client, p Pressure) Burden {
	used, waits := processorsUsed(), schedulerDelays()
	press := &press{Pressure: p, client: client, began: time.Now(), free: make(chan struct{}, pressedMax)}
	if p.PerSecond > 0 {
		press.open(ctx)
	} else {
		press.closed(ctx)
	}
	press.calling.Wait()
	return Burden{Calls: press.all, Processors: processorsUsed() - used, RunQueue: delaysSince(waits)}
}

type press struct {
	Pressure
	client  *cluster.Client
	began   time.Time
	free    chan struct{}
	calling sync.WaitGroup

	mu  sync.Mutex
	all Lots
}

// closed has callers wait for one end before the next start.
func (p *press) closed(ctx context.Context) {
	for caller := range p.Callers {
		p.follow(ctx, caller, 0)
	}
}

// follow makes the nth call of a caller, on a goroutine of its own as those of open are,
// and then the next one.
func (p *press) follow(ctx context.Context, caller, n int) {
	p.calling.Go(func() {
		p.one(ctx, fmt.Sprintf("%s-%d-%d", p.Prefix, caller, n))
		if time.Since(p.began) < p.For && ctx.Err() == nil {
			p.follow(ctx, caller, n+1)
		}
	})
}

// open starts as many as are due, in small lots.
func (p *press) open(ctx context.Context) {
	lots := time.NewTicker(5 * time.Millisecond)
	defer lots.Stop()
	for begun := 0; time.Since(p.began) < p.For && ctx.Err() == nil; <-lots.C {
		for due := int(time.Since(p.began).Seconds() * p.PerSecond); begun < due; begun++ {
			id := fmt.Sprintf("%s-%d", p.Prefix, begun)
			select {
			case p.free <- struct{}{}:
				p.calling.Go(func() {
					p.one(ctx, id)
					<-p.free
				})
			default:
				p.note(Pressed{At: time.Since(p.began), Trouble: Swamped})
			}
		}
	}
}

func (p *press) one(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, pressedLimit)
	defer cancel()
	begin := time.Now()
	pressed := Pressed{At: begin.Sub(p.began)}
	starting := ctx
	if !p.Insist {
		starting = cluster.WithoutBusyRepeats(ctx)
	}
	run, err := cluster.StartRun(starting, p.client, brief, id, 0)
	if err == nil {
		pressed.Accepted = time.Since(begin)
		_, err = run.Wait(ctx)
	}
	pressed.Took, pressed.Trouble = time.Since(begin), troubleOf(err)
	p.note(pressed)
}

func troubleOf(err error) string {
	var unavailable *cluster.UnavailableError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, cluster.ErrBusy):
		return Busy
	case errors.As(err, &unavailable):
		return "no answer of a leader"
	case errors.Is(err, context.DeadlineExceeded):
		return "not in time"
	}
	return err.Error()
}

func (p *press) note(pressed Pressed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all.add(pressed)
}
