package state

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/internal/shorttest"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A violation is an append that breaks exactly one condition of the append rule, so that no other
// condition hides its loss.
type violation struct {
	condition  string
	epoch      uint64
	instance   string
	segments   []*journalpb.Segment
	isExpected func(err error) bool
}

// isStale, isConflict and isInvalid match the expected error of a violation.

func isStale(err error) bool {
	var stale *StaleEpochError
	return errors.As(err, &stale)
}

// isConflict expects a ConflictError for a history that ends with last.
func isConflict(execution, first, last uint64) func(error) bool {
	return func(err error) bool {
		var conflict *ConflictError
		return errors.As(err, &conflict) && conflict.Execution == execution && conflict.First == first && conflict.Last == last
	}
}

func isInvalid(reason string) func(error) bool {
	return func(err error) bool {
		var invalid *InvalidAppendError
		return errors.As(err, &invalid) && strings.Contains(invalid.Reason, reason)
	}
}

// The operations in the history of this test, by event_id. All other events open none.
const (
	ruleActivity = 2
	ruleTimer    = 3
	ruleClosed   = 4 // an activity that is completed
	ruleEvents   = 300
	ruleEpoch    = 5
)

// ruleEvent returns the event with that event_id of the history.
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
	return []*journalpb.Event{statusSet(), externalEvent("s"), suspended(), resumed()}[id%4]
}

// Every length of a history is tested, because a condition may fail for long ones only.
func TestAppend_RejectsEachRuleViolation(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		for m.Epoch() < ruleEpoch {
			applyEpoch(t, m)
		}
		wantRejected(t, m, violationsOfUnknown())
		for execution := uint64(1); execution <= 3; execution++ {
			var events []*journalpb.Event // not appended yet
			for last := uint64(1); last <= ruleEvents; last++ {
				if last > 1 || execution != 2 { // the append that ends the first begins the second
					events = append(events, ruleEvent(last))
				}
				if m.store == nil && !shorttest.Race || isTestedInStore(last) {
					if len(events) > 0 {
						mustApply(t, m, segmentOf(execution, last+1-uint64(len(events)), events...))
						events = nil
					}
					wantRejected(t, m, violationsOfRunning(execution, last))
				}
			}
			if execution == 1 {
				mustApply(t, m, segmentOf(1, ruleEvents+1, continued()), segmentOf(2, 1, started("a")))
				continue
			}
			mustApply(t, m, segmentOf(execution, ruleEvents+1, completed()))
			wantRejected(t, m, violationsOfEnded(execution, ruleEvents+1))
		}
	})
}

// isTestedInStore reports whether a history of that length is also tested in a store and with
// -race, which take long: short ones, and those at which the encoding of an event_id changes its
// length.
func isTestedInStore(last uint64) bool {
	return last <= 8 || last >= 126 && last <= 130 || last >= 254 && last <= 258 || last == ruleEvents
}

func mustApply(t *testing.T, m *Machine, segments ...*journalpb.Segment) {
	t.Helper()
	if err := applyAppend(m, "a", segments...); err != nil {
		t.Fatal(err)
	}
}

// wantRejected applies violations and checks that none changes anything.
func wantRejected(t *testing.T, m *Machine, violations []violation) {
	t.Helper()
	before := m.Digest()
	for _, b := range violations {
		err := applyAppendAt(m, b.epoch, b.instance, b.segments...)
		if !b.isExpected(err) {
			t.Errorf("%s: error %v", b.condition, err)
		}
	}
	if m.Digest() != before {
		t.Fatal("a rejected append changed the state")
	}
}

// newViolation returns a violation of a condition at the current epoch.
func newViolation(condition string, rejected func(error) bool, segments ...*journalpb.Segment) violation {
	return violation{condition, ruleEpoch, "a", segments, rejected}
}

// violationsOfUnknown are those of an unknown instance.
func violationsOfUnknown() []violation {
	begin := segmentOf(1, 1, started("a"))
	return append(epochViolations(begin),
		violation{"an instance has an ID", ruleEpoch, "", []*journalpb.Segment{begin}, isInvalid("the instance ID must be")},
		newViolation("the first execution is 1", isConflict(2, 1, 0), segmentOf(2, 1, started("a"))),
		newViolation("no execution is 0", isInvalid("has ended"), segmentOf(0, 1, started("a"))),
		newViolation("the first event_id is 1", isConflict(1, 2, 0), segmentOf(1, 2, activity())),
		newViolation("the first event is OrchestrationStarted", isInvalid("only the first"), segmentOf(1, 1, activity())),
	)
}

