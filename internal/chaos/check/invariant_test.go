package check

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/slots"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// brokenEvidence maps each invariant to changes of the evidence that it must report. Most violate
// other invariants too.
var brokenEvidence = map[string]map[string]func(f *evidenceEditor){
	"S1": {"an event is missing": func(f *evidenceEditor) {
		f.history("chain-0", 1, func(events []*journalpb.Event) []*journalpb.Event { return slices.Delete(events, 2, 3) })
	}},
	"S2": {
		"time goes back": func(f *evidenceEditor) {
			f.event("chain-0", 1, journalpb.TypeActivityCompleted, func(e *journalpb.Event) { e.Timestamp = 1 })
		},
		"an epoch is started twice": func(f *evidenceEditor) { f.Leaderships = append(f.Leaderships, f.Leaderships[0]) },
	},
	"S3": {
		"one read shows another event": func(f *evidenceEditor) {
			f.instances(0, "register-0", func(of *evidence.Instance) { of.Executions[0].Events[1] = []byte{8, 2} })
		},
		"a later read shows less": func(f *evidenceEditor) {
			f.instances(1, "register-0", func(of *evidence.Instance) {
				of.Executions[0].Events = of.Executions[0].Events[:3]
			})
		},
	},
	"S4": {
		"a node has another history": func(f *evidenceEditor) {
			f.instances(2, "chain-0", func(of *evidence.Instance) { of.Executions[0].Digest = "another" })
		},
		"a node has another state": func(f *evidenceEditor) {
			f.instances(2, "chain-0", func(of *evidence.Instance) { of.State = "failed" })
		},
		"a node lacks an instance": func(f *evidenceEditor) { f.Replicas[2].Instances = f.Replicas[2].Instances[1:] },
		"a node has an extra instance": func(f *evidenceEditor) {
			f.Replicas[2].Instances = append(f.Replicas[2].Instances, evidence.Instance{ID: "more"})
		},
	},
	"S5": {
		"an acknowledged event is missing": func(f *evidenceEditor) {
			f.event("register-0", 1, journalpb.TypeExternalEvent, func(e *journalpb.Event) { e.GetExternalEvent().RequestId = "1" })
		},
		"an acknowledged start is missing": func(f *evidenceEditor) {
			for r := range f.Replicas {
				f.Replicas[r].Instances = slices.DeleteFunc(f.Replicas[r].Instances, func(of evidence.Instance) bool { return of.ID == "chain-0" })
			}
		},
		"an acknowledged update is missing": func(f *evidenceEditor) {
			f.event("tally-0", 1, journalpb.TypeSideEffectRecorded, func(e *journalpb.Event) { e.GetSideEffectRecorded().Label = "nobody" })
		},
		"an update returned another result": func(f *evidenceEditor) { f.call(evidence.Update, "tally-0", 1).Output = []byte("8") },
		"a reported end differs":            func(f *evidenceEditor) { f.call(evidence.Wait, "chain-0", 0).State = "failed" },
	},
	"S6": {"an event is recorded twice": func(f *evidenceEditor) { f.duplicate("register-0", 1, journalpb.TypeExternalEvent) }},
	"S7": {
		"an event without a call": func(f *evidenceEditor) {
			f.event("register-0", 1, journalpb.TypeExternalEvent, func(e *journalpb.Event) { e.GetExternalEvent().RequestId = "nobody" })
		},
		"an instance without a call": func(f *evidenceEditor) {
			f.event("chain-0", 1, journalpb.TypeOrchestrationStarted, func(e *journalpb.Event) { e.GetOrchestrationStarted().RequestId = "nobody" })
		},
		"a completion before its cause": func(f *evidenceEditor) {
			f.event("chain-0", 1, journalpb.TypeActivityCompleted, func(e *journalpb.Event) { e.SourceEventId = e.EventId + 1 })
		},
	},
	"S8": {
		"a second completion": func(f *evidenceEditor) { f.duplicate("chain-0", 1, journalpb.TypeActivityCompleted) },
		"a completion of something else": func(f *evidenceEditor) {
			f.event("cycle-0", 1, journalpb.TypeTimerFired, func(e *journalpb.Event) { e.SourceEventId = 2 })
		},
	},
	"S9": {
		"it was not scheduled": func(f *evidenceEditor) { f.effect("chain-0", "link", false).EventID = 1000 },
		"another task started": func(f *evidenceEditor) { f.effect("chain-0", "link", false).Task.Value++ },
		"it started too soon":  func(f *evidenceEditor) { f.effect("chain-0", "link", false).ScheduleNotApplied = true },
	},
	"S10": {"no attempt returned that result": func(f *evidenceEditor) { f.effect("chain-0", "link", true).Result.Nonce = "another" }},
	"S11": {
		"twice without a fault": func(f *evidenceEditor) { f.Effects = append(f.Effects, *f.effect("chain-0", "link", false)) },
		"long after the end": func(f *evidenceEditor) {
			f.effect("chain-0", "link", false).At = f.call(evidence.Wait, "chain-0", 0).End + attemptGrace + time.Second
		},
	},
	"S12": {"what follows a timer begins too soon": func(f *evidenceEditor) {
		f.effect("cycle-0", "after", false).At = f.effect("cycle-0", "before", true).At + time.Millisecond
	}},
	"S13": {
		"a timer fires twice": func(f *evidenceEditor) { f.duplicate("cycle-0", 1, journalpb.TypeTimerFired) },
		"a timer fires before its time": func(f *evidenceEditor) {
			f.event("cycle-0", 1, journalpb.TypeTimerFired, func(e *journalpb.Event) { e.Timestamp -= int64(time.Second) })
		},
		"a timer fires for another time": func(f *evidenceEditor) {
			f.event("cycle-0", 1, journalpb.TypeTimerFired, func(e *journalpb.Event) { e.GetTimerFired().FireAt++ })
		},
	},
	"S14": {
		"the parent has another result": func(f *evidenceEditor) {
			f.event("tree-0", 1, journalpb.TypeSubOrchestrationCompleted, func(e *journalpb.Event) { e.GetSubOrchestrationCompleted().Result.Data = []byte("99") })
		},
		"the child has another parent": func(f *evidenceEditor) {
			child := ""
			f.event("tree-0", 1, journalpb.TypeSubOrchestrationScheduled, func(e *journalpb.Event) { child = e.GetSubOrchestrationScheduled().Instance })
			f.event(child, 1, journalpb.TypeOrchestrationStarted, func(e *journalpb.Event) { e.GetOrchestrationStarted().Parent.EventId = 3 })
		},
		"the child is missing": func(f *evidenceEditor) {
			f.event("tree-0", 1, journalpb.TypeSubOrchestrationScheduled, func(e *journalpb.Event) { e.GetSubOrchestrationScheduled().Instance = "nobody" })
		},
		"a chained start is missing": func(f *evidenceEditor) {
			f.event("relay-4", 1, journalpb.TypeOrchestrationChained, func(e *journalpb.Event) { e.GetOrchestrationChained().Instance = "nobody" })
		},
		"a chained start has another input": func(f *evidenceEditor) {
			f.event("relay-4.1", 1, journalpb.TypeOrchestrationStarted, func(e *journalpb.Event) { e.GetOrchestrationStarted().Input.Data = []byte("{}") })
		},
		"a chained start without an event": func(f *evidenceEditor) {
			f.history("relay-4", 1, func(events []*journalpb.Event) []*journalpb.Event {
				return slices.DeleteFunc(events, func(e *journalpb.Event) bool { return e.TypeNumber() == journalpb.TypeOrchestrationChained })
			})
		},
	},
	"S15": {
		"events are consumed out of order": func(f *evidenceEditor) {
			f.event("cycle-0", 2, journalpb.TypeOrchestrationCompleted, func(e *journalpb.Event) {
				e.GetOrchestrationCompleted().Output.Data = []byte(`["a-1","a-0","b-0","b-1"]`)
			})
		},
		"an update is executed twice": func(f *evidenceEditor) { f.duplicate("tally-0", 1, journalpb.TypeSideEffectRecorded) },
		"an update does not see the one before": func(f *evidenceEditor) {
			f.event("tally-0", 1, journalpb.TypeSideEffectRecorded, func(e *journalpb.Event) { e.GetSideEffectRecorded().Value.Data = []byte("7") })
		},
		"a tally forgets an update": func(f *evidenceEditor) {
			f.event("tally-0", 1, journalpb.TypeOrchestrationCompleted, func(e *journalpb.Event) { e.GetOrchestrationCompleted().Output.Data = []byte("8") })
		},
	},
	"S16": {"the code requests another operation": func(f *evidenceEditor) {
		f.event("chain-0", 1, journalpb.TypeActivityScheduled, func(e *journalpb.Event) { e.GetActivityScheduled().Name = "another" })
	}},
	"S17": {
		"an execution is missing": func(f *evidenceEditor) {
			f.instances(1, "cycle-0", func(of *evidence.Instance) { of.Executions = of.Executions[:1] })
		},
		"carried-over inputs are missing": func(f *evidenceEditor) {
			f.event("cycle-0", 2, journalpb.TypeOrchestrationStarted, func(e *journalpb.Event) { e.GetOrchestrationStarted().Inbox = nil })
		},
	},
	"S18": {
		"an event follows the end": func(f *evidenceEditor) {
			f.history("chain-0", 1, func(events []*journalpb.Event) []*journalpb.Event { return append(events, events[2]) })
		},
		"the state is another": func(f *evidenceEditor) {
			f.instances(1, "chain-0", func(of *evidence.Instance) { of.State = "failed" })
		},
	},
	"S19": {
		"a terminated instance has completed": func(f *evidenceEditor) { f.call(evidence.Terminate, "chain-2", 0).Instance = "chain-0" },
		"an attempt starts long after": func(f *evidenceEditor) {
			late := *f.effect("chain-0", "link", false)
			late.Instance, late.At = "chain-2", f.call(evidence.Terminate, "chain-2", 0).End+attemptGrace+time.Second
			f.Effects = append(f.Effects, late)
		},
	},
	"S20": {
		"a read misses an acknowledged event": func(f *evidenceEditor) {
			read := f.call(evidence.Read, "register-0", 1)
			read.AcceptedIDs = read.AcceptedIDs[:1]
		},
		"a read shows what came later": func(f *evidenceEditor) {
			f.call(evidence.Read, "register-0", 1).Answer = f.call(evidence.Read, "register-0", 2).Answer
		},
		"an event is rejected that is not too late": func(f *evidenceEditor) {
			f.call(evidence.Send, "register-0", 0).Answer = evidence.Answer{Outcome: evidence.Rejected, Code: evidence.Ended}
		},
		"a query misses an update":                  brokenEntities["a query misses an update"],
		"an update's result ignores another update": brokenEntities["an update's result ignores another update"],
		"a second start is acknowledged": func(f *evidenceEditor) {
			f.call(evidence.Start, "register-0", 1).Answer = evidence.Answer{Outcome: evidence.Acked}
		},
	},
	"S21": {"the index goes back": func(f *evidenceEditor) { f.call(evidence.Read, "register-0", 2).AppliedIndex = 1 }},
	"S22": {
		"it has another history afterwards": func(f *evidenceEditor) {
			f.Installs = []evidence.Install{{Node: "node", Index: 7}}
			f.instances(2, "chain-0", func(of *evidence.Instance) { of.Executions[0].Digest = "another" })
		},
		"it does not know a request ID": func(f *evidenceEditor) {
			again := *f.call(evidence.Send, "cycle-0", 0)
			again.Repeated, again.Answer = true, evidence.Answer{Outcome: evidence.Rejected, Code: evidence.Ended}
			f.Calls = append(f.Calls, again)
		},
	},
	"S23": {
		"another input": func(f *evidenceEditor) { f.call(evidence.Start, "chain-0", 0).Input = []byte("{}") },
		"another event": func(f *evidenceEditor) { f.call(evidence.Send, "register-0", 0).Input = []byte("{}") },
		"another output of a chain": func(f *evidenceEditor) {
			f.call(evidence.Wait, "chain-0", 0).Output = []byte("{}")
		},
		"another output of a fan":  func(f *evidenceEditor) { f.call(evidence.Wait, "fan-0", 0).Output = []byte("0") },
		"another output of a tree": func(f *evidenceEditor) { f.call(evidence.Wait, "tree-0", 0).Output = []byte("0") },
	},
	"S24": {
		"it is there again": func(f *evidenceEditor) {
			f.instances(1, "chain-0", func(of *evidence.Instance) {
				back := *of
				back.ID = "chain-1"
				f.Replicas[1].Instances = append(f.Replicas[1].Instances, back)
			})
		},
		"a call on it is acknowledged": func(f *evidenceEditor) { f.call(evidence.Wait, "chain-0", 0).Instance = "chain-1" },
	},
	"S25": {"a wiped node leads": func(f *evidenceEditor) {
		f.Faults = append(f.Faults, evidence.Fault{Name: "wipe-node", Violations: []string{"n1 leads"}})
	}, "two nodes lead in one term": func(f *evidenceEditor) {
		f.Leaderships = append(f.Leaderships, evidence.Leadership{Node: "other", Epoch: 2, Term: f.Leaderships[0].Term})
	}},
	"S26": {
		"a process ends by itself":           func(f *evidenceEditor) { f.Exits[0].Expected = false },
		"a process does not stop when asked": func(f *evidenceEditor) { f.Exits[0].Killed = true },
	},
	"L2": {"it has not ended": func(f *evidenceEditor) {
		f.history("chain-0", 1, func(events []*journalpb.Event) []*journalpb.Event { return events[:len(events)-1] })
	}},
	"S27": brokenNotExecuted,
	"S28": brokenReads,
	"S29": brokenWatches,
	"S30": brokenCommands,
	"L9":  brokenAttempts,
	"L10": brokenProgress,
	"L11": brokenLatency,
	"S31": {
		"a delivered message is not recorded": func(f *evidenceEditor) {
			f.event("receiver-0", 1, journalpb.TypeExternalEvent, func(e *journalpb.Event) { e.GetExternalEvent().RequestId = "1" })
		},
		"a message is recorded twice": func(f *evidenceEditor) { f.duplicate("receiver-0", 1, journalpb.TypeExternalEvent) },
		"a rejected message is recorded": func(f *evidenceEditor) {
			f.event("sender-0", 1, journalpb.TypeMessageDelivered, func(e *journalpb.Event) {
				e.Body = &journalpb.Event_MessageRejected{MessageRejected: new(journalpb.MessageRejected)}
			})
		},
		"a message that nobody sent": func(f *evidenceEditor) {
			f.event("receiver-0", 1, journalpb.TypeExternalEvent, func(e *journalpb.Event) { e.GetExternalEvent().RequestId = "tenuto.send/nobody" })
		},
		"a message to another receiver": func(f *evidenceEditor) {
			f.event("sender-0", 1, journalpb.TypeMessageSent, func(e *journalpb.Event) { e.GetMessageSent().Instance = "receiver-1" })
		},
		"a delivered cancellation is not recorded": func(f *evidenceEditor) {
			f.history("receiver-1", 1, func(events []*journalpb.Event) []*journalpb.Event {
				return slices.DeleteFunc(events, func(e *journalpb.Event) bool { return e.GetOrchestrationCancelRequested() != nil })
			})
		},
		"a sender returned other counts": func(f *evidenceEditor) {
			f.event("sender-0", 1, journalpb.TypeOrchestrationCompleted, func(e *journalpb.Event) {
				e.GetOrchestrationCompleted().Output.Data = []byte(`{"Delivered":99,"Rejected":0}`)
			})
		},
	},
	"S32": {
		"an acknowledged start is missing": func(f *evidenceEditor) {
			f.Replicas[3].Instances = slices.DeleteFunc(f.Replicas[3].Instances, func(of evidence.Instance) bool { return of.ID == "chain-0" })
		},
		"an acknowledged event is missing": func(f *evidenceEditor) {
			f.instances(3, "register-0", func(of *evidence.Instance) { of.Executions[0].Events = of.Executions[0].Events[:2] })
		},
		"a message was recorded that was not sent": func(f *evidenceEditor) {
			f.instances(3, "sender-0", func(of *evidence.Instance) { of.Executions[0].Events = of.Executions[0].Events[:1] })
		},
		"it is garbage": func(f *evidenceEditor) {
			f.instances(3, "chain-0", func(of *evidence.Instance) { of.Executions[0].Events[2] = []byte{0xff} })
		},
	},
	"S33": {
		"what the survivor had is missing": func(f *evidenceEditor) {
			f.Replicas[4].Instances = slices.DeleteFunc(f.Replicas[4].Instances, func(of evidence.Instance) bool { return of.ID == "fan-0" })
		},
		"what the survivor had differs": func(f *evidenceEditor) {
			f.instances(4, "fan-0", func(of *evidence.Instance) { slices.Reverse(of.Executions[0].Events[1:3]) })
		},
		"what had reached the survivor is missing": func(f *evidenceEditor) {
			f.loseInRecovery("tally-0", "running", func(of *evidence.Instance) { of.Executions[0].Events = of.Executions[0].Events[:2] })
		},
		"an instance that had ended lacks an event": func(f *evidenceEditor) {
			f.loseInRecovery("register-0", "terminated", func(of *evidence.Instance) {
				events := &of.Executions[0].Events
				*events = append((*events)[:1:1], (*events)[2:]...)
			})
		},
		"it reports too few instances": func(f *evidenceEditor) {
			f.loseInRecovery("register-0", "running", func(*evidence.Instance) {})
			f.Replicas[4].Recovery.Affected = 0
		},
		"it does not work": func(f *evidenceEditor) { f.Replicas[4].Recovery.Calls[0].State = "failed" },
		"it is garbage": func(f *evidenceEditor) {
			f.instances(4, "chain-0", func(of *evidence.Instance) { of.Executions[0].Events[2] = []byte{0xff} })
		},
	},
	"S34": {
		"too few vote": func(f *evidenceEditor) {
			f.Faults = append(f.Faults, evidence.Fault{Members: []evidence.Members{{Wanted: 3, Voters: []evidence.Member{{Node: "n1"}}}}})
		},
		"a node votes at its former address": func(f *evidenceEditor) {
			f.Faults = append(f.Faults, evidence.Fault{Members: []evidence.Members{{
				Wanted: 1, Voters: []evidence.Member{{Node: "n1", Address: "a"}}, Excluded: []evidence.Member{{Node: "n1", Address: "a"}},
			}}})
		},
		"a node has not got its vote back": func(f *evidenceEditor) {
			f.Faults = append(f.Faults, evidence.Fault{Members: []evidence.Members{{
				Wanted: 1, Voters: []evidence.Member{{Node: "n1", Identity: "a"}}, Required: []evidence.Member{{Node: "n1", Identity: "b"}},
			}}})
		},
	},
	"S35": {
		"it is not completed": func(f *evidenceEditor) {
			f.effect("chain-0", "link", false).Worker = true
			f.event("chain-0", 1, journalpb.TypeActivityCompleted, func(e *journalpb.Event) { e.SourceEventId = 1 })
		},
		"it is completed twice": func(f *evidenceEditor) {
			f.effect("chain-0", "link", false).Worker = true
			f.duplicate("chain-0", 1, journalpb.TypeActivityCompleted)
		},
		"it begins again without a fault": func(f *evidenceEditor) { f.repeatOnWorker(1) },
		"it begins again long after a fault": func(f *evidenceEditor) {
			f.repeatOnWorker(1)
			at := f.effect("chain-0", "link", false).At
			f.Faults = append(f.Faults, evidence.Fault{Begin: at - 2*attemptGrace, End: at - attemptGrace - time.Second})
		},
		"it begins too often during a fault": func(f *evidenceEditor) {
			f.repeatOnWorker(beginningsPerProcess + 1)
			at := f.effect("chain-0", "link", false).At
			f.Faults = append(f.Faults, evidence.Fault{Begin: at - 1, End: at + time.Second})
		},
	},
	Unreadable: {
		"no node returned a complete report": func(f *evidenceEditor) { f.Replicas = nil },
		"an event is garbage": func(f *evidenceEditor) {
			f.instances(1, "chain-0", func(of *evidence.Instance) { of.Executions[0].Events[2] = []byte{0xff} })
		},
	},
}

