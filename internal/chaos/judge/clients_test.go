package judge

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

// callAll makes a call of every kind that the workloads before there were entities do not make.
func (w *witness) callAll() {
	w.t.Helper()
	w.call(evidence.Start, "entity-0", host.Entity, host.EntityInput{Sum: 10})
	for range host.EntityInputs + 1 {
		w.call(evidence.Send, "entity-0", host.Number, "tick")
	}
	w.call(evidence.Get, "entity-0", "", nil)
	w.call(evidence.Suspend, "entity-0", "", nil)
	w.call(evidence.Resume, "entity-0", "", nil)
	for _, kind := range []evidence.Kind{evidence.Update, evidence.Query} {
		name := map[evidence.Kind]string{evidence.Update: host.Add, evidence.Query: host.Sum}[kind]
		for w.call(kind, "entity-0", name, 5); w.last().Code == evidence.Early; w.call(kind, "entity-0", name, 5) {
			runtime.Gosched() // the execution that follows has no handler yet
		}
	}
	w.call(evidence.List, "entity-0", "", nil)
	w.call(evidence.Send, "entity-0", host.Number, host.End)
	w.call(evidence.Wait, "entity-0", "", nil)
	w.call(evidence.Get, "entity-0", "", nil)
	w.do(evidence.Request{Kind: evidence.Watch, Instance: "entity-0"})
	w.do(evidence.Request{Kind: evidence.Send, Instance: "entity-0", Name: host.Number, RequestID: "ended", Limit: -1, Input: []byte(`"x"`)})

	w.call(evidence.Start, "approval-0", host.Approval, 1)
	for w.log.Token("approval-0") == "" {
		runtime.Gosched()
	}
	for _, nonce := range []string{"first", "second"} {
		done, err := json.Marshal(evidence.Done{Value: 2, Nonce: nonce})
		if err != nil {
			w.t.Fatal(err)
		}
		w.do(evidence.Request{Kind: evidence.Complete, Instance: "approval-0", Token: w.log.Token("approval-0"), Input: done})
	}
	w.call(evidence.Wait, "approval-0", "", nil)

	w.call(evidence.Start, "chain-3", host.Chain, host.ChainInput{Pause: time.Minute})
	w.call(evidence.Cancel, "chain-3", "", nil)
	w.call(evidence.Wait, "chain-3", "", nil)
	w.call(evidence.SendOrStart, "register-1", host.Register, "x")
	w.call(evidence.Terminate, "register-1", "", nil)
}

// last returns the answer to the last call.
func (w *witness) last() evidence.Answer {
	calls := w.log.Record().Calls
	return calls[len(calls)-1].Answer
}

// recordedID returns the request ID of an event that is recorded.
func recordedID(f *forger) string { return f.call(evidence.Send, "register-0", 0).RequestID }

var nothingDoneForgeries = map[string]func(f *forger){
	"an event is recorded that was not sent": func(f *forger) {
		f.call(evidence.Send, "register-0", 0).Answer = evidence.Answer{Outcome: evidence.NotExecuted}
	},
	"an event is recorded that was refused": func(f *forger) {
		refused := *f.call(evidence.Send, "entity-0", 0)
		refused.Instance, refused.RequestID = "register-0", recordedID(f)
		refused.Answer = evidence.Answer{Outcome: evidence.Refused, Code: evidence.Ended}
		f.Calls = append(f.Calls, refused)
	},
}

var looksForgeries = map[string]func(f *forger){
	"a get shows less than one before": func(f *forger) { f.call(evidence.Get, "entity-0", 1).Execution = 1 },
	"a get shows more than there is":   func(f *forger) { f.call(evidence.Get, "entity-0", 1).LastEventID = 1000 },
	"a list lacks an instance":         func(f *forger) { f.call(evidence.List, "entity-0", 0).Listed = nil },
	"a list shows one twice": func(f *forger) {
		f.call(evidence.List, "entity-0", 0).Listed = []string{"entity-0", "entity-0"}
	},
	"a list shows one that nobody started": func(f *forger) {
		f.call(evidence.List, "entity-0", 0).Listed = []string{"entity-0", "entity-0/none"}
	},
}

var watchForgeries = map[string]func(f *forger){
	"an event is missing": func(f *forger) {
		watch := f.call(evidence.Watch, "entity-0", 0)
		watch.Watched = slices.Delete(watch.Watched, 2, 3)
	},
	"an event is shown twice": func(f *forger) {
		watch := f.call(evidence.Watch, "entity-0", 0)
		watch.Watched = slices.Insert(watch.Watched, 2, watch.Watched[1])
	},
	"an event is another": func(f *forger) { f.call(evidence.Watch, "entity-0", 0).Watched[1].Digest = "another" },
	"the rest of an execution is missing": func(f *forger) {
		watch := f.call(evidence.Watch, "entity-0", 0)
		watch.Watched = slices.DeleteFunc(watch.Watched, func(e evidence.Watched) bool { return e.Execution == 1 && e.EventID > 3 })
	},
	"it ended too soon": func(f *forger) {
		watch := f.call(evidence.Watch, "entity-0", 0)
		watch.Watched = watch.Watched[:len(watch.Watched)-1]
	},
}

var commandForgeries = map[string]func(f *forger){
	"a cancellation is not there": func(f *forger) { f.call(evidence.Cancel, "chain-3", 0).Instance = "chain-0" },
	"a suspension is not there":   func(f *forger) { f.call(evidence.Suspend, "entity-0", 0).Instance = "chain-0" },
	"nobody has suspended it": func(f *forger) {
		f.Calls = slices.DeleteFunc(f.Calls, func(call evidence.Call) bool { return call.Kind == evidence.Suspend })
	},
	"two completions are acknowledged": func(f *forger) {
		f.call(evidence.Complete, "approval-0", 1).Answer = evidence.Answer{Outcome: evidence.Acked}
	},
	"the completion that counts is refused": func(f *forger) {
		f.call(evidence.Complete, "approval-0", 0).Answer = evidence.Answer{Outcome: evidence.Refused, Code: evidence.Closed}
	},
}

