package actors_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"iter"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

var programSeed = flag.Uint64("program-seed", 0, "run TestRandomPrograms with this seed alone")

// TestRandomPrograms runs random orchestrations on real actors: undisturbed,
// then with each of the disturbances. What they leave in the journal keeps the
// rules (random_rules_test.go), and a settled program comes to the same.
//
// The programs have little in common with those of the test of the same name
// in package replay. Those note whatever the engine shows them, down to the
// time, and are given messages by the test; these have real activities,
// children that are programs, and senders, and half of them must come to the
// same result however all that is delayed.
func TestRandomPrograms(t *testing.T) {
	if *programSeed != 0 {
		runProgram(t, *programSeed)
		return
	}
	seeds := uint64(400)
	switch {
	case testing.Short():
		seeds = 50
	case raceEnabled:
		seeds = 150
	}
	shards := uint64(runtime.GOMAXPROCS(0))
	for shard := range shards {
		t.Run(fmt.Sprint(shard), func(t *testing.T) {
			t.Parallel()
			for seed := shard + 1; seed <= seeds && !t.Failed(); seed += shards {
				runProgram(t, seed)
			}
		})
	}
}

// A disturbance is what happens to a run.
type disturbance struct {
	name  string
	begin func(*world)
}

var disturbances = []disturbance{
	{"undisturbed", func(w *world) { w.quiet = true }},
	{"crash again and again", (*world).crashAgainAndAgain},
	{"crash once", (*world).crashOnce},
	{"passivation", (*world).passivate},
	{"other order", (*world).reorder},
	{"refusals", (*world).refuse},
}

// runProgram runs the program that a seed stands for. How far the nodes of a
// crashed run come depends on the scheduler: a failure may need more than one
// more run to be seen again.
func runProgram(t *testing.T, seed uint64) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("again with: go test ./actors -run TestRandomPrograms -program-seed %d", seed)
		}
	}()
	var first *world
	for variant, d := range disturbances {
		virtually(t, func(t *testing.T) {
			w := newWorld(t, seed, uint64(variant))
			if first != nil {
				w.appends = first.appends
			}
			w.run(d)
			if first == nil {
				first = w
			} else if !w.wild && w.outcome != first.outcome {
				t.Errorf("came to\n\t%s\nand not, as undisturbed, to\n\t%s", w.outcome, first.outcome)
			}
			if t.Failed() {
				t.Logf("disturbance: %s", d.name)
			}
		})
		if t.Failed() {
			return
		}
	}
}

// A world is what is around a program in one run.
type world struct {
	t       *testing.T
	seed    uint64
	wild    bool
	quiet   bool // nothing is refused or lost
	journal *testJournal
	config  actors.Config
	calls   atomic.Int64
	outside sync.WaitGroup // senders, and those who complete activities

	mu     sync.Mutex
	random *rand.Rand    // of the outside
	slow   time.Duration // the longest time that an activity takes
	node   *node         // that leads
	zombie *node         // that has led before, and does not know of its end yet
	sent   []string      // the request IDs of messages that were taken

	reign   func() int // how many appends until the next crash; nil: none
	appends int        // of the undisturbed run
	loads   int        // of histories
	outcome string
}

func newWorld(t *testing.T, seed, variant uint64) *world {
	return &world{t: t, seed: seed, wild: seed%2 == 0, journal: newTestJournal(), slow: 300 * time.Millisecond,
		random: rand.New(rand.NewPCG(seed, variant))}
}

func (w *world) definitions() []replay.Definition {
	return []replay.Definition{programHandle.Bind(w.program), lingerHandle.Bind(linger), stepHandle.Bind(w.step)}
}

func (w *world) intn(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.random.IntN(n)
}

func (w *world) leader() *node {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.node
}

func (w *world) once() (int64, error) { return w.calls.Add(1), nil }