func TestInvariants_ViolationsAreFound(t *testing.T) {
	good := goodEvidence(t)
	code := registry(t)
	if result := Run(editEvidence(t, good).Record, code); len(result.Violations) > 0 {
		t.Fatalf("good evidence has violations: %v", result.Violations)
	}
	for _, invariant := range Invariants {
		if brokenEvidence[invariant.ID] == nil {
			t.Errorf("%s has no broken evidence", invariant.ID)
		}
	}
	for id, cases := range brokenEvidence {
		for name, change := range cases {
			t.Run(id+" "+name, func(t *testing.T) {
				f := editEvidence(t, good)
				change(f)
				result := Run(f.Record, code)
				if !slices.ContainsFunc(result.Violations, func(v Violation) bool { return v.Invariant == id }) {
					t.Errorf("not reported; reported was %v", result.Violations)
				}
			})
		}
	}
}

// The same evidence gives the same report, although some checks iterate over maps.
func TestRun_SortsViolations(t *testing.T) {
	f := editEvidence(t, goodEvidence(t))
	for i := range f.Effects {
		f.Effects[i].ScheduleNotApplied = true
	}
	violations := Run(f.Record, registry(t)).Violations
	if len(violations) < 10 {
		t.Fatalf("%d violations", len(violations))
	}
	if !slices.IsSortedFunc(violations, func(a, b Violation) int { return cmp.Compare(a.Detail, b.Detail) }) {
		t.Errorf("not sorted: %v", violations)
	}
}