var entityForgeries = map[string]func(f *forger){
	"a query misses an update": func(f *forger) { f.lastCall(evidence.Query, "entity-0").Output = []byte("10") },
	"an update is answered as if it were alone": func(f *forger) {
		f.lastCall(evidence.Update, "entity-0").Output = []byte("5")
	},
}

// lastCall returns the last call of a kind on an instance.
func (f *forger) lastCall(kind evidence.Kind, id string) (last *evidence.Call) {
	f.t.Helper()
	for i := range f.Calls {
		if call := &f.Calls[i]; call.Kind == kind && call.Instance == id {
			last = call
		}
	}
	if last == nil {
		f.t.Fatalf("no %s of %s", kind, id)
	}
	return last
}

// quiet adds a phase without faults after all that is recorded, in which writes of probes take so
// long and the machine's own work does.
func (f *forger) quiet(write, control time.Duration) *evidence.Quiet {
	begin := time.Hour * time.Duration(1+len(f.Quiets))
	quiet := evidence.Quiet{Begin: begin, Loaded: begin + 10*time.Minute, End: begin + 20*time.Minute}
	for i := range latenciesMin {
		sent := *f.call(evidence.Send, "register-0", 0)
		sent.Instance, sent.RequestID, sent.Remote = "probe-0", "", i == 0
		sent.Outcome, sent.Begin = evidence.Acked, begin+time.Duration(i)*time.Second
		sent.End = sent.Begin + write
		f.Calls = append(f.Calls, sent)
		quiet.Control = append(quiet.Control, control)
	}
	of := evidence.Instance{ID: "probe-0"}
	for r := range f.Replicas {
		f.instances(r, "register-0", func(register *evidence.Instance) { of.State, of.Executions = register.State, register.Executions })
		if !f.Replicas[r].Whole || len(f.Quiets) > 0 {
			continue
		}
		f.Replicas[r].Instances = append(f.Replicas[r].Instances, of)
	}
	f.Quiets = append(f.Quiets, quiet)
	return &f.Quiets[len(f.Quiets)-1]
}

var (
	triedOnceForgeries = map[string]func(f *forger){"an attempt is repeated": func(f *forger) {
		begin := *f.effect("chain-0", "link", false)
		f.Quiets = append(f.Quiets, evidence.Quiet{Begin: begin.At - 1, Loaded: begin.At, End: begin.At + time.Hour})
		begin.At++
		f.Effects = append(f.Effects, begin)
	}}
	stuckForgeries = map[string]func(f *forger){
		"something is stuck":             func(f *forger) { f.quiet(time.Millisecond, 1).Stuck = []string{"chain-0"} },
		"remote clients have no answers": func(f *forger) { f.quiet(time.Millisecond, 1); f.noRemote() },
	}
	latencyForgeries = map[string]func(f *forger){
		"writes take longer": func(f *forger) {
			f.quiet(time.Millisecond, time.Millisecond)
			f.quiet(100*time.Millisecond, time.Millisecond)
		},
		"one in fifty takes longer": func(f *forger) {
			f.quiet(time.Millisecond, time.Millisecond)
			from := len(f.Calls)
			f.quiet(time.Millisecond, time.Millisecond)
			for i := from; i < len(f.Calls); i += 50 {
				f.Calls[i].End += 100 * time.Millisecond
			}
		},
	}
)

func (f *forger) noRemote() {
	for i := range f.Calls {
		f.Calls[i].Remote = false
	}
}

// What a slower machine and a new leader explain is no violation.
func TestAPhaseWithoutFaultsIsJudgedByWhatTheMachineDid(t *testing.T) {
	good := goodEvidence(t)
	of := []string{"L9", "L10", "L11"}
	judged := func(f *forger) bool {
		return slices.ContainsFunc(Judge(f.Record, registry(t)).Violations, func(v Violation) bool { return slices.Contains(of, v.Invariant) })
	}
	f := forge(t, good)
	f.quiet(time.Millisecond, time.Millisecond)
	f.quiet(100*time.Millisecond, 100*time.Millisecond)
	if judged(f) {
		t.Error("a machine that is slower as a whole is taken for a slower cluster")
	}
	f = forge(t, good)
	triedOnceForgeries["an attempt is repeated"](f)
	f.Quiets[0].Changes = 1
	f.Calls = append(f.Calls, answered(f, true), answered(f, false))
	if judged(f) {
		t.Error("an attempt that a new leader has repeated is one too many")
	}
}

// answered is a call within the first phase without faults.
func answered(f *forger, remote bool) evidence.Call {
	return evidence.Call{
		Request: evidence.Request{Kind: evidence.Query, Instance: "fan-0"}, Answer: evidence.Answer{Outcome: evidence.Acked},
		Remote: remote, Begin: f.Quiets[0].Begin, End: f.Quiets[0].End,
	}
}

func TestWhatEntitiesComeToIsJudged(t *testing.T) {
	f := forge(t, goodEvidence(t))
	f.event("entity-0", 2, journalpb.ArmOrchestrationCompleted, func(e *journalpb.Event) {
		e.GetOrchestrationCompleted().Output.Data = bytes.Replace(e.GetOrchestrationCompleted().Output.Data, []byte("15"), []byte("20"), 1)
	})
	if !slices.ContainsFunc(Judge(f.Record, registry(t)).Violations, func(v Violation) bool { return v.Invariant == "S15" }) {
		t.Error("a sum that is no sum of updates is not seen")
	}
}
