package judge

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A Verdict is what the evidence comes to.
type Verdict struct {
	Violations []Violation
	Counts     map[string]int // of what was judged

	groups int
	linear *linearity
}

// Unreadable is the invariant under which evidence is told that cannot be read.
const Unreadable = "evidence"

// Judge judges the evidence of a run by all invariants. The registry has the
// orchestrations' code.
func Judge(record *evidence.Record, registry *replay.Registry) *Verdict {
	c, err := newTrial(record, registry)
	if err != nil {
		return &Verdict{Violations: []Violation{{Unreadable, err.Error()}}}
	}
	for _, invariant := range Invariants {
		c.invariant = invariant.ID
		invariant.check(c)
	}
	return &Verdict{Violations: c.found, Counts: c.counts(), groups: record.Groups, linear: c.linear}
}

// What is counted, by name.
const (
	countHistories  = "histories verified"
	countEvents     = "events in them"
	countAcked      = "calls acknowledged"
	countUnknown    = "calls with an unknown outcome"
	countActivities = "activities"
	countRepeated   = "activities attempted more than once"
	countTimers     = "timers judged by the harness's clock"
	countLinear     = "instances checked for linearizability"
	countChildren   = "ends of children"
	countChained    = "chained starts"
	countUpdates    = "updates acknowledged"
	countPurged     = "instances purged"
	countTerminated = "instances terminated"
	countContinued  = "continue-as-new"
	countReplicas   = "replicas compared in full"
	countReigns     = "reigns of leaders"
	countInstalls   = "snapshots sent to nodes"
	countAgain      = "calls repeated after one"
	countRemote     = "calls of remote clients acknowledged"
	countBrief      = "calls whose context ended soon"
	countQuiet      = "phases without faults"

	countGroups          = "groups that were led, and have instances"
	countChildrenCrossed = "children in another group than their parents"
	countChainedCrossed  = "chained starts into another group"
)

func (c *trial) counts() map[string]int {
	n := map[string]int{countHistories: len(c.histories), countActivities: len(c.effects), countLinear: len(c.operations(host.Register, nil)) + len(c.operations(host.Entity, ofEntity)), countReigns: len(c.record.Reigns), countInstalls: len(c.record.Installs), countQuiet: len(c.record.Quiets)}
	c.crossings(n)
	n[countGroups] = c.usedGroups()
	for _, h := range c.histories {
		n[countEvents] += len(h.events)
		for _, event := range h.events {
			switch event.Arm() {
			case journalpb.ArmSubOrchestrationCompleted, journalpb.ArmSubOrchestrationFailed:
				n[countChildren]++
			case journalpb.ArmOrchestrationContinuedAsNew:
				n[countContinued]++
			case journalpb.ArmOrchestrationTerminated:
				n[countTerminated]++
			}
		}
	}
	for _, call := range c.record.Calls {
		c.countCall(call, n)
		switch {
		case call.Outcome == evidence.Acked && call.Kind == evidence.Purge:
			n[countPurged]++
			fallthrough
		case call.Outcome == evidence.Acked && call.Kind == evidence.Update:
			n[countUpdates]++
			fallthrough
		case call.Outcome == evidence.Acked:
			n[countAcked]++
		case call.Outcome == evidence.Unknown:
			n[countUnknown]++
		}
	}
	for _, effects := range c.effects {
		begun := 0
		for _, effect := range effects {
			switch {
			case effect.Finished:
			case effect.Task.After != "":
				n[countTimers]++
				fallthrough
			default:
				begun++
			}
		}
		if begun > 1 {
			n[countRepeated]++
		}
	}
	for _, r := range c.record.Replicas {
		if r.Whole && r.Stale {
			n[countReplicas]++
		}
	}
	return n
}

// countKinds gives what acknowledged calls of some kinds are counted as.
var countKinds = map[evidence.Kind]string{
	evidence.SendOrStart: "events sent that may start an instance",
	evidence.Cancel:      "cancellations acknowledged",
	evidence.Suspend:     "suspensions acknowledged",
	evidence.Resume:      "resumptions acknowledged",
	evidence.Complete:    "activities completed from outside",
	evidence.Query:       "queries answered",
	evidence.Get:         "gets answered",
	evidence.List:        "lists answered",
	evidence.Watch:       "watches that showed something",
}

func (c *trial) countCall(call evidence.Call, n map[string]int) {
	if call.Repeated {
		n[countAgain]++
	}
	if call.Limit != 0 && call.Kind != evidence.Watch {
		n[countBrief]++
	}
	if call.Outcome != evidence.Acked {
		return
	}
	if call.Remote {
		n[countRemote]++
	}
	if name, ok := countKinds[call.Kind]; ok {
		n[name]++
	}
}

// usedGroups counts the groups that somebody has led and that instances belong to.
func (c *trial) usedGroups() int {
	led, used := make(map[int]bool), make(map[int]bool)
	for _, r := range c.record.Reigns {
		led[r.Group] = true
	}
	for _, h := range c.histories {
		if group := c.groupOf(h.of.id); led[group] {
			used[group] = true
		}
	}
	return len(used)
}

// needed names what must have been judged at least once for a verdict to count.
var needed = []string{
	countHistories, countAcked, countActivities, countTimers, countLinear, countChildren, countPurged,
	countTerminated, countContinued, countReplicas, countReigns,
}

// What must have been judged as well: of builds that tell how many groups
// there were, and where there were several.
var (
	neededNow    = append([]string{countChained, countUpdates}, slices.Sorted(maps.Values(countKinds))...)
	neededAcross = []string{countChildrenCrossed, countChainedCrossed}
)

// Idle lists what there was nothing of to judge.
func (v *Verdict) Idle() []string {
	names := slices.Clone(needed)
	if v.groups > 0 {
		names = append(names, neededNow...)
	}
	if v.groups > 1 {
		names = append(names, neededAcross...)
	}
	var idle []string
	for _, name := range names {
		if v.Counts[name] == 0 {
			idle = append(idle, "no "+name)
		}
	}
	if used := v.Counts[countGroups]; used < v.groups {
		idle = append(idle, fmt.Sprintf("of %d groups %d were led, and have instances", v.groups, used))
	}
	return idle
}

// Report writes what was judged, which invariants hold, and every violation, of one
// invariant no more than a few.
func (v *Verdict) Report(w io.Writer) {
	for _, name := range slices.Sorted(maps.Keys(v.Counts)) {
		fmt.Fprintf(w, "%8d %s\n", v.Counts[name], name)
	}
	told := make(map[string]int)
	for _, violation := range v.Violations {
		if told[violation.Invariant]++; told[violation.Invariant] <= violationsMax {
			fmt.Fprintf(w, "VIOLATED %s: %s\n", violation.Invariant, violation.Detail)
		}
	}
	for _, invariant := range Invariants {
		if told[invariant.ID] > 0 {
			fmt.Fprintf(w, "%-4s VIOLATED %d times: %s\n", invariant.ID, told[invariant.ID], invariant.Statement)
		} else {
			fmt.Fprintf(w, "%-4s holds\n", invariant.ID)
		}
	}
}
