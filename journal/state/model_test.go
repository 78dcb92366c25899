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

// instanceModel writes random valid histories, and keeps a simple model of the expected index.
type instanceModel struct {
	model     *model
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
	stalled     string            // the source position; empty if it is not stalled
	// Each name belongs to one subscription, so the model needs no matching rule.
	subscribed map[uint64]string
	// What the latest append asks to chain.
	chainedStarts []chainedStart
}

// model is a set of instances and what connects them.
type model struct {
	r             *rand.Rand
	m             *Machine
	instances     []*instanceModel
	chainedStarts map[string]operationRef // by instance
	runs          uint64                  // the number of runs; the first few have no incarnation
}

// nextIncarnation returns the incarnation of the next run.
func (w *model) nextIncarnation() uint64 {
	const without = 10
	w.runs++
	return max(w.runs, without) - without
}

func newModel(t testing.TB, seed uint64, newMachine newMachineFunc) *model {
	w := &model{r: rand.New(rand.NewPCG(seed, 1)), m: newMachine(t), chainedStarts: map[string]operationRef{}}
	for i := range 6 {
		w.instances = append(w.instances, &instanceModel{model: w, instance: fmt.Sprintf("i-%d", i)})
	}
	return w
}

// step applies a random valid record.
func (w *model) step(t testing.TB) {
	t.Helper()
	a := w.instances[w.r.IntN(len(w.instances))]
	var err error
	switch w.r.IntN(20) {
	case 0:
		applyEpoch(t, w.m)
	case 1, 2:
		err = w.purge()
	case 3, 4, 5, 6:
		err = a.failAttempt()
	case 7, 8:
		err = a.setCondition()
	default:
		err = w.append(a)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (w *model) append(a *instanceModel) error {
	a.stalled = ""
	err := applyAppend(w.m, a.instance, a.nextAppend()...)
	delete(w.chainedStarts, a.instance)
	for _, c := range a.chainedStarts {
		exists := slices.ContainsFunc(w.instances, func(a *instanceModel) bool { return a.instance == c.target && a.execution > 0 })
		if _, waits := w.chainedStarts[c.target]; !exists && !waits {
			w.chainedStarts[c.target] = c.ref
		}
	}
	return err
}

// purge purges up to two instances that have ended, and one that never existed.
func (w *model) purge() error {
	ids, want := []string{"nobody"}, uint64(0)
	for range 2 {
		a := w.instances[w.r.IntN(len(w.instances))]
		ids = append(ids, a.instance)
		if a.execution > 0 && !a.running {
			*a = instanceModel{model: w, instance: a.instance}
			want++
		}
	}
	purged, err := purge(w.m, ids...)
	if err == nil && purged != want {
		return fmt.Errorf("%d of %v purged, want %d", purged, ids, want)
	}
	return err
}

// failAttempt fails an attempt of an open activity, if there is one.
func (a *instanceModel) failAttempt() error {
	for _, id := range a.openIDs() {
		if a.running && a.open[id] == journalpb.TypeActivityScheduled && a.model.r.IntN(2) == 0 {
			a.failed[id] += uint32(a.model.r.IntN(3))
			return applyAttempt(a.model.m, a.instance, a.execution, id, a.failed[id])
		}
	}
	return nil
}

// setCondition stalls the instance, or removes its condition. A condition of an instance that has
// proceeded is refused.
func (a *instanceModel) setCondition() error {
	stalled := []string{"", "here", "there"}[a.model.r.IntN(3)]
	late := uint64(a.model.r.IntN(4) / 3)
	err := applyCondition(a.model.m, a.model.m.Epoch(), a.instance, a.incarnation, a.execution, a.last-late, stalled)
	if !a.running || late > 0 {
		var conflict *ConflictError
		if !errors.As(err, &conflict) {
			return fmt.Errorf("a condition of an instance that has proceeded: %w", err)
		}
		return nil
	}
	a.stalled = stalled
	return err
}

// nextAppend returns the segments of a next valid append.
func (a *instanceModel) nextAppend() []*journalpb.Segment {
	a.chainedStarts = nil
	if !a.running {
		return []*journalpb.Segment{a.begin()}
	}
	first := a.last + 1
	var events []*journalpb.Event
	for range 1 + a.model.r.IntN(4) {
		a.last++
		events = append(events, a.nextEvent())
	}
	switch a.model.r.IntN(12) {
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

// begin writes the first event of an execution: of a new run, sometimes as a child.
func (a *instanceModel) begin() *journalpb.Segment {
	start := started(a.instance)
	if !a.running {
		a.parent, a.incarnation = nil, a.model.nextIncarnation()
		for _, other := range a.model.instances {
			for _, id := range other.openIDs() {
				if other.running && other.open[id] == journalpb.TypeSubOrchestrationScheduled && a.model.r.IntN(2) == 0 {
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

func (a *instanceModel) nextEvent() *journalpb.Event {
	if len(a.open) > 0 && a.model.r.IntN(2) == 0 {
		return a.completionEvent()
	}
	switch a.model.r.IntN(8) {
	case 0, 1:
		a.open[a.last] = journalpb.TypeActivityScheduled
		return activity()
	case 2:
		a.open[a.last] = journalpb.TypeTimerCreated
		return timer(int64(a.last) * 7)
	case 3:
		a.open[a.last] = journalpb.TypeSubOrchestrationScheduled
		return child(a.instance + "-child")
	case 4:
		target := fmt.Sprintf("i-%d", a.model.r.IntN(2*len(a.model.instances)))
		a.chainedStarts = append(a.chainedStarts, chainedStart{ref: operationRef{a.instance, a.execution, a.last, a.incarnation}, target: target})
		return chained(target)
	case 5:
		return a.lifecycleEvent()
	}
	return a.subscriptionEvent()
}

func (a *instanceModel) lifecycleEvent() *journalpb.Event {
	switch a.model.r.IntN(3) {
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

func (a *instanceModel) subscriptionEvent() *journalpb.Event {
	name := string(rune('a'+a.last%26)) + a.instance
	for _, inUse := range a.subscribed {
		if inUse == name {
			a.open[a.last] = journalpb.TypeActivityScheduled
			return activity()
		}
	}
	a.open[a.last], a.subscribed[a.last] = journalpb.TypeExternalSubscribed, name
	return subscribed(name)
}

func (a *instanceModel) completionEvent() *journalpb.Event {
	ids := a.openIDs()
	id := ids[a.model.r.IntN(len(ids))]
	kind := a.open[id]
	delete(a.open, id)
	delete(a.failed, id)
	if a.model.r.IntN(4) == 0 {
		return canceled(id)
	}
	switch kind {
	case journalpb.TypeActivityScheduled:
		return activityDone(id)
	case journalpb.TypeTimerCreated:
		return timerFired(id)
	case journalpb.TypeSubOrchestrationScheduled:
		return childDone(id)
	}
	return externalEvent(a.subscribed[id])
}

func (a *instanceModel) openIDs() []uint64 { return slices.Sorted(maps.Keys(a.open)) }

// isOrphaned is the model's answer for a child.
func (a *instanceModel) isOrphaned() bool {
	if !a.running || a.parent == nil {
		return false
	}
	for _, p := range a.model.instances {
		if p.instance == a.parent.instance && p.running && p.execution == a.parent.execution && p.incarnation == a.parent.incarnation {
			return p.open[a.parent.event] != journalpb.TypeSubOrchestrationScheduled
		}
	}
	return true
}

// expected is the index according to the model.
func (w *model) expected() []string {
	var all []string
	for _, a := range w.instances {
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
		if a.isOrphaned() {
			all = append(all, "orphan "+a.instance)
		}
		for id, kind := range a.open {
			if a.running {
				all = append(all, fmt.Sprintf("open %s/%d/%d kind %d failed %d", a.instance, a.incarnation, id, kind, a.failed[id]))
			}
		}
	}
	for target, ref := range w.chainedStarts {
		all = append(all, fmt.Sprintf("chained %s by %v", target, ref))
	}
	slices.Sort(all)
	return all
}

// actual is the index according to the machine.
func (w *model) actual() []string {
	var all []string
	for in := range w.m.Instances() {
		all = append(all, fmt.Sprintf("%s/%d %d.%d running %v suspended %v status %d", in.Instance, in.Incarnation, in.Execution, in.LastEventId,
			in.Status == journalpb.Status_STATUS_RUNNING, in.Suspended, in.StatusEventId))
	}
	for in := range w.m.Unbegun() {
		all = append(all, "unbegun "+in.Instance)
	}
	for in := range w.m.WithCondition() {
		all = append(all, "held "+in.Instance+" "+in.Condition.GetSource())
	}
	for in := range w.m.Orphans() {
		all = append(all, "orphan "+in.Instance)
	}
	for op := range w.m.OpenOperations() {
		all = append(all, fmt.Sprintf("open %s/%d/%d kind %d failed %d", op.Ref.Instance, op.Ref.Incarnation, op.Ref.EventId, op.Kind, op.Attempt.GetFailed()))
	}
	for c := range w.m.Chained() {
		ref := refOf(c.Ref)
		all = append(all, fmt.Sprintf("chained %s by %v", c.Chained.Instance, ref))
	}
	slices.Sort(all)
	return all
}

// check compares the index with the model, and the sets with the instances that belong to them.
func (w *model) check(t testing.TB) {
	t.Helper()
	if got, want := w.actual(), w.expected(); !slices.Equal(got, want) {
		t.Fatalf("the index\n\t%s\nthe model\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
	w.m.mu.RLock()
	defer w.m.mu.RUnlock()
	for id, in := range w.m.instances {
		after := in.memberships()
		if (w.m.busy[id] != nil) != after.busy || (w.m.unbegun[id] != nil) != after.unbegun || (w.m.children[id] != nil) != after.child ||
			(w.m.withCondition[id] != nil) != after.hasCondition {
			t.Fatalf("%s is not in the sets where it belongs", id)
		}
		if want := in.sortedAttempts(); len(want) != len(in.attempts) {
			t.Fatalf("%s keeps attempts of closed operations", id)
		}
	}
	for _, set := range []map[string]*instance{w.m.busy, w.m.unbegun, w.m.children, w.m.withCondition} {
		for id := range set {
			if w.m.instances[id] != set[id] {
				t.Fatalf("%s is in a set but not in the index", id)
			}
		}
	}
}
