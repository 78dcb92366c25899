package check

import (
	"bytes"
	"encoding/json"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// callAll makes calls of the kinds that the older workloads do not make.
func (r *recorder) callAll() {
	r.t.Helper()
	r.call(evidence.Start, "entity-0", host.Entity, host.EntityInput{Sum: 10})
	for range host.EntityInputs + 1 {
		r.call(evidence.Send, "entity-0", host.Number, "tick")
	}
	r.call(evidence.Get, "entity-0", "", nil)
	r.call(evidence.Suspend, "entity-0", "", nil)
	r.call(evidence.Resume, "entity-0", "", nil)
	for _, kind := range []evidence.Kind{evidence.Update, evidence.Query} {
		name := map[evidence.Kind]string{evidence.Update: host.Add, evidence.Query: host.Sum}[kind]
		for r.call(kind, "entity-0", name, 5); r.last().Code == evidence.NoHandler; r.call(kind, "entity-0", name, 5) {
			runtime.Gosched() // the successor has no handler yet
		}
	}
	r.call(evidence.List, "entity-0", "", nil)
	r.call(evidence.Send, "entity-0", host.Number, host.End)
	r.call(evidence.Wait, "entity-0", "", nil)
	r.call(evidence.Get, "entity-0", "", nil)
	r.do(evidence.Request{Kind: evidence.Watch, Instance: "entity-0"})
	r.do(evidence.Request{Kind: evidence.Send, Instance: "entity-0", Name: host.Number, RequestID: "ended", Limit: -1, Input: []byte(`"x"`)})

	r.call(evidence.Start, "approval-0", host.Approval, 1)
	for r.log.Token("approval-0") == "" {
		runtime.Gosched()
	}
	for _, nonce := range []string{"first", "second"} {
		done, err := json.Marshal(evidence.TaskResult{Value: 2, Nonce: nonce})
		if err != nil {
			r.t.Fatal(err)
		}
		r.do(evidence.Request{Kind: evidence.Complete, Instance: "approval-0", Token: r.log.Token("approval-0"), Input: done})
	}
	r.call(evidence.Wait, "approval-0", "", nil)

	r.call(evidence.Start, "chain-3", host.Chain, host.ChainInput{Pause: time.Minute})
	r.call(evidence.Cancel, "chain-3", "", nil)
	r.call(evidence.Wait, "chain-3", "", nil)
	r.call(evidence.SendOrStart, "register-1", host.Register, "x")
	r.call(evidence.Terminate, "register-1", "", nil)
}

// last returns the answer to the last call.
func (r *recorder) last() evidence.Answer {
	calls := r.log.Record().Calls
	return calls[len(calls)-1].Answer
}

// recordedID returns the request ID of a recorded event.
func recordedID(f *evidenceEditor) string { return f.call(evidence.Send, "register-0", 0).RequestID }

var brokenNotExecuted = map[string]func(f *evidenceEditor){
	"an event is recorded that was not sent": func(f *evidenceEditor) {
		f.call(evidence.Send, "register-0", 0).Answer = evidence.Answer{Outcome: evidence.NotExecuted}
	},
	"an event is recorded that was rejected": func(f *evidenceEditor) {
		rejected := *f.call(evidence.Send, "entity-0", 0)
		rejected.Instance, rejected.RequestID = "register-0", recordedID(f)
		rejected.Answer = evidence.Answer{Outcome: evidence.Rejected, Code: evidence.Ended}
		f.Calls = append(f.Calls, rejected)
	},
}

var brokenReads = map[string]func(f *evidenceEditor){
	"a get shows less than one before": func(f *evidenceEditor) { f.call(evidence.Get, "entity-0", 1).Execution = 1 },
	"a get shows more than there is":   func(f *evidenceEditor) { f.call(evidence.Get, "entity-0", 1).LastEventID = 1000 },
	"a list lacks an instance":         func(f *evidenceEditor) { f.call(evidence.List, "entity-0", 0).ListedIDs = nil },
	"a list shows one twice": func(f *evidenceEditor) {
		f.call(evidence.List, "entity-0", 0).ListedIDs = []string{"entity-0", "entity-0"}
	},
	"a list shows an instance that was never started": func(f *evidenceEditor) {
		f.call(evidence.List, "entity-0", 0).ListedIDs = []string{"entity-0", "entity-0/none"}
	},
}

var brokenWatches = map[string]func(f *evidenceEditor){
	"an event is missing": func(f *evidenceEditor) {
		watch := f.call(evidence.Watch, "entity-0", 0)
		watch.WatchedEvents = slices.Delete(watch.WatchedEvents, 2, 3)
	},
	"an event is shown twice": func(f *evidenceEditor) {
		watch := f.call(evidence.Watch, "entity-0", 0)
		watch.WatchedEvents = slices.Insert(watch.WatchedEvents, 2, watch.WatchedEvents[1])
	},
	"an event is another": func(f *evidenceEditor) { f.call(evidence.Watch, "entity-0", 0).WatchedEvents[1].Digest = "another" },
	"the rest of an execution is missing": func(f *evidenceEditor) {
		watch := f.call(evidence.Watch, "entity-0", 0)
		watch.WatchedEvents = slices.DeleteFunc(watch.WatchedEvents, func(e evidence.WatchedEvent) bool { return e.Execution == 1 && e.EventID > 3 })
	},
	"it ended too soon": func(f *evidenceEditor) {
		watch := f.call(evidence.Watch, "entity-0", 0)
		watch.WatchedEvents = watch.WatchedEvents[:len(watch.WatchedEvents)-1]
	},
}

var brokenCommands = map[string]func(f *evidenceEditor){
	"a cancellation is not there": func(f *evidenceEditor) { f.call(evidence.Cancel, "chain-3", 0).Instance = "chain-0" },
	"a suspension is not there":   func(f *evidenceEditor) { f.call(evidence.Suspend, "entity-0", 0).Instance = "chain-0" },
	"a suspension without a call": func(f *evidenceEditor) {
		f.Calls = slices.DeleteFunc(f.Calls, func(call evidence.Call) bool { return call.Kind == evidence.Suspend })
	},
	"two completions are acknowledged": func(f *evidenceEditor) {
		f.call(evidence.Complete, "approval-0", 1).Answer = evidence.Answer{Outcome: evidence.Acked}
	},
	"the completion that counts is rejected": func(f *evidenceEditor) {
		f.call(evidence.Complete, "approval-0", 0).Answer = evidence.Answer{Outcome: evidence.Rejected, Code: evidence.Closed}
	},
}

var brokenEntities = map[string]func(f *evidenceEditor){
	"a query misses an update": func(f *evidenceEditor) { f.lastCall(evidence.Query, "entity-0").Output = []byte("10") },
	"an update's result ignores another update": func(f *evidenceEditor) {
		f.lastCall(evidence.Update, "entity-0").Output = []byte("5")
	},
}

// lastCall returns the last call of a kind on an instance.
func (ee *evidenceEditor) lastCall(kind evidence.Kind, id string) (last *evidence.Call) {
	ee.t.Helper()
	for i := range ee.Calls {
		if call := &ee.Calls[i]; call.Kind == kind && call.Instance == id {
			last = call
		}
	}
	if last == nil {
		ee.t.Fatalf("no %s of %s", kind, id)
	}
	return last
}

// addFaultFreePhase adds a fault-free phase after all that is recorded. Its probes' writes take
// write, and the machine's own work takes control.
func (ee *evidenceEditor) addFaultFreePhase(write, control time.Duration) *evidence.FaultFreePhase {
	begin := time.Hour * time.Duration(1+len(ee.FaultFreePhases))
	phase := evidence.FaultFreePhase{Begin: begin, LoadEnd: begin + 10*time.Minute, End: begin + 20*time.Minute}
	for i := range latenciesMin {
		sent := *ee.call(evidence.Send, "register-0", 0)
		sent.Instance, sent.RequestID, sent.Remote = "probe-0", "", i == 0
		sent.Outcome, sent.Begin = evidence.Acked, begin+time.Duration(i)*time.Second
		sent.End = sent.Begin + write
		ee.Calls = append(ee.Calls, sent)
		phase.Noise = append(phase.Noise, control)
	}
	of := evidence.Instance{ID: "probe-0"}
	for r := range ee.Replicas {
		ee.instances(r, "register-0", func(register *evidence.Instance) { of.State, of.Executions = register.State, register.Executions })
		if !ee.Replicas[r].Complete || len(ee.FaultFreePhases) > 0 {
			continue
		}
		ee.Replicas[r].Instances = append(ee.Replicas[r].Instances, of)
	}
	ee.FaultFreePhases = append(ee.FaultFreePhases, phase)
	return &ee.FaultFreePhases[len(ee.FaultFreePhases)-1]
}

var (
	brokenAttempts = map[string]func(f *evidenceEditor){"an attempt is repeated": func(f *evidenceEditor) {
		begin := *f.effect("chain-0", "link", false)
		f.FaultFreePhases = append(f.FaultFreePhases, evidence.FaultFreePhase{Begin: begin.At - 1, LoadEnd: begin.At, End: begin.At + time.Hour})
		begin.At++
		f.Effects = append(f.Effects, begin)
	}}
	brokenProgress = map[string]func(f *evidenceEditor){
		"an instance is stuck":          func(f *evidenceEditor) { f.addFaultFreePhase(time.Millisecond, 1).Stuck = []string{"chain-0"} },
		"remote clients get no answers": func(f *evidenceEditor) { f.addFaultFreePhase(time.Millisecond, 1); f.clearRemote() },
	}
	brokenLatency = map[string]func(f *evidenceEditor){
		"writes take longer": func(f *evidenceEditor) {
			f.addFaultFreePhase(time.Millisecond, time.Millisecond)
			f.addFaultFreePhase(100*time.Millisecond, time.Millisecond)
		},
		"one in fifty takes longer": func(f *evidenceEditor) {
			f.addFaultFreePhase(time.Millisecond, time.Millisecond)
			from := len(f.Calls)
			f.addFaultFreePhase(time.Millisecond, time.Millisecond)
			for i := from; i < len(f.Calls); i += 50 {
				f.Calls[i].End += 100 * time.Millisecond
			}
		},
	}
)

func (ee *evidenceEditor) clearRemote() {
	for i := range ee.Calls {
		ee.Calls[i].Remote = false
	}
}

// Effects of a slower machine or of a new leader are not violations.
func TestFaultFreePhase_AllowsSlowMachine(t *testing.T) {
	good := goodEvidence(t)
	of := []string{"L9", "L10", "L11"}
	matches := func(f *evidenceEditor) bool {
		return slices.ContainsFunc(Run(f.Record, registry(t)).Violations, func(v Violation) bool { return slices.Contains(of, v.Invariant) })
	}
	f := editEvidence(t, good)
	f.addFaultFreePhase(time.Millisecond, time.Millisecond)
	f.addFaultFreePhase(100*time.Millisecond, 100*time.Millisecond)
	if matches(f) {
		t.Error("a slower machine was reported as a slower cluster")
	}
	f = editEvidence(t, good)
	brokenAttempts["an attempt is repeated"](f)
	f.FaultFreePhases[0].LeaderChanges = 1
	f.Calls = append(f.Calls, ackedCall(f, true), ackedCall(f, false))
	if matches(f) {
		t.Error("an attempt that a new leader repeated was reported")
	}
	f = editEvidence(t, good)
	brokenEvidence["S11"]["twice without a fault"](f)
	f.LeaderChanges = 1
	if slices.ContainsFunc(Run(f.Record, registry(t)).Violations, func(v Violation) bool { return v.Invariant == "S11" }) {
		t.Error("an attempt that a new leader repeated between the phases was reported")
	}
}

// ackedCall returns a call in the first fault-free phase.
func ackedCall(f *evidenceEditor, remote bool) evidence.Call {
	return evidence.Call{
		Request: evidence.Request{Kind: evidence.Query, Instance: "fan-0"}, Answer: evidence.Answer{Outcome: evidence.Acked},
		Remote: remote, Begin: f.FaultFreePhases[0].Begin, End: f.FaultFreePhases[0].End,
	}
}

func TestEntities_WrongSumIsFound(t *testing.T) {
	f := editEvidence(t, goodEvidence(t))
	f.event("entity-0", 2, journalpb.TypeOrchestrationCompleted, func(e *journalpb.Event) {
		e.GetOrchestrationCompleted().Output.Data = bytes.Replace(e.GetOrchestrationCompleted().Output.Data, []byte("15"), []byte("20"), 1)
	})
	if !slices.ContainsFunc(Run(f.Record, registry(t)).Violations, func(v Violation) bool { return v.Invariant == "S15" }) {
		t.Error("a wrong sum was not reported")
	}
}