func TestInvariants_List(t *testing.T) {
	var got []string
	for _, invariant := range Invariants {
		got = append(got, invariant.ID)
		if invariant.Statement == "" || invariant.check == nil {
			t.Errorf("%s has no statement or no check", invariant.ID)
		}
	}
	want := strings.Fields("S1 S2 S3 S4 S5 S6 S7 S8 S9 S10 S11 S12 S13 S14 S15 S16 S17 S18 S19 S20 S21 S22 S23 S24 S25 S26 S27 S28 S29 S30 S31 S32 S33 S34 S35 L2 L9 L10 L11")
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestRun_AcceptsUnknownOutcomes(t *testing.T) {
	good := goodEvidence(t)
	f := editEvidence(t, good)
	for _, kind := range []evidence.Kind{evidence.Send, evidence.Terminate} {
		f.call(kind, "register-0", 0).Answer = evidence.Answer{Outcome: evidence.Unknown}
	}
	// An event that was never recorded.
	f.call(evidence.Send, "register-0", 2).Answer = evidence.Answer{Outcome: evidence.Unknown}
	if result := Run(f.Record, registry(t)); len(result.Violations) > 0 {
		t.Error(result.Violations)
	}
}

func TestTimers_CheckedAcrossFullOutage(t *testing.T) {
	f := editEvidence(t, goodEvidence(t))
	brokenEvidence["S12"]["what follows a timer begins too soon"](f)
	at := f.effect("cycle-0", "before", true).At
	f.Faults = append(f.Faults, evidence.Fault{Name: "kill-all", Begin: at + 1, End: at + 3})
	for _, node := range []string{"n1", "n2", "n3"} {
		f.Exits = append(f.Exits, evidence.Exit{Node: node, Expected: true, At: at + 2})
	}
	if !slices.ContainsFunc(Run(f.Record, registry(t)).Violations, func(v Violation) bool { return v.Invariant == "S12" }) {
		t.Error("not reported")
	}
}

func TestResult_Report(t *testing.T) {
	good := goodEvidence(t)
	f := editEvidence(t, good)
	brokenEvidence["S20"]["a read misses an acknowledged event"](f)
	result := Run(f.Record, registry(t))
	var report bytes.Buffer
	result.Report(&report)
	for _, want := range []string{"VIOLATED S20: register-0", "S20  VIOLATED 1 times", "S1   holds", "S22  holds"} {
		if !strings.Contains(report.String(), want) {
			t.Errorf("the report does not say %q:\n%s", want, report.String())
		}
	}
	dir := t.TempDir()
	if err := result.Visualize(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "history.html")); err != nil {
		t.Error(err)
	}
	if uncovered := result.Uncovered(); len(uncovered) > 0 {
		t.Error(uncovered)
	}
	if uncovered := new(Result).Uncovered(); len(uncovered) != len(requiredCounts) {
		t.Errorf("of an empty result: %v", uncovered)
	}
}