// run runs the program to its end and judges what it leaves.
func (w *world) run(d disturbance) {
	d.begin(w)
	w.lead()
	if w.config.ResidentMax != 0 {
		w.deliver(decoyID, startOf(w.t, lingerHandle.Name(), ""))
	}
	w.outside.Go(w.start)
	w.live()
	w.outside.Wait()
	if w.config.ResidentMax != 0 {
		w.deliver(decoyID, terminatedEvent())
	}
	w.leader().partition.Close()
	w.retire()
	checkAll(w.t, w.journal.Machine, w.registry())
	w.checkSent()
	w.appends = len(w.journal.committed())
	if w.config.ResidentMax != 0 && w.loads < (w.appends-10)/2 {
		w.t.Errorf("%d loads and %d appends: instances stay in memory", w.loads, w.appends)
	}
	if w.t.Failed() {
		w.tellHistories()
	}
}

func (w *world) registry() *replay.Registry {
	registry, err := replay.NewRegistry(w.definitions()...)
	if err != nil {
		w.t.Fatal(err)
	}
	return registry
}

// lead gives the lead to a node, new or not, until its crash.
func (w *world) lead() {
	if w.reign != nil {
		if appends := w.reign(); appends > 0 {
			w.journal.crashAt(appends, w.intn(2) == 0)
		}
	}
	var n *node
	if before := w.leader(); before != nil && w.intn(10) > 0 {
		n = before.again() // much cheaper
	} else {
		n = lead(w.t, w.journal, w.config, w.definitions()...)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.node = n
}

// live goes on until all instances have ended, with another node after each
// crash.
func (w *world) live() {
	for limit := time.Now().Add(4 * forever); !w.settled(); {
		if time.Now().After(limit) {
			w.t.Errorf("no end in sight")
			w.tellHistories()
			w.t.FailNow()
		}
		changed := w.journal.onChange()
		if crashed(w.journal) {
			w.succeed()
			continue
		}
		select {
		case <-changed:
		case <-time.After(time.Minute):
		}
	}
}

// succeed lets another node take the lead from one that has crashed, or that
// will learn only later that it does not lead any more.
func (w *world) succeed() {
	time.Sleep(time.Duration(w.intn(3)) * 100 * time.Millisecond)
	w.retire()
	if w.intn(3) == 0 {
		w.mu.Lock()
		w.zombie = w.node
		w.mu.Unlock()
	} else {
		w.leader().partition.Close()
	}
	w.journal.mend()
	w.lead()
}

// retire closes the node that led before.
func (w *world) retire() {
	w.mu.Lock()
	zombie := w.zombie
	w.zombie = nil
	w.mu.Unlock()
	if zombie != nil {
		zombie.partition.Close()
	}
}

// settled tells whether nothing will happen any more.
func (w *world) settled() bool {
	if !w.over() {
		return false
	}
	time.Sleep(10 * time.Second) // the start of a child may be on its way
	return w.over()
}

// over tells whether all instances have ended that there are.
func (w *world) over() bool {
	if _, ok := w.journal.Instance(rootID); !ok {
		return false
	}
	for instance := range w.journal.Instances() {
		if instance.Status == journalpb.Status_STATUS_RUNNING && instance.Instance != decoyID {
			return false
		}
	}
	for range w.journal.Chained() {
		return false
	}
	return true
}

// --- disturbances ---

// crashAgainAndAgain ends a node after each k-th append.
func (w *world) crashAgainAndAgain() {
	k := 1 + int(w.seed/2)%4
	w.reign = func() int { return k }
}

// crashOnce ends one node: over many programs, after every append there is.
func (w *world) crashOnce() {
	crashes := 0
	w.reign = func() int {
		if crashes++; crashes > 1 {
			return 0
		}
		return 1 + w.intn(w.appends)
	}
}

// decoyID is the ID of an instance that is in memory in place of the others.
const decoyID = "decoy"

// passivate has every instance dropped from memory after each of its turns.
func (w *world) passivate() {
	w.quiet, w.config.ResidentMax = true, 1
	w.journal.set(func(j *testJournal) {
		j.garble = func(instance string) iter.Seq2[*journalpb.Event, error] {
			if instance != decoyID {
				w.loads++
			}
			return nil
		}
		j.after = func(a *journalpb.Append) error {
			if a.Instance != decoyID {
				time.AfterFunc(time.Millisecond, func() {
					w.leader().deliver(decoyID, actors.Message{Query: &actors.Query{Name: "are you there"}})
				})
			}
			return nil
		}
	})
}

// reorder makes some activities and commits slower than others, and lets few
// turns be on their way, so that more comes in one batch; and has more come.
func (w *world) reorder() {
	w.quiet, w.slow = true, 5*time.Second
	w.config.TurnsMax = 1 + int(w.seed/2)%3
	appends := 0
	w.journal.set(func(j *testJournal) {
		j.pace = func() time.Duration { return time.Duration(w.intn(300)) * time.Millisecond }
		j.after = func(a *journalpb.Append) error {
			if appends++; a.Instance == rootID && appends < 100 {
				w.crowd(appends)
			}
			return nil
		}
	})
}

// refuse refuses one append in four, and one attempt.
func (w *world) refuse() {
	w.journal.set(func(j *testJournal) {
		j.judge = func(*journalpb.Append) error {
			if w.intn(4) == 0 {
				return errRefused
			}
			return nil
		}
		j.refuseAttempts = 3
	})
}

// --- what is outside ---

// step is the body of an activity.
func (w *world) step(ctx context.Context, s step) (string, error) {
	info := replay.ActivityInfo(ctx)
	w.begins(info)
	pause := time.Duration(w.intn(int(w.slow)))
	hangs := s.Hangs && info.Number <= s.Fails
	if s.Never || hangs {
		pause = 2 * forever
	}
	for ; pause > 0; pause -= time.Second {
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(min(pause, time.Second)):
		}
		if !hangs {
			_ = replay.Heartbeat(ctx, int64(pause))
		}
	}
	switch {
	case info.Number <= s.Fails:
		return "", errors.New("not at this attempt")
	case s.Pending:
		w.outside.Go(func() { w.complete(info, s) })
		return "", replay.ErrPending
	case s.Final:
		return "", replay.NonRetryable(errors.New(s.Path))
	}
	return s.Path, nil
}

