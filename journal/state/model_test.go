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
func (mod *model) nextIncarnation() uint64 {
	const without = 10
	mod.runs++
	return max(mod.runs, without) - without
}

func newModel(t testing.TB, seed uint64, newMachine newMachineFunc) *model {
	w := &model{r: rand.New(rand.NewPCG(seed, 1)), m: newMachine(t), chainedStarts: map[string]operationRef{}}
	for i := range 6 {
		w.instances = append(w.instances, &instanceModel{model: w, instance: fmt.Sprintf("i-%d", i)})
	}
	return w
}

// step applies a random valid record.
func (mod *model) step(t testing.TB) {
	t.Helper()
	a := mod.instances[mod.r.IntN(len(mod.instances))]
	var err error
	switch mod.r.IntN(20) {
	case 0:
		applyEpoch(t, mod.m)
	case 1, 2:
		err = mod.purge()
	case 3, 4, 5, 6:
		err = a.failAttempt()
	case 7, 8:
		err = a.setCondition()
	default:
		err = mod.append(a)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (mod *model) append(a *instanceModel) error {
	a.stalled = ""
	err := applyAppend(mod.m, a.instance, a.nextAppend()...)
	delete(mod.chainedStarts, a.instance)
	for _, c := range a.chainedStarts {
		exists := slices.ContainsFunc(mod.instances, func(a *instanceModel) bool { return a.instance == c.target && a.execution > 0 })
		if _, waits := mod.chainedStarts[c.target]; !exists && !waits {
			mod.chainedStarts[c.target] = c.ref
		}
	}
	return err
}

// purge purges up to two instances that have ended, and one that never existed.
func (mod *model) purge() error {
	ids, want := []string{"unknown"}, uint64(0)
	for range 2 {
		a := mod.instances[mod.r.IntN(len(mod.instances))]
		ids = append(ids, a.instance)
		if a.execution > 0 && !a.running {
			*a = instanceModel{model: mod, instance: a.instance}
			want++
		}
	}
	purged, err := purge(mod.m, ids...)
	if err == nil && purged != want {
		return fmt.Errorf("%d of %v purged, want %d", purged, ids, want)
	}
	return err
}

// failAttempt fails an attempt of an open activity, if there is one.
func (i *instanceModel) failAttempt() error {
	for _, id := range i.openIDs() {
		if i.running && i.open[id] == journalpb.TypeActivityScheduled && i.model.r.IntN(2) == 0 {
			i.failed[id] += uint32(i.model.r.IntN(3))
			return applyAttempt(i.model.m, i.instance, i.execution, id, i.failed[id])
		}
	}
	return nil
}

// setCondition stalls the instance, or removes its condition. A condition of an instance that has
// proceeded is rejected.
func (i *instanceModel) setCondition() error {
	stalled := []string{"", "here", "there"}[i.model.r.IntN(3)]
	late := uint64(i.model.r.IntN(4) / 3)
	err := applyCondition(i.model.m, i.model.m.Epoch(), i.instance, i.incarnation, i.execution, i.last-late, stalled)
	if !i.running || late > 0 {
		var conflict *ConflictError
		if !errors.As(err, &conflict) {
			return fmt.Errorf("a condition of an instance that has proceeded: %w", err)
		}
		return nil
	}
	i.stalled = stalled
	return err
}

// nextAppend returns the segments of a next valid append.
func (i *instanceModel) nextAppend() []*journalpb.Segment {
	i.chainedStarts = nil
	if !i.running {
		return []*journalpb.Segment{i.begin()}
	}
	first := i.last + 1
	var events []*journalpb.Event
	for range 1 + i.model.r.IntN(4) {
		i.last++
		events = append(events, i.nextEvent())
	}
	switch i.model.r.IntN(12) {
	case 0:
		i.running, i.suspended = false, false
		i.last++
		return []*journalpb.Segment{segmentOf(i.execution, first, append(events, completed())...)}
	case 1:
		s := segmentOf(i.execution, first, append(events, continued())...)
		return []*journalpb.Segment{s, i.begin()}
	}
	return []*journalpb.Segment{segmentOf(i.execution, first, events...)}
}

// begin writes the first event of an execution: of a new run, sometimes as a child.
func (i *instanceModel) begin() *journalpb.Segment {
	start := started(i.instance)
	if !i.running {
		i.parent, i.incarnation = nil, i.model.nextIncarnation()
		for _, other := range i.model.instances {
			for _, id := range other.openIDs() {
				if other.running && other.open[id] == journalpb.TypeSubOrchestrationScheduled && i.model.r.IntN(2) == 0 {
					i.parent = &operationRef{other.instance, other.execution, id, other.incarnation}
					start = startedBy(other.instance, other.execution, id)
					start.GetOrchestrationStarted().Parent.Incarnation = other.incarnation
				}
			}
		}
	}
	start.GetOrchestrationStarted().Incarnation = i.incarnation
	i.execution++
	i.last, i.running, i.suspended, i.statusSet = 1, true, false, 0
	i.open, i.failed, i.subscribed = map[uint64]int{}, map[uint64]uint32{}, map[uint64]string{}
	return segmentOf(i.execution, 1, start)
}

func (i *instanceModel) nextEvent() *journalpb.Event {
	if len(i.open) > 0 && i.model.r.IntN(2) == 0 {
		return i.completionEvent()
	}
	switch i.model.r.IntN(8) {
	case 0, 1:
		i.open[i.last] = journalpb.TypeActivityScheduled
		return activity()
	case 2:
		i.open[i.last] = journalpb.TypeTimerCreated
		return timer(int64(i.last) * 7)
	case 3:
		i.open[i.last] = journalpb.TypeSubOrchestrationScheduled
		return child(i.instance + "-child")
	case 4:
		target := fmt.Sprintf("i-%d", i.model.r.IntN(2*len(i.model.instances)))
		i.chainedStarts = append(i.chainedStarts, chainedStart{ref: operationRef{i.instance, i.execution, i.last, i.incarnation}, target: target})
		return chained(target)
	case 5:
		return i.lifecycleEvent()
	}
	return i.subscriptionEvent()
}

func (i *instanceModel) lifecycleEvent() *journalpb.Event {
	switch i.model.r.IntN(3) {
	case 0:
		i.suspended = true
		return suspended()
	case 1:
		i.suspended = false
		return resumed()
	}
	i.statusSet = i.last
	return statusSet()
}

func (i *instanceModel) subscriptionEvent() *journalpb.Event {
	name := string(rune('a'+i.last%26)) + i.instance
	for _, inUse := range i.subscribed {
		if inUse == name {
			i.open[i.last] = journalpb.TypeActivityScheduled
			return activity()
		}
	}
	i.open[i.last], i.subscribed[i.last] = journalpb.TypeExternalSubscribed, name
	return subscribed(name)
}

func (i *instanceModel) completionEvent() *journalpb.Event {
	ids := i.openIDs()
	id := ids[i.model.r.IntN(len(ids))]
	kind := i.open[id]
	delete(i.open, id)
	delete(i.failed, id)
	if i.model.r.IntN(4) == 0 {
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
	return externalEvent(i.subscribed[id])
}

func (i *instanceModel) openIDs() []uint64 { return slices.Sorted(maps.Keys(i.open)) }

// isOrphaned is the model's answer for a child.
func (i *instanceModel) isOrphaned() bool {
	if !i.running || i.parent == nil {
		return false
	}
	for _, p := range i.model.instances {
		if p.instance == i.parent.instance && p.running && p.execution == i.parent.execution && p.incarnation == i.parent.incarnation {
			return p.open[i.parent.event] != journalpb.TypeSubOrchestrationScheduled
		}
	}
	return true
}

// expected is the index according to the model.
func (mod *model) expected() []string {
	var all []string
	for _, a := range mod.instances {
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
	for target, ref := range mod.chainedStarts {
		all = append(all, fmt.Sprintf("chained %s by %v", target, ref))
	}
	slices.Sort(all)
	return all
}

// actual is the index according to the machine.
func (mod *model) actual() []string {
	var all []string
	for in := range mod.m.Instances() {
		all = append(all, fmt.Sprintf("%s/%d %d.%d running %v suspended %v status %d", in.Instance, in.Incarnation, in.Execution, in.LastEventId,
			in.Status == journalpb.Status_STATUS_RUNNING, in.Suspended, in.StatusEventId))
	}
	for in := range mod.m.Unbegun() {
		all = append(all, "unbegun "+in.Instance)
	}
	for in := range mod.m.WithCondition() {
		all = append(all, "held "+in.Instance+" "+in.Condition.GetSource())
	}
	for in := range mod.m.Orphans() {
		all = append(all, "orphan "+in.Instance)
	}
	for op := range mod.m.OpenOperations() {
		all = append(all, fmt.Sprintf("open %s/%d/%d kind %d failed %d", op.Ref.Instance, op.Ref.Incarnation, op.Ref.EventId, op.Kind, op.Attempt.GetFailed()))
	}
	for c := range mod.m.Chained() {
		ref := refOf(c.Ref)
		all = append(all, fmt.Sprintf("chained %s by %v", c.Chained.Instance, ref))
	}
	slices.Sort(all)
	return all
}

// check compares the index with the model, and the sets with the instances that belong to them.
func (mod *model) check(t testing.TB) {
	t.Helper()
	if got, want := mod.actual(), mod.expected(); !slices.Equal(got, want) {
		t.Fatalf("the index\n\t%s\nthe model\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
	mod.m.mu.RLock()
	defer mod.m.mu.RUnlock()
	for id, in := range mod.m.instances {
		after := in.memberships()
		if (mod.m.busy[id] != nil) != after.busy || (mod.m.unbegun[id] != nil) != after.unbegun || (mod.m.children[id] != nil) != after.child ||
			(mod.m.withCondition[id] != nil) != after.hasCondition {
			t.Fatalf("%s is not in the sets where it belongs", id)
		}
		if want := in.sortedAttempts(); len(want) != len(in.attempts) {
			t.Fatalf("%s keeps attempts of closed operations", id)
		}
	}
	for _, set := range []map[string]*instance{mod.m.busy, mod.m.unbegun, mod.m.children, mod.m.withCondition} {
		for id := range set {
			if mod.m.instances[id] != set[id] {
				t.Fatalf("%s is in a set but not in the index", id)
			}
		}
	}
}
