package check

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A Result is the outcome of checking the evidence of a run.
type Result struct {
	Violations []Violation
	Counts     map[string]int // of what was checked

	partitions    int
	linearFailure *linearizabilityFailure
}

// Unreadable is the invariant under which unreadable evidence is reported.
const Unreadable = "evidence"

// Run checks the evidence of a run against all invariants. The registry holds the code of the
// orchestrations.
func Run(record *evidence.Record, registry *engine.Registry) *Result {
	c, err := newChecker(record, registry)
	if err != nil {
		return &Result{Violations: []Violation{{Unreadable, err.Error()}}}
	}
	for _, invariant := range Invariants {
		c.invariant = invariant.ID
		before := len(c.violations)
		invariant.check(c)
		// Some checks iterate over maps.
		slices.SortStableFunc(c.violations[before:], func(a, b Violation) int { return cmp.Compare(a.Detail, b.Detail) })
	}
	return &Result{Violations: c.violations, Counts: c.counts(), partitions: record.Partitions, linearFailure: c.linearFailure}
}

// The names of the counts.
const (
	countHistories     = "histories verified"
	countEvents        = "events in them"
	countAcked         = "calls acknowledged"
	countUnknown       = "calls with an unknown outcome"
	countActivities    = "activities"
	countRepeated      = "activities attempted more than once"
	countTimers        = "timers checked by the harness's clock"
	countLinear        = "instances checked for linearizability"
	countChildren      = "ends of children"
	countChained       = "chained starts"
	countUpdates       = "updates acknowledged"
	countPurged        = "instances purged"
	countTerminated    = "instances terminated"
	countContinued     = "continue-as-new"
	countReplicas      = "replicas compared in full"
	countLeaderships   = "leaderships"
	countInstalls      = "snapshots sent to nodes"
	countRepeatedCalls = "calls repeated after a snapshot"
	countRemote        = "calls of remote clients acknowledged"
	countBrief         = "calls with a short deadline"
	countFaultFree     = "phases without faults"
	countDelivered     = "messages between instances delivered"
	countRejected      = "messages between instances rejected"

	countPartitions      = "partitions with a leader and instances"
	countChildrenCrossed = "children in another partition than their parents"
	countChainedCrossed  = "chained starts into another partition"
	countMessagesCrossed = "messages delivered into another partition"
)

func (c *checker) counts() map[string]int {
	n := map[string]int{countHistories: len(c.histories), countActivities: len(c.effects), countLinear: len(c.operations(host.Register, nil)) + len(c.operations(host.Entity, isEntityCall)), countLeaderships: len(c.record.Leaderships), countInstalls: len(c.record.Installs), countFaultFree: len(c.record.FaultFreePhases)}
	c.countCrossPartition(n)
	c.countMessages(n)
	n[countPartitions] = c.usedPartitions()
	for _, h := range c.histories {
		n[countEvents] += len(h.events)
		for _, event := range h.events {
			switch event.TypeNumber() {
			case journalpb.TypeSubOrchestrationCompleted, journalpb.TypeSubOrchestrationFailed:
				n[countChildren]++
			case journalpb.TypeOrchestrationContinuedAsNew:
				n[countContinued]++
			case journalpb.TypeOrchestrationTerminated:
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
		if r.Complete && r.Stale {
			n[countReplicas]++
		}
	}
	return n
}

// countKinds maps kinds of calls to the names under which acknowledged calls are counted.
var countKinds = map[evidence.Kind]string{
	evidence.SendOrStart: "events sent that may start an instance",
	evidence.Cancel:      "cancellations acknowledged",
	evidence.Suspend:     "suspensions acknowledged",
	evidence.Resume:      "resumptions acknowledged",
	evidence.Complete:    "activities completed from outside",
	evidence.Query:       "queries answered",
	evidence.Get:         "gets answered",
	evidence.List:        "lists answered",
	evidence.Watch:       "watches that returned events",
}

func (c *checker) countCall(call evidence.Call, n map[string]int) {
	if call.Repeated {
		n[countRepeatedCalls]++
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

// usedPartitions counts the partitions that had a leader and have instances.
func (c *checker) usedPartitions() int {
	led, used := make(map[int]bool), make(map[int]bool)
	for _, r := range c.record.Leaderships {
		led[r.Partition] = true
	}
	for _, h := range c.histories {
		if partition := c.partitionOf(h.instance.id); led[partition] {
			used[partition] = true
		}
	}
	return len(used)
}

// requiredCounts lists the counts that must not be 0 for the result to be meaningful.
var requiredCounts = []string{
	countHistories, countAcked, countActivities, countTimers, countLinear, countChildren, countPurged,
	countTerminated, countContinued, countReplicas, countLeaderships,
}

// Further required counts: in evidence that states the number of partitions, and in runs with
// several partitions.
var (
	requiredCurrent        = append([]string{countChained, countUpdates, countDelivered, countRejected}, slices.Sorted(maps.Values(countKinds))...)
	requiredCrossPartition = []string{countChildrenCrossed, countChainedCrossed, countMessagesCrossed}
)

// Uncovered lists what the run did not exercise.
func (r *Result) Uncovered() []string {
	names := slices.Clone(requiredCounts)
	if r.partitions > 0 {
		names = append(names, requiredCurrent...)
	}
	if r.partitions > 1 {
		names = append(names, requiredCrossPartition...)
	}
	var uncovered []string
	for _, name := range names {
		if r.Counts[name] == 0 {
			uncovered = append(uncovered, "no "+name)
		}
	}
	if used := r.Counts[countPartitions]; used < r.partitions {
		uncovered = append(uncovered, fmt.Sprintf("of %d partitions only %d had a leader and instances", r.partitions, used))
	}
	return uncovered
}

// Report writes the counts, the result of each invariant, and at most violationsMax violations of
// each.
func (r *Result) Report(w io.Writer) {
	for _, name := range slices.Sorted(maps.Keys(r.Counts)) {
		fmt.Fprintf(w, "%8d %s\n", r.Counts[name], name)
	}
	reported := make(map[string]int)
	for _, violation := range r.Violations {
		if reported[violation.Invariant]++; reported[violation.Invariant] <= violationsMax {
			fmt.Fprintf(w, "VIOLATED %s: %s\n", violation.Invariant, violation.Detail)
		}
	}
	for _, invariant := range Invariants {
		if reported[invariant.ID] > 0 {
			fmt.Fprintf(w, "%-4s VIOLATED %d times: %s\n", invariant.ID, reported[invariant.ID], invariant.Statement)
		} else {
			fmt.Fprintf(w, "%-4s holds\n", invariant.ID)
		}
	}
}
