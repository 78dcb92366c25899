package state

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A breach is an append that keeps every condition of the append rule but one. Each condition is
// tried by itself, so that no other one hides its loss.
type breach struct {
	condition string
	epoch     uint64
	instance  string
	segments  []*journalpb.Segment
	refused   func(err error) bool
}

// stale, conflicting and invalid say which error a breach must get.

func stale(err error) bool {
	var stale *StaleEpochError
	return errors.As(err, &stale)
}

// conflicting expects the conflict of an append with a history that ends with last.
func conflicting(execution, first, last uint64) func(error) bool {
	return func(err error) bool {
		var conflict *ConflictError
		return errors.As(err, &conflict) && conflict.Execution == execution && conflict.First == first && conflict.Last == last
	}
}

func invalid(reason string) func(error) bool {
	return func(err error) bool {
		var invalid *InvalidAppendError
		return errors.As(err, &invalid) && strings.Contains(invalid.Reason, reason)
	}
}

// The operations of a history of the append rule's test, by event_id. The rest of it opens none.
const (
	ruleActivity = 2
	ruleTimer    = 3
	ruleClosed   = 4 // an activity that has its completion
	ruleEvents   = 300
	ruleEpoch    = 5
)

// ruleEvent returns the event of that event_id of such a history.
func ruleEvent(id uint64) *journalpb.Event {
	switch id {
	case 1:
		return started("a")
	case ruleActivity, ruleClosed:
		return activity()
	case ruleTimer:
		return timer(1)
	case ruleClosed + 1:
		return activityDone(ruleClosed)
	}
	return []*journalpb.Event{statusSet(), arrival("s"), suspended(), resumed()}[id%4]
}

// Every length of a history is tried: a condition may be lost for long ones alone.
func TestEachConditionOfTheAppendRuleHoldsByItself(t *testing.T) {
	onBoth(t, func(t *testing.T, newMachine maker) {
		m := newMachine(t)
		for m.Epoch() < ruleEpoch {
			applyEpoch(t, m)
		}
		expectRefused(t, m, breachesOfUnknown())
		for execution := uint64(1); execution <= 3; execution++ {
			for last := uint64(1); last <= ruleEvents; last++ {
				if last > 1 || execution != 2 { // the second one is begun by the end of the first
					mustApply(t, m, segmentOf(execution, last, ruleEvent(last)))
				}
				if m.store == nil || triedInStore(last) {
					expectRefused(t, m, breachesOfRunning(execution, last))
				}
			}
			if execution == 1 {
				mustApply(t, m, segmentOf(1, ruleEvents+1, continued()), segmentOf(2, 1, started("a")))
				continue
			}
			mustApply(t, m, segmentOf(execution, ruleEvents+1, completed()))
			expectRefused(t, m, breachesOfEnded(execution, ruleEvents+1))
		}
	})
}

// triedInStore reports whether a history of that length is tried in a store too, which takes long:
// the short ones, and those where the encoding of an event_id changes its length.
func triedInStore(last uint64) bool {
	return last <= 8 || last >= 126 && last <= 130 || last >= 254 && last <= 258 || last == ruleEvents
}

func mustApply(t *testing.T, m *Machine, segments ...*journalpb.Segment) {
	t.Helper()
	if err := apply(m, "a", segments...); err != nil {
		t.Fatal(err)
	}
}

// expectRefused tries breaches, none of which may change anything.
func expectRefused(t *testing.T, m *Machine, breaches []breach) {
	t.Helper()
	before := m.Digest()
	for _, b := range breaches {
		err := applyAt(m, b.epoch, b.instance, b.segments...)
		if !b.refused(err) {
			t.Errorf("%s: error %v", b.condition, err)
		}
	}
	if m.Digest() != before {
		t.Fatal("a refused append has changed the state")
	}
}

// of returns the breach of a condition at the epoch in force.
func of(condition string, refused func(error) bool, segments ...*journalpb.Segment) breach {
	return breach{condition, ruleEpoch, "a", segments, refused}
}

// breachesOfUnknown are those of an instance of which there is nothing.
func breachesOfUnknown() []breach {
	begin := segmentOf(1, 1, started("a"))
	return append(epochBreaches(begin),
		breach{"an instance has an ID", ruleEpoch, "", []*journalpb.Segment{begin}, invalid("has an ID")},
		of("the first execution is 1", conflicting(2, 1, 0), segmentOf(2, 1, started("a"))),
		of("no execution is 0", invalid("has ended"), segmentOf(0, 1, started("a"))),
		of("the first event_id is 1", conflicting(1, 2, 0), segmentOf(1, 2, activity())),
		of("the first event is OrchestrationStarted", invalid("only the first"), segmentOf(1, 1, activity())),
	)
}