// Partitions number their epochs, terms and indexes independently.
func TestRun_PartitionsAreIndependent(t *testing.T) {
	good := goodEvidence(t)
	code := registry(t)
	f := editEvidence(t, good)
	f.Partitions = 4
	for partition := range 4 {
		f.Leaderships = append(f.Leaderships, evidence.Leadership{Node: "other", Partition: partition + 1, Epoch: 1, Term: 2})
	}
	// Two instances of different partitions, one of which has a shorter journal.
	other := *f.call(evidence.Read, "register-0", 2)
	other.Instance, other.AppliedIndex = "fan-0", 1
	if slots.Partition(other.Instance, f.Partitions) == slots.Partition("register-0", f.Partitions) {
		t.Fatal("both are in one partition")
	}
	f.Calls = append(f.Calls, other)
	if result := Run(f.Record, code); len(result.Violations) > 0 {
		t.Error(result.Violations)
	}
	f.Leaderships = append(f.Leaderships, evidence.Leadership{Node: "third", Partition: 2, Epoch: 1, Term: 2})
	for _, id := range []string{"S2", "S25"} {
		if !slices.ContainsFunc(Run(f.Record, code).Violations, func(v Violation) bool { return v.Invariant == id }) {
			t.Errorf("%s is not reported in a partition", id)
		}
	}
}

