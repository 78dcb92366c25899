package host

import (
	"context"
	"errors"
	"fmt"
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
// which a node is embedded.
type Pressure struct {
	Prefix string // of the instances' IDs
	For    time.Duration
	// So many callers, each of which starts one instance after the other and waits for
	// its end; or, if PerSecond is not 0, so many starts a second, whatever becomes of
	// them.
	Callers   int
	PerSecond float64
	// Wait for the end of each.
	Wait bool
}

// A Pressed is what came of a call under pressure.
type Pressed struct {
	At   time.Duration // when it was begun, since the pressure was
	Took time.Duration
	// "" if it was acknowledged, or has ended as it should; Busy if it was refused; or
	// what else went wrong.
	Trouble string `json:",omitempty"`
}

// Busy is the trouble of a call that was refused because there is too much to do.
const Busy = "busy"

const (
	// How long one call may take under pressure, and how many may be under way at
	// once: what is more is not begun, and told as Swamped.
	pressedLimit = 10 * time.Second
	pressedMax   = 20_000
	Swamped      = "swamped"
)

// Press puts a pressure on a node and tells what came of each call.
func Press(ctx context.Context, client *cluster.Client, p Pressure) []Pressed {
	press := &press{Pressure: p, client: client, began: time.Now(), free: make(chan struct{}, pressedMax)}
	if p.PerSecond > 0 {
		press.open(ctx)
	} else {
		press.closed(ctx)
	}
	press.calling.Wait()
	return press.all
}

type press struct {
	Pressure
	client  *cluster.Client
	began   time.Time
	free    chan struct{}
	calling sync.WaitGroup

	mu  sync.Mutex
	all []Pressed
}

// closed has callers wait for one end before the next start.
func (p *press) closed(ctx context.Context) {
	for caller := range p.Callers {
		p.calling.Go(func() {
			for n := 0; time.Since(p.began) < p.For && ctx.Err() == nil; n++ {
				p.one(ctx, fmt.Sprintf("%s-%d-%d", p.Prefix, caller, n))
			}
		})
	}
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
	run, err := cluster.StartRun(ctx, p.client, brief, id, 0)
	if err == nil && p.Wait {
		_, err = run.Wait(ctx)
	}
	p.note(Pressed{At: begin.Sub(p.began), Took: time.Since(begin), Trouble: troubleOf(err)})
}

func troubleOf(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, cluster.ErrBusy):
		return Busy
	}
	return err.Error()
}

func (p *press) note(pressed Pressed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, pressed)
}
