package state

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// author writes random valid histories, keeping a simple model of its own of
// what the index has to say about them.
type author struct {
	w         *world
	instance  string
	execution uint64
	last      uint64
	running   bool
	suspended bool
	statusSet uint64
	parent    *operationRef
	// Of the latest run; 0 for runs before protocol 3.
	incarnation uint64
	open        map[uint64]int
	failed      map[uint64]uint32 // attempts, of open activities only
	stalled     string            // at what; empty if it goes on
	// Names are subscribed to and sent in such a way that the model needs no
	// rule: a name belongs to one subscription.
	subscribed map[uint64]string
	// What the latest append asks to chain.
	chains []chainedStart
}

// world is some authors and what stands between them.
type world struct {
	r       *rand.Rand
	m       *Machine
	authors []*author
	waiting map[string]operationRef // chained starts, by instance
	started uint64                  // runs; the first few have no incarnation
}

// incarnation returns that of the next run.
func (w *world) incarnation() uint64 {
	const without = 10
	w.started++
	return max(w.started, without) - without
}

func newWorld(t testing.TB, seed uint64, newMachine maker) *world {
	w := &world{r: rand.New(rand.NewPCG(seed, 1)), m: newMachine(t), waiting: map[string]operationRef{}}
	for i := range 6 {
		w.authors = append(w.authors, &author{w: w, instance: fmt.Sprintf("i-%d", i)})
	}
	return w
}