// begins looks whether an attempt may: the call is recorded, and nothing that is
// recorded of this attempt says that it has come further already.
func (w *world) begins(a *replay.Attempt) {
	scheduled, err := w.journal.Event(a.Instance, a.Execution, a.EventID)
	if err != nil || scheduled.GetActivityScheduled() == nil {
		w.t.Errorf("%s began before it was recorded: %v, %v", a.IdempotencyKey(), scheduled, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.zombie != nil {
		return // which does not know what is recorded
	}
	for open := range w.journal.OpenOf(a.Instance) {
		if open.Ref.EventId != a.EventID || open.Ref.Execution != a.Execution {
			continue
		}
		kept := open.Attempt
		if failed := int(kept.GetFailed()); failed >= a.Number || kept.GetPending() && failed == a.Number-1 {
			w.t.Errorf("attempt %d of %s begins again: %v", a.Number, a.IdempotencyKey(), kept)
		} else if w.quiet && failed != a.Number-1 {
			w.t.Errorf("attempt %d of %s begins, and recorded is %v", a.Number, a.IdempotencyKey(), kept)
		}
	}
}

// complete completes an activity from outside.
func (w *world) complete(a *replay.Attempt, s step) {
	time.Sleep(time.Duration(w.intn(int(w.slow))))
	result := payload(w.t, s.Path)
	for {
		done := make(chan error, 1)
		w.leader().partition.CompleteActivity(actors.Completion{
			Ref:     &journalpb.OperationRef{Instance: a.Instance, Execution: a.Execution, EventId: a.EventID},
			Attempt: a.Number,
			Result:  result,
		}, func(err error) { done <- err })
		select {
		case err := <-done:
			if err == nil || errors.Is(err, actors.ErrActivityClosed) {
				return
			}
		case <-time.After(time.Second): // that one has lost the lead, and does not know
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// start starts the program, and then those who send it messages.
func (w *world) start() {
	w.deliver(rootID, startOf(w.t, programHandle.Name(), plan{Seed: w.seed, Wild: w.wild, Path: rootID, Depth: 2}))
	for _, name := range []string{"main", "side"} {
		w.outside.Go(func() { w.sendAll(name) })
	}
	w.outside.Go(w.suspend)
	if w.wild && w.intn(3) == 0 {
		w.outside.Go(w.end)
	}
}

func startOf(t *testing.T, name string, input any) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{
		OrchestrationStarted: &journalpb.OrchestrationStarted{Name: name, Input: payload(t, input), RequestId: "start"},
	}}
}

func terminatedEvent() *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationTerminated{
		OrchestrationTerminated: &journalpb.OrchestrationTerminated{Reason: "enough"},
	}}
}

// sendAll sends all events of a name, one after the other.
func (w *world) sendAll(name string) {
	for i := range eventsEach {
		if w.intn(2) == 0 {
			time.Sleep(time.Duration(w.intn(3000)) * time.Millisecond)
		}
		if !w.send(name, i+1) {
			return
		}
	}
}

func (w *world) send(name string, value int) (taken bool) {
	request := fmt.Sprint(name, value)
	taken = w.deliver(rootID, &journalpb.Event{Body: &journalpb.Event_ExternalEvent{
		ExternalEvent: &journalpb.ExternalEvent{Name: name, Data: payload(w.t, value), RequestId: request},
	}})
	if taken {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.sent = append(w.sent, request)
	}
	return taken
}

// crowd sends an event that nobody waits for.
func (w *world) crowd(value int) {
	w.outside.Go(func() {
		time.Sleep(time.Duration(w.intn(300)) * time.Millisecond)
		w.send("noise", value)
	})
}

// suspend suspends the program and resumes it, now and then.
func (w *world) suspend() {
	for range w.intn(3) {
		time.Sleep(time.Duration(w.intn(5000)) * time.Millisecond)
		w.deliver(rootID, &journalpb.Event{Body: &journalpb.Event_OrchestrationSuspended{
			OrchestrationSuspended: &journalpb.OrchestrationSuspended{Reason: "wait"},
		}})
		time.Sleep(time.Duration(w.intn(3000)) * time.Millisecond)
		w.deliver(rootID, &journalpb.Event{Body: &journalpb.Event_OrchestrationResumed{
			OrchestrationResumed: &journalpb.OrchestrationResumed{Reason: "go on"},
		}})
	}
}

// end ends the program from outside.
func (w *world) end() {
	time.Sleep(time.Duration(w.intn(10_000)) * time.Millisecond)
	if w.intn(4) == 0 {
		w.deliver(rootID, terminatedEvent())
		return
	}
	w.deliver(rootID, &journalpb.Event{Body: &journalpb.Event_OrchestrationCancelRequested{
		OrchestrationCancelRequested: &journalpb.OrchestrationCancelRequested{Reason: "enough", RequestId: "cancel"},
	}})
}

// deliver delivers an event to whoever leads until it is taken. It is not if the
// instance has ended.
func (w *world) deliver(id string, event *journalpb.Event) (taken bool) {
	for {
		m := actors.Message{Message: replay.Message{Event: proto.CloneOf(event)}}
		err := w.leader().deliver(id, m).get().Err
		if err == nil || errors.Is(err, actors.ErrEnded) {
			return err == nil
		}
		time.Sleep(time.Second)
	}
}

// --- what is left ---

// checkSent looks for all that was taken, in all executions, and at how the
// program has ended.
func (w *world) checkSent() {
	recorded := make(map[string]bool)
	known, _ := w.journal.Instance(rootID)
	for number := range known.Execution {
		for event, err := range w.journal.Events(rootID, number+1, 1) {
			if err != nil {
				w.t.Fatal(err)
			}
			recorded[event.GetExternalEvent().GetRequestId()] = true
			w.outcome = outcomeOf(event)
		}
	}
	for _, request := range w.sent {
		if !recorded[request] {
			w.t.Errorf("the event %q was taken and is not recorded", request)
		}
	}
}

// outcomeOf says how an execution has ended, without what may differ: where.
func outcomeOf(last *journalpb.Event) string {
	failure := last.GetOrchestrationFailed().GetError()
	return fmt.Sprint(last.Type(), " ", string(last.GetOrchestrationCompleted().GetOutput().GetData()), failure.GetCode(), failure.GetMessage())
}

func (w *world) tellHistories() {
	for instance := range w.journal.Instances() {
		w.t.Logf("%s is %v:", instance.Instance, instance.Status)
		for number := range instance.Execution {
			for event := range w.journal.Events(instance.Instance, number+1, 1) {
				w.t.Logf("\t%d %d\t%s of %d at %v", number+1, event.EventId, replay.Describe(event), event.SourceEventId, time.Unix(0, event.Timestamp).UTC().Format(time.TimeOnly+".000"))
			}
		}
	}
}
