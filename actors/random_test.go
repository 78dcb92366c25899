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
	"github.com/tenuto-dev/tenuto/actors/activity"
	"github.com/tenuto-dev/tenuto/internal/shorttest"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

var programSeed = flag.Uint64("program-seed", 0, "run TestRandomPrograms with this seed alone")

// TestRandomPrograms runs random orchestrations on real actors: undisturbed, then with each
// disturbance. The journal must keep the rules (random_rules_test.go), and a settled program must
// return the same result.
//
// The programs differ from those of the test of the same name in package replay. Those record
// everything that the engine shows them, including the time, and get messages from the test. These
// have real activities, children that are programs, and senders, and half of them must return the
// same result with any delays.
func TestRandomPrograms(t *testing.T) {
	if *programSeed != 0 {
		runProgram(t, *programSeed)
		return
	}
	seeds := uint64(shorttest.Cases(800))
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
	{"undisturbed", func(w *world) { w.lossless = true }},
	{"crash again and again", (*world).crashRepeatedly},
	{"crash once", (*world).crashOnce},
	{"passivation", (*world).evictAll},
	{"other order", (*world).reorder},
	{"rejections", (*world).reject},
}

// runProgram runs the program of a seed. How far the nodes of a crashed run get depends on the
// scheduler, so reproducing a failure may take several runs.
func runProgram(t *testing.T, seed uint64) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("again with: go test ./actors -run TestRandomPrograms -program-seed %d", seed)
		}
	}()
	var first *world
	for variant, d := range disturbances {
		inVirtualTime(t, func(t *testing.T) {
			w := newWorld(t, seed, uint64(variant))
			if first != nil {
				w.appends = first.appends
			}
			w.run(d)
			if first == nil {
				first = w
			} else if !w.nondeterministic && w.outcome != first.outcome {
				t.Errorf("returned\n\t%s\nwant, as undisturbed,\n\t%s", w.outcome, first.outcome)
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

// An ending is how a settled program ends, if not by itself. Wild programs choose at random.
type ending int

const (
	byItself   ending = iota
	atDeadline        // canceled at its deadline, which it waits for at the latest
	replaced          // terminated by a start with its ID; the last such run ends by itself
)

// A world is the environment of a program in one run.
type world struct {
	t                *testing.T
	seed             uint64
	nondeterministic bool
	ending           ending
	lossless         bool // nothing is rejected or lost
	withoutOperator  bool // no operator acts on operations
	journal          *testJournal
	config           actors.Config
	calls            atomic.Int64
	clients          sync.WaitGroup // senders, and goroutines that complete activities

	mu              sync.Mutex
	random          *rand.Rand    // of the outside
	activityTimeMax time.Duration // the longest time that an activity takes
	node            *node         // the leader
	zombie          *node         // an earlier leader that does not know it yet
	sent            []string      // the request IDs of recorded messages
	lastStart       string        // the request ID of the latest start of the root
	replacing       bool          // another start of the root follows

	appendsUntilCrash func() int // how many appends until the next crash; nil: none
	appends           int        // of the undisturbed run
	historyLoads      int        // of histories
	incarnations      bool       // runs have them
	onAttempt         func(*replay.Attempt)
	outcome           string
}

func newWorld(t *testing.T, seed, variant uint64) *world {
	w := &world{t: t, seed: seed, nondeterministic: seed%2 == 0, journal: newTestJournal(), activityTimeMax: 300 * time.Millisecond,
		random: rand.New(rand.NewPCG(seed, variant))}
	if !w.nondeterministic {
		w.ending = []ending{byItself, atDeadline, byItself, replaced, byItself}[seed/2%5]
	}
	return w
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

func (w *world) sideEffect() (int64, error) { return w.calls.Add(1), nil }

// run runs the program to its end and checks the journal.
func (w *world) run(d disturbance) {
	d.begin(w)
	w.lead()
	if w.config.ResidentMax != 0 {
		w.deliver(decoyID, startOf(w.t, lingerHandle.Name(), ""))
	}
	w.clients.Go(w.start)
	w.runToEnd()
	w.clients.Wait()
	if w.config.ResidentMax != 0 {
		w.deliver(decoyID, terminatedEvent())
	}
	w.leader().partition.Close()
	w.closeZombie()
	checkAll(w.t, w.journal.Machine, w.registry())
	w.checkSent()
	w.checkEnding()
	w.appends = len(w.journal.committedAppends())
	if w.config.ResidentMax != 0 && w.historyLoads < (w.appends-10)/2 {
		w.t.Errorf("%d loads and %d appends: instances stay in memory", w.historyLoads, w.appends)
	}
	if w.t.Failed() {
		w.logHistories()
	}
}

func (w *world) registry() *engine.Registry {
	registry, err := engine.NewRegistry(w.definitions()...)
	if err != nil {
		w.t.Fatal(err)
	}
	return registry
}

// lead makes a node, new or not, the leader until its crash.
func (w *world) lead() {
	if w.appendsUntilCrash != nil {
		if appends := w.appendsUntilCrash(); appends > 0 {
			w.journal.crashAt(appends, w.intn(2) == 0)
		}
	}
	var n *node
	if before := w.leader(); before != nil && w.intn(10) > 0 {
		n = before.leadAgain() // much cheaper
	} else {
		if w.incarnations {
			n = leadWithIncarnations(w.t, w.journal, w.config, w.definitions()...)
		} else {
			n = lead(w.t, w.journal, w.config, w.definitions()...)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.node = n
}

// runToEnd continues until all instances have ended, with another node after each crash.
func (w *world) runToEnd() {
	for limit := time.Now().Add(4 * forever); !w.isQuiescent(); {
		if time.Now().After(limit) {
			w.t.Errorf("the program does not end")
			w.logHistories()
			w.t.FailNow()
		}
		changed := w.journal.changes()
		if isCrashed(w.journal) {
			w.replaceLeader()
			continue
		}
		select {
		case <-changed:
		case <-time.After(time.Minute):
		}
	}
}

// replaceLeader makes another node the leader after one that crashed, or that will learn only
// later that it no longer leads.
func (w *world) replaceLeader() {
	time.Sleep(time.Duration(w.intn(3)) * 100 * time.Millisecond)
	w.closeZombie()
	if w.intn(3) == 0 {
		w.mu.Lock()
		w.zombie = w.node
		w.mu.Unlock()
	} else {
		w.leader().partition.Close()
	}
	w.journal.clearCrash()
	w.lead()
}

func (w *world) closeZombie() {
	w.mu.Lock()
	zombie := w.zombie
	w.zombie = nil
	w.mu.Unlock()
	if zombie != nil {
		zombie.partition.Close()
	}
}

// isQuiescent reports whether nothing more will happen.
func (w *world) isQuiescent() bool {
	if !w.allEnded() {
		return false
	}
	time.Sleep(10 * time.Second) // the start of a child may be in flight
	return w.allEnded()
}

// allEnded reports whether all existing instances have ended.
func (w *world) allEnded() bool {
	if _, ok := w.journal.Instance(rootID); !ok || w.isReplacing() {
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

// crashRepeatedly ends a node after each k-th append.
func (w *world) crashRepeatedly() {
	k := 1 + int(w.seed/2)%4
	w.appendsUntilCrash = func() int { return k }
}

// crashOnce ends one node; over many programs, after every append there is.
func (w *world) crashOnce() {
	crashes := 0
	w.appendsUntilCrash = func() int {
		if crashes++; crashes > 1 {
			return 0
		}
		return 1 + w.intn(w.appends)
	}
}

// decoyID is the ID of the instance that stays in memory so that others are evicted.
const decoyID = "decoy"

// evictAll evicts every instance after each of its turns.
func (w *world) evictAll() {
	w.lossless, w.config.ResidentMax = true, 1
	w.journal.configure(func(j *testJournal) {
		j.corruptEvents = func(instance string) iter.Seq2[*journalpb.Event, error] {
			if instance != decoyID {
				w.historyLoads++
			}
			return nil
		}
		j.afterApply = func(a *journalpb.Append) error {
			if a.Instance != decoyID {
				time.AfterFunc(time.Millisecond, func() {
					w.leader().deliver(decoyID, actors.Message{Query: &actors.Query{Name: "are you there"}})
				})
			}
			return nil
		}
	})
}

// reorder delays some activities and commits, and bounds the turns in flight tightly, so that more
// messages form one batch; it also sends more messages.
func (w *world) reorder() {
	w.lossless, w.activityTimeMax = true, 5*time.Second
	w.config.TurnsMax = 1 + int(w.seed/2)%3
	appends := 0
	w.journal.configure(func(j *testJournal) {
		j.commitDelay = func() time.Duration { return time.Duration(w.intn(300)) * time.Millisecond }
		j.afterApply = func(a *journalpb.Append) error {
			if appends++; a.Instance == rootID && appends < 100 {
				w.sendNoise(appends)
			}
			return nil
		}
	})
}

// reject rejects one append in four, and one attempt.
func (w *world) reject() {
	w.journal.configure(func(j *testJournal) {
		j.check = func(*journalpb.Append) error {
			if w.intn(4) == 0 {
				return errRejected
			}
			return nil
		}
		j.rejectAttempts = 3
	})
}

// --- what is outside ---

func (w *world) step(ctx context.Context, s step) (string, error) {
	info := replay.ActivityInfo(ctx)
	w.checkAttemptStart(info)
	delay := time.Duration(w.intn(int(w.activityTimeMax)))
	hangs := s.Hangs && info.Number <= s.Fails
	if s.Never || hangs {
		delay = 2 * forever
	}
	for ; delay > 0; delay -= time.Second {
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(min(delay, time.Second)):
		}
		if !hangs {
			_ = replay.Heartbeat(ctx, int64(delay))
		}
	}
	switch {
	case info.Number <= s.Fails:
		return "", errors.New("not at this attempt")
	case s.Pending:
		w.clients.Go(func() { w.complete(info, s) })
		return "", replay.ErrResultPending
	case s.Final:
		return "", replay.NonRetryable(errors.New(s.Path))
	}
	return s.Path, nil
}

// checkAttemptStart checks that an attempt may begin: the call is recorded, and the record of this
// attempt does not say that it has progressed further.
func (w *world) checkAttemptStart(a *replay.Attempt) {
	scheduled, err := w.journal.Event(a.Instance, a.Execution, a.EventID)
	if err != nil || scheduled.GetActivityScheduled() == nil {
		w.t.Errorf("%s began before it was recorded: %v, %v", a.IdempotencyKey(), scheduled, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.onAttempt != nil {
		w.onAttempt(a)
	}
	if w.zombie != nil {
		return // which does not know what is recorded
	}
	for open := range w.journal.InstanceOperations(a.Instance) {
		if open.Ref.EventId != a.EventID || open.Ref.Execution != a.Execution {
			continue
		}
		retained := open.Attempt
		if failed := int(retained.GetFailed()); failed >= a.Number || retained.GetPending() && failed == a.Number-1 {
			w.t.Errorf("attempt %d of %s begins again: %v", a.Number, a.IdempotencyKey(), retained)
		} else if w.lossless && failed != a.Number-1 {
			w.t.Errorf("attempt %d of %s begins, but the record is %v", a.Number, a.IdempotencyKey(), retained)
		}
	}
}

func (w *world) complete(a *replay.Attempt, s step) {
	time.Sleep(time.Duration(w.intn(int(w.activityTimeMax))))
	result := payload(w.t, s.Path)
	for {
		done := make(chan error, 1)
		w.leader().partition.CompleteActivity(activity.Completion{
			Ref:     &journalpb.OperationRef{Instance: a.Instance, Incarnation: a.Incarnation, Execution: a.Execution, EventId: a.EventID},
			Attempt: a.Number,
			Result:  result,
		}, func(err error) { done <- err })
		select {
		case err := <-done:
			if err == nil || errors.Is(err, activity.ErrClosed) {
				return
			}
		case <-time.After(time.Second): // that node has lost leadership, and does not know
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// start starts the program, and then its senders.
func (w *world) start() {
	replaces := w.ending == replaced || w.nondeterministic && w.intn(3) == 0
	w.setReplacing(replaces)
	w.deliver(rootID, w.rootStart("start", rootID))
	if replaces {
		w.clients.Go(w.replace)
	}
	for _, name := range []string{"main", "side"} {
		w.clients.Go(func() { w.sendAll(name) })
	}
	w.clients.Go(w.suspend)
	if !w.withoutOperator {
		w.clients.Go(w.operate)
	}
	if w.nondeterministic && w.intn(3) == 0 {
		w.clients.Go(w.end)
	}
}

// rootStart returns a start of the root, whose deadline is during the program, after it, or none.
func (w *world) rootStart(requestID, path string) *journalpb.Event {
	event := startOf(w.t, programHandle.Name(), plan{
		Seed: w.seed, Nondeterministic: w.nondeterministic, Path: path, Depth: 2, AtDeadline: w.ending == atDeadline,
	})
	started := event.GetOrchestrationStarted()
	started.RequestId = requestID
	switch {
	case w.ending == atDeadline, w.nondeterministic && w.intn(3) == 0:
		started.Deadline = time.Now().Add(time.Duration(w.intn(15_000)) * time.Millisecond).UnixNano()
	case w.intn(3) == 0:
		started.Deadline = time.Now().Add(100 * forever).UnixNano()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lastStart = requestID
	return event
}

// replace starts the root again once or twice, terminating the run that it finds.
func (w *world) replace() {
	for i := range 1 + w.seed/16%2 {
		time.Sleep(time.Duration(w.intn(8000)) * time.Millisecond)
		name := fmt.Sprint("again-", i)
		w.deliverMessage(rootID, actors.Message{Message: engine.Message{Event: w.rootStart(name, name)}, Reuse: actors.ReuseTerminating})
	}
	w.setReplacing(false)
}

func (w *world) setReplacing(replacing bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.replacing = replacing
}

func (w *world) isReplacing() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.replacing
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

func (w *world) send(name string, value int) (consumed bool) {
	request := fmt.Sprint(name, value)
	consumed = w.deliver(rootID, &journalpb.Event{Body: &journalpb.Event_ExternalEvent{
		ExternalEvent: &journalpb.ExternalEvent{Name: name, Data: payload(w.t, value), RequestId: request},
	}})
	if consumed {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.sent = append(w.sent, request)
	}
	return consumed
}

// sendNoise sends an event that no code waits for.
func (w *world) sendNoise(value int) {
	w.clients.Go(func() {
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

// deliver delivers an event to the current leader until it is taken. It is not taken if the
// instance has ended.
func (w *world) deliver(id string, event *journalpb.Event) (consumed bool) {
	return w.deliverMessage(id, actors.Message{Message: engine.Message{Event: event}})
}

func (w *world) deliverMessage(id string, m actors.Message) (consumed bool) {
	event := m.Event
	for {
		m.Event = proto.CloneOf(event)
		err := w.leader().deliver(id, m).get().Err
		if err == nil || errors.Is(err, actors.ErrEnded) {
			return err == nil
		}
		time.Sleep(time.Second)
	}
}

// --- what is left ---

// checkSent checks that every message taken is recorded in some execution, and how the program has
// ended.
func (w *world) checkSent() {
	recorded := make(map[string]bool)
	meta, _ := w.journal.Instance(rootID)
	for number := range meta.Execution {
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

// checkEnding checks that the last start of the root has begun its last run, and that a program
// that ends at its deadline is canceled for that reason.
func (w *world) checkEnding() {
	meta, _ := w.journal.Instance(rootID)
	if meta.RequestId != w.lastStart {
		w.t.Errorf("the last run was begun by %q, not %q", meta.RequestId, w.lastStart)
	}
	canceled := &journalpb.OrchestrationCanceled{Reason: engine.DeadlineReason}
	want := outcomeOf(&journalpb.Event{Body: &journalpb.Event_OrchestrationCanceled{OrchestrationCanceled: canceled}})
	if w.ending == atDeadline && w.outcome != want {
		w.t.Errorf("ended with\n\t%s\nwant\n\t%s", w.outcome, want)
	}
}

// outcomeOf describes how an execution has ended, without where, which may differ.
func outcomeOf(last *journalpb.Event) string {
	failure := last.GetOrchestrationFailed().GetError()
	return fmt.Sprint(last.Type(), " ", string(last.GetOrchestrationCompleted().GetOutput().GetData()), failure.GetCode(), failure.GetMessage(),
		last.GetOrchestrationCanceled().GetReason())
}

func (w *world) logHistories() {
	for instance := range w.journal.Instances() {
		w.t.Logf("%s is %v:", instance.Instance, instance.Status)
		for number := range instance.Execution {
			for event := range w.journal.Events(instance.Instance, number+1, 1) {
				w.t.Logf("\t%d %d\t%s of %d at %v", number+1, event.EventId, engine.Describe(event), event.SourceEventId, time.Unix(0, event.Timestamp).UTC().Format(time.TimeOnly+".000"))
			}
		}
	}
}