// step applies a random valid record.
func (w *world) step(t testing.TB) {
	t.Helper()
	a := w.authors[w.r.IntN(len(w.authors))]
	var err error
	switch w.r.IntN(20) {
	case 0:
		applyEpoch(t, w.m)
	case 1, 2:
		err = w.purge()
	case 3, 4, 5, 6:
		err = a.attempt()
	case 7, 8:
		err = a.condition()
	default:
		err = w.append(a)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) append(a *author) error {
	a.stalled = ""
	err := apply(w.m, a.instance, a.next()...)
	delete(w.waiting, a.instance)
	for _, c := range a.chains {
		exists := slices.ContainsFunc(w.authors, func(a *author) bool { return a.instance == c.target && a.execution > 0 })
		if _, waits := w.waiting[c.target]; !exists && !waits {
			w.waiting[c.target] = c.ref
		}
	}
	return err
}

// purge purges two authors, or what it can of them, and one who never was.
func (w *world) purge() error {
	ids, want := []string{"nobody"}, uint64(0)
	for range 2 {
		a := w.authors[w.r.IntN(len(w.authors))]
		ids = append(ids, a.instance)
		if a.execution > 0 && !a.running {
			*a = author{w: w, instance: a.instance}
			want++
		}
	}
	purged, err := purge(w.m, ids...)
	if err == nil && purged != want {
		return fmt.Errorf("%d of %v purged, want %d", purged, ids, want)
	}
	return err
}

// attempt fails an attempt of an open activity, if there is one.
func (a *author) attempt() error {
	for _, id := range a.openIDs() {
		if a.running && a.open[id] == journalpb.ArmActivityScheduled && a.w.r.IntN(2) == 0 {
			a.failed[id] += uint32(a.w.r.IntN(3))
			return applyAttempt(a.w.m, a.instance, a.execution, id, a.failed[id])
		}
	}
	return nil
}

// condition has the instance stall, or go on; one that has gone on otherwise is left as it
// is.
func (a *author) condition() error {
	stalled := []string{"", "here", "there"}[a.w.r.IntN(3)]
	late := uint64(a.w.r.IntN(4) / 3)
	err := applyCondition(a.w.m, a.w.m.Epoch(), a.instance, a.incarnation, a.execution, a.last-late, stalled)
	if !a.running || late > 0 {
		var conflict *ConflictError
		if !errors.As(err, &conflict) {
			return fmt.Errorf("a condition of what has gone on: %w", err)
		}
		return nil
	}
	a.stalled = stalled
	return err
}

// next returns the segments of a next valid append.
func (a *author) next() []*journalpb.Segment {
	a.chains = nil
	if !a.running {
		return []*journalpb.Segment{a.begin()}
	}
	first := a.last + 1
	var events []*journalpb.Event
	for range 1 + a.w.r.IntN(4) {
		a.last++
		events = append(events, a.event())
	}
	switch a.w.r.IntN(12) {
	case 0:
		a.running, a.suspended = false, false
		a.last++
		return []*journalpb.Segment{segmentOf(a.execution, first, append(events, completed())...)}
	case 1:
		s := segmentOf(a.execution, first, append(events, continued())...)
		return []*journalpb.Segment{s, a.begin()}
	}
	return []*journalpb.Segment{segmentOf(a.execution, first, events...)}
}

// begin writes the first event of an execution: of a new run, sometimes as a
// child of another author.
func (a *author) begin() *journalpb.Segment {
	start := started(a.instance)
	if !a.running {
		a.parent, a.incarnation = nil, a.w.incarnation()
		for _, other := range a.w.authors {
			for _, id := range other.openIDs() {
				if other.running && other.open[id] == journalpb.ArmSubOrchestrationScheduled && a.w.r.IntN(2) == 0 {
					a.parent = &operationRef{other.instance, other.execution, id, other.incarnation}
					start = startedBy(other.instance, other.execution, id)
					start.GetOrchestrationStarted().Parent.Incarnation = other.incarnation
				}
			}
		}
	}
	start.GetOrchestrationStarted().Incarnation = a.incarnation
	a.execution++
	a.last, a.running, a.suspended, a.statusSet = 1, true, false, 0
	a.open, a.failed, a.subscribed = map[uint64]int{}, map[uint64]uint32{}, map[uint64]string{}
	return segmentOf(a.execution, 1, start)
}

func (a *author) event() *journalpb.Event {
	if len(a.open) > 0 && a.w.r.IntN(2) == 0 {
		return a.completion()
	}
	switch a.w.r.IntN(8) {
	case 0, 1:
		a.open[a.last] = journalpb.ArmActivityScheduled
		return activity()
	case 2:
		a.open[a.last] = journalpb.ArmTimerCreated
		return timer(int64(a.last) * 7)
	case 3:
		a.open[a.last] = journalpb.ArmSubOrchestrationScheduled
		return child(a.instance + "-child")
	case 4:
		target := fmt.Sprintf("i-%d", a.w.r.IntN(2*len(a.w.authors)))
		a.chains = append(a.chains, chainedStart{ref: operationRef{a.instance, a.execution, a.last, a.incarnation}, target: target})
		return chained(target)
	case 5:
		return a.lifecycle()
	}
	return a.subscription()
}

func (a *author) lifecycle() *journalpb.Event {
	switch a.w.r.IntN(3) {
	case 0:
		a.suspended = true
		return suspended()
	case 1:
		a.suspended = false
		return resumed()
	}
	a.statusSet = a.last
	return statusSet()
}

func (a *author) subscription() *journalpb.Event {
	name := string(rune('a'+a.last%26)) + a.instance
	for _, taken := range a.subscribed {
		if taken == name {
			a.open[a.last] = journalpb.ArmActivityScheduled
			return activity()
		}
	}
	a.open[a.last], a.subscribed[a.last] = journalpb.ArmExternalSubscribed, name
	return subscribed(name)
}

func (a *author) completion() *journalpb.Event {
	ids := a.openIDs()
	id := ids[a.w.r.IntN(len(ids))]
	kind := a.open[id]
	delete(a.open, id)
	delete(a.failed, id)
	if a.w.r.IntN(4) == 0 {
		return cancelled(id)
	}
	switch kind {
	case journalpb.ArmActivityScheduled:
		return activityDone(id)
	case journalpb.ArmTimerCreated:
		return timerFired(id)
	case journalpb.ArmSubOrchestrationScheduled:
		return childDone(id)
	}
	return arrival(a.subscribed[id])
}

func (a *author) openIDs() []uint64 { return slices.Sorted(maps.Keys(a.open)) }

// orphaned is what the model says of a child.
func (a *author) orphaned() bool {
	if !a.running || a.parent == nil {
		return false
	}
	for _, p := range a.w.authors {
		if p.instance == a.parent.instance && p.running && p.execution == a.parent.execution && p.incarnation == a.parent.incarnation {
			return p.open[a.parent.event] != journalpb.ArmSubOrchestrationScheduled
		}
	}
	return true
}

// want is what the index has to say, by the model.
func (w *world) want() []string {
	var all []string
	for _, a := range w.authors {
		if a.execution == 0 {
			continue
		}
		all = append(all, fmt.Sprintf("%s/%d %d.%d running %v suspended %v status %d", a.instance, a.incarnation, a.execution, a.last, a.running, a.suspended, a.statusSet))
		if a.stalled != "" {
			all = append(all, "held "+a.instance+" "+a.stalled)
		}
		if a.running && a.last == 1 {
			all = append(all, "unbegun "+a.instance)
		}
		if a.orphaned() {
			all = append(all, "orphan "+a.instance)
		}
		for id, kind := range a.open {
			if a.running {
				all = append(all, fmt.Sprintf("open %s/%d/%d kind %d failed %d", a.instance, a.incarnation, id, kind, a.failed[id]))
			}
		}
	}
	for target, ref := range w.waiting {
		all = append(all, fmt.Sprintf("chained %s by %v", target, ref))
	}
	slices.Sort(all)
	return all
}

// got is the same as the machine says it.
func (w *world) got() []string {
	var all []string
	for in := range w.m.Instances() {
		all = append(all, fmt.Sprintf("%s/%d %d.%d running %v suspended %v status %d", in.Instance, in.Incarnation, in.Execution, in.LastEventId,
			in.Status == journalpb.Status_STATUS_RUNNING, in.Suspended, in.StatusEventId))
	}
	for in := range w.m.Unbegun() {
		all = append(all, "unbegun "+in.Instance)
	}
	for in := range w.m.Held() {
		all = append(all, "held "+in.Instance+" "+in.Condition.GetSource())
	}
	for in := range w.m.Orphans() {
		all = append(all, "orphan "+in.Instance)
	}
	for op := range w.m.Open() {
		all = append(all, fmt.Sprintf("open %s/%d/%d kind %d failed %d", op.Ref.Instance, op.Ref.Incarnation, op.Ref.EventId, op.Kind, op.Attempt.GetFailed()))
	}
	for c := range w.m.Chained() {
		ref := refOf(c.Ref)
		all = append(all, fmt.Sprintf("chained %s by %v", c.Chained.Instance, ref))
	}
	slices.Sort(all)
	return all
}

// check compares the index with the model, and the sets with the instances that
// belong there.
func (w *world) check(t testing.TB) {
	t.Helper()
	if got, want := w.got(), w.want(); !slices.Equal(got, want) {
		t.Fatalf("the index\n\t%s\nthe model\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
	w.m.mu.RLock()
	defer w.m.mu.RUnlock()
	for id, in := range w.m.instances {
		is := in.memberships()
		if (w.m.busy[id] != nil) != is.busy || (w.m.unbegun[id] != nil) != is.unbegun || (w.m.children[id] != nil) != is.child ||
			(w.m.held[id] != nil) != is.held {
			t.Fatalf("%s is not in the sets where it belongs", id)
		}
		if want := in.sortedAttempts(); len(want) != len(in.attempts) {
			t.Fatalf("%s keeps attempts of what is closed", id)
		}
	}
	for _, set := range []map[string]*instance{w.m.busy, w.m.unbegun, w.m.children, w.m.held} {
		for id := range set {
			if w.m.instances[id] != set[id] {
				t.Fatalf("%s is in a set and nowhere else", id)
			}
		}
	}
}