// breachesOfRunning are those of an execution that runs and has come to last.
func breachesOfRunning(execution, last uint64) []breach {
	next := last + 1
	at := func(what string) string {
		return fmt.Sprintf("%s (execution %d after event %d)", what, execution, last)
	}
	end, begin := segmentOf(execution, next, continued()), segmentOf(execution+1, 1, started("a"))
	breaches := epochBreaches(segmentOf(execution, next, statusSet()))
	for _, first := range wrongFirsts(last) {
		breaches = append(breaches, of(at(fmt.Sprint("the first event_id follows the last, ", first, " does not")),
			conflicting(execution, first, last), segmentOf(execution, first, statusSet())))
	}
	otherID := segmentOf(execution, next, statusSet(), statusSet())
	otherID.Events[1] = otherID.Events[0]
	empty := segmentOf(execution, next)
	breaches = append(breaches,
		of(at("an append has a segment"), invalid("one segment or two")),
		of(at("an append has two segments at most"), invalid("one segment or two"), end, begin, begin),
		of(at("a segment has events"), invalid("a segment has events"), empty),
		of(at("a second segment has events"), invalid("a segment has events"), end, segmentOf(execution+1, 1)),
		of(at("an execution that runs is followed by none"), invalid("is the latest"), begin),
		of(at("an event has its own event_id"), invalid("says that its id is"), otherID),
		of(at("OrchestrationStarted comes once"), invalid("only the first"), segmentOf(execution, next, started("a"))),
		of(at("nothing follows the end"), invalid("after the end"), segmentOf(execution, next, completed(), statusSet())),
		of(at("continue-as-new has a successor"), invalid("in the same append"), end),
		of(at("only continue-as-new has one"), invalid("in the same append"), segmentOf(execution, next, completed()), begin),
		of(at("the successor has the next number"), invalid("begins the next execution"), end, segmentOf(execution+2, 1, started("a"))),
		of(at("the successor begins with event 1"), conflicting(execution+1, 2, 0), end, segmentOf(execution+1, 2, started("a"))),
		of(at("a completion names an operation"), invalid("is not open"), segmentOf(execution, next, activityDone(last+7))),
	)
	if execution > 1 {
		breaches = append(breaches, of(at("an earlier execution takes nothing"), invalid("has ended"), segmentOf(execution-1, ruleEvents+2, statusSet())))
	}
	if last > ruleClosed {
		breaches = append(breaches,
			of(at("an operation has one completion"), invalid("is not open"), segmentOf(execution, next, activityDone(ruleClosed))),
			of(at("a completion is of the operation's kind"), invalid("of another kind"), segmentOf(execution, next, activityDone(ruleTimer))),
			of(at("a timer does not close an activity"), invalid("of another kind"), segmentOf(execution, next, timerFired(ruleActivity))))
	}
	return breaches
}

// breachesOfEnded are those of an instance whose latest execution has ended.
func breachesOfEnded(execution, last uint64) []breach {
	return append(epochBreaches(segmentOf(execution+1, 1, started("a"))),
		of("an execution that has ended takes nothing", invalid("has ended"), segmentOf(execution, last+1, statusSet())),
		of("executions are numbered without a gap", invalid("is the latest"), segmentOf(execution+2, 1, started("a"))),
		of("an execution that has ended is not begun again", conflicting(execution, 1, last), segmentOf(execution, 1, started("a"))),
		of("the next execution begins with event 1", conflicting(execution+1, 2, 0), segmentOf(execution+1, 2, statusSet())),
	)
}

// epochBreaches has every epoch but the one in force propose an append that is right.
func epochBreaches(right *journalpb.Segment) []breach {
	var breaches []breach
	for _, epoch := range []uint64{0, 1, ruleEpoch - 1, ruleEpoch + 1, math.MaxUint64} {
		condition := fmt.Sprintf("an append is of the epoch in force, not of %d", epoch)
		breaches = append(breaches, breach{condition, epoch, "a", []*journalpb.Segment{right}, stale})
	}
	return breaches
}

// wrongFirsts are event_ids that do not follow the last one.
func wrongFirsts(last uint64) []uint64 {
	firsts := []uint64{0, 1, 2, last / 2, last - min(last, 2), last - 1, last, last + 2, last + 3, 2*last + 2}
	slices.Sort(firsts)
	return slices.DeleteFunc(slices.Compact(firsts), func(first uint64) bool { return first == last+1 })
}