// violationsOfRunning are those of a running execution whose last event is last.
func violationsOfRunning(execution, last uint64) []violation {
	next := last + 1
	at := func(what string) string {
		return fmt.Sprintf("%s (execution %d after event %d)", what, execution, last)
	}
	end, begin := segmentOf(execution, next, continued()), segmentOf(execution+1, 1, started("a"))
	violations := epochViolations(segmentOf(execution, next, statusSet()))
	for _, first := range wrongFirsts(last) {
		violations = append(violations, newViolation(at(fmt.Sprint("the first event_id follows the last, ", first, " does not")),
			isConflict(execution, first, last), segmentOf(execution, first, statusSet())))
	}
	otherID := segmentOf(execution, next, statusSet(), statusSet())
	otherID.Events[1] = otherID.Events[0]
	empty := segmentOf(execution, next)
	violations = append(violations,
		newViolation(at("an append has a segment"), isInvalid("one or two segments")),
		newViolation(at("an append has two segments at most"), isInvalid("one or two segments"), end, begin, begin),
		newViolation(at("a segment has events"), isInvalid("a segment must have events"), empty),
		newViolation(at("a second segment has events"), isInvalid("a segment must have events"), end, segmentOf(execution+1, 1)),
		newViolation(at("an execution that runs is followed by none"), isInvalid("the latest execution is"), begin),
		newViolation(at("an event has its own event_id"), isInvalid("the event has event_id"), otherID),
		newViolation(at("OrchestrationStarted comes once"), isInvalid("only the first"), segmentOf(execution, next, started("a"))),
		newViolation(at("nothing follows the end"), isInvalid("after the end"), segmentOf(execution, next, completed(), statusSet())),
		newViolation(at("continue-as-new has a successor"), isInvalid("in the same append"), end),
		newViolation(at("only continue-as-new has one"), isInvalid("in the same append"), segmentOf(execution, next, completed()), begin),
		newViolation(at("the successor has the next number"), isInvalid("must begin the next execution"), end, segmentOf(execution+2, 1, started("a"))),
		newViolation(at("the successor begins with event 1"), isConflict(execution+1, 2, 0), end, segmentOf(execution+1, 2, started("a"))),
		newViolation(at("a completion names an operation"), isInvalid("is not open"), segmentOf(execution, next, activityDone(last+7))),
	)
	if execution > 1 {
		violations = append(violations, newViolation(at("an earlier execution takes nothing"), isInvalid("has ended"), segmentOf(execution-1, ruleEvents+2, statusSet())))
	}
	if last > ruleClosed {
		violations = append(violations,
			newViolation(at("an operation has one completion"), isInvalid("is not open"), segmentOf(execution, next, activityDone(ruleClosed))),
			newViolation(at("a completion is of the operation's kind"), isInvalid("another event type"), segmentOf(execution, next, activityDone(ruleTimer))),
			newViolation(at("a timer does not close an activity"), isInvalid("another event type"), segmentOf(execution, next, timerFired(ruleActivity))))
	}
	return violations
}

// violationsOfEnded are those of an instance whose latest execution has ended.
func violationsOfEnded(execution, last uint64) []violation {
	return append(epochViolations(segmentOf(execution+1, 1, started("a"))),
		newViolation("an execution that has ended takes nothing", isInvalid("has ended"), segmentOf(execution, last+1, statusSet())),
		newViolation("executions are numbered without a gap", isInvalid("the latest execution is"), segmentOf(execution+2, 1, started("a"))),
		newViolation("an execution that has ended is not begun again", isConflict(execution, 1, last), segmentOf(execution, 1, started("a"))),
		newViolation("the next execution begins with event 1", isConflict(execution+1, 2, 0), segmentOf(execution+1, 2, statusSet())),
	)
}

// epochViolations proposes a valid append at every epoch but the current one.
func epochViolations(valid *journalpb.Segment) []violation {
	var violations []violation
	for _, epoch := range []uint64{0, 1, ruleEpoch - 1, ruleEpoch + 1, math.MaxUint64} {
		condition := fmt.Sprintf("an append has the current epoch, not %d", epoch)
		violations = append(violations, violation{condition, epoch, "a", []*journalpb.Segment{valid}, isStale})
	}
	return violations
}

// wrongFirsts are event_ids other than last+1.
func wrongFirsts(last uint64) []uint64 {
	firsts := []uint64{0, 1, 2, last / 2, last - min(last, 2), last - 1, last, last + 2, last + 3, 2*last + 2}
	slices.Sort(firsts)
	return slices.DeleteFunc(slices.Compact(firsts), func(first uint64) bool { return first == last+1 })
}