// A run with several partitions counts only if some work crossed partitions.
func TestUncovered_NeedsCrossPartitionCalls(t *testing.T) {
	f := editEvidence(t, goodEvidence(t))
	if uncovered := Run(f.Record, registry(t)).Uncovered(); len(uncovered) > 0 {
		t.Errorf("one partition: %v", uncovered)
	}
	f.Partitions = 4
	crossed := Run(f.Record, registry(t))
	for _, name := range requiredCrossPartition {
		if crossed.Counts[name] == 0 {
			t.Errorf("no %s", name)
		}
		crossed.Counts[name] = 0
	}
	if uncovered := crossed.Uncovered(); len(uncovered) != len(requiredCrossPartition)+1 {
		t.Errorf("without crossings, and with one leader for four partitions: %v", uncovered)
	}
}

// Evidence of builds before partitions has no setup file.
func TestRun_AcceptsEvidenceWithoutSetup(t *testing.T) {
	dir := goodEvidence(t)
	if err := os.Remove(filepath.Join(dir, "setup.jsonl")); err != nil {
		t.Fatal(err)
	}
	f := editEvidence(t, dir)
	f.Calls = slices.DeleteFunc(f.Calls, func(call evidence.Call) bool { return call.Instance == "tally-0" })
	f.Replicas = f.Replicas[:4] // nor has it recovered clusters
	for i := range f.Replicas {
		reported := &f.Replicas[i].Instances
		*reported = slices.DeleteFunc(*reported, func(of evidence.Instance) bool { return of.ID == "tally-0" })
	}
	result := Run(f.Record, registry(t))
	if uncovered := result.Uncovered(); len(result.Violations) > 0 || len(uncovered) > 0 {
		t.Errorf("%v, %v", result.Violations, uncovered)
	}
}
