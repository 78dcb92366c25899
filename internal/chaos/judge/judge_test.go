package judge

import (
	"bytes"
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

// forgeries are what each invariant must see, by its ID. Most break others too.
var forgeries = map[string]map[string]func(f *forger){
	"S1": {"an event is missing": func(f *forger) {
		f.history("chain-0", 1, func(events []*journalpb.Event) []*journalpb.Event { return slices.Delete(events, 2, 3) })
	}},
	"S2": {
		"time goes back": func(f *forger) {
			f.event("chain-0", 1, journalpb.ArmActivityCompleted, func(e *journalpb.Event) { e.Timestamp = 1 })
		},
		"an epoch is begun twice": func(f *forger) { f.Reigns = append(f.Reigns, f.Reigns[0]) },
	},
	"S3": {
		"one read shows another event": func(f *forger) {
			f.instances(0, "register-0", func(of *evidence.Instance) { of.Executions[0].Events[1] = []byte{8, 2} })
		},
		"a later read shows less": func(f *forger) {
			f.instances(1, "register-0", func(of *evidence.Instance) {
				of.Executions[0].Events = of.Executions[0].Events[:3]
			})
		},
	},
	"S4": {
		"a node has another history": func(f *forger) {
			f.instances(2, "chain-0", func(of *evidence.Instance) { of.Executions[0].Digest = "another" })
		},
		"a node has another state": func(f *forger) {
			f.instances(2, "chain-0", func(of *evidence.Instance) { of.State = "failed" })
		},
		"a node lacks an instance": func(f *forger) { f.Replicas[2].Instances = f.Replicas[2].Instances[1:] },
		"a node has one more": func(f *forger) {
			f.Replicas[2].Instances = append(f.Replicas[2].Instances, evidence.Instance{ID: "more"})
		},
	},
	"S5": {
		"an acknowledged event is not there": func(f *forger) {
			f.event("register-0", 1, journalpb.ArmExternalEvent, func(e *journalpb.Event) { e.GetExternalEvent().RequestId = "1" })
		},
		"an acknowledged start is not there": func(f *forger) {
			for r := range f.Replicas {
				f.Replicas[r].Instances = slices.DeleteFunc(f.Replicas[r].Instances, func(of evidence.Instance) bool { return of.ID == "chain-0" })
			}
		},
		"an acknowledged update is not there": func(f *forger) {
			f.event("tally-0", 1, journalpb.ArmSideEffectRecorded, func(e *journalpb.Event) { e.GetSideEffectRecorded().Label = "nobody" })
		},
		"an update was answered otherwise": func(f *forger) { f.call(evidence.Update, "tally-0", 1).Output = []byte("8") },
		"an end that was told is another":  func(f *forger) { f.call(evidence.Wait, "chain-0", 0).State = "failed" },
	},
	"S6": {"an event is recorded twice": func(f *forger) { f.again("register-0", 1, journalpb.ArmExternalEvent) }},
	"S7": {
		"an event that nobody sent": func(f *forger) {
			f.event("register-0", 1, journalpb.ArmExternalEvent, func(e *journalpb.Event) { e.GetExternalEvent().RequestId = "nobody" })
		},
		"an instance that nobody started": func(f *forger) {
			f.event("chain-0", 1, journalpb.ArmOrchestrationStarted, func(e *journalpb.Event) { e.GetOrchestrationStarted().RequestId = "nobody" })
		},
		"a completion before its cause": func(f *forger) {
			f.event("chain-0", 1, journalpb.ArmActivityCompleted, func(e *journalpb.Event) { e.SourceEventId = e.EventId + 1 })
		},
	},
	"S8": {
		"a second completion": func(f *forger) { f.again("chain-0", 1, journalpb.ArmActivityCompleted) },
		"a completion of something else": func(f *forger) {
			f.event("cycle-0", 1, journalpb.ArmTimerFired, func(e *journalpb.Event) { e.SourceEventId = 2 })
		},
	},
	"S9": {
		"nobody scheduled it": func(f *forger) { f.effect("chain-0", "link", false).EventID = 1000 },
		"another task began":  func(f *forger) { f.effect("chain-0", "link", false).Task.Value++ },
		"it began too soon":   func(f *forger) { f.effect("chain-0", "link", false).Unseen = true },
	},
	"S10": {"nobody came to that result": func(f *forger) { f.effect("chain-0", "link", true).Done.Nonce = "another" }},
	"S11": {
		"twice without a fault": func(f *forger) { f.Effects = append(f.Effects, *f.effect("chain-0", "link", false)) },
		"long after the end": func(f *forger) {
			f.effect("chain-0", "link", false).At = f.call(evidence.Wait, "chain-0", 0).End + fence + time.Second
		},
	},
	"S12": {"what follows a timer begins too soon": func(f *forger) {
		f.effect("cycle-0", "after", false).At = f.effect("cycle-0", "before", true).At + time.Millisecond
	}},
	"S13": {
		"a timer fires twice": func(f *forger) { f.again("cycle-0", 1, journalpb.ArmTimerFired) },
		"a timer fires before its time": func(f *forger) {
			f.event("cycle-0", 1, journalpb.ArmTimerFired, func(e *journalpb.Event) { e.Timestamp -= int64(time.Second) })
		},
		"a timer fires for another time": func(f *forger) {
			f.event("cycle-0", 1, journalpb.ArmTimerFired, func(e *journalpb.Event) { e.GetTimerFired().FireAt++ })
		},
	},
	"S14": {
		"the parent has another result": func(f *forger) {
			f.event("tree-0", 1, journalpb.ArmSubOrchestrationCompleted, func(e *journalpb.Event) { e.GetSubOrchestrationCompleted().Result.Data = []byte("99") })
		},
		"the child has another parent": func(f *forger) {
			child := ""
			f.event("tree-0", 1, journalpb.ArmSubOrchestrationScheduled, func(e *journalpb.Event) { child = e.GetSubOrchestrationScheduled().Instance })
			f.event(child, 1, journalpb.ArmOrchestrationStarted, func(e *journalpb.Event) { e.GetOrchestrationStarted().Parent.EventId = 3 })
		},
		"the child is not there": func(f *forger) {
			f.event("tree-0", 1, journalpb.ArmSubOrchestrationScheduled, func(e *journalpb.Event) { e.GetSubOrchestrationScheduled().Instance = "nobody" })
		},
		"a chained start was not made": func(f *forger) {
			f.event("relay-4", 1, journalpb.ArmOrchestrationChained, func(e *journalpb.Event) { e.GetOrchestrationChained().Instance = "nobody" })
		},
		"a chained start was made otherwise": func(f *forger) {
			f.event("relay-4.1", 1, journalpb.ArmOrchestrationStarted, func(e *journalpb.Event) { e.GetOrchestrationStarted().Input.Data = []byte("{}") })
		},
		"a start was chained by nobody": func(f *forger) {
			f.history("relay-4", 1, func(events []*journalpb.Event) []*journalpb.Event {
				return slices.DeleteFunc(events, func(e *journalpb.Event) bool { return e.Arm() == journalpb.ArmOrchestrationChained })
			})
		},
	},
	"S15": {
		"events are consumed out of order": func(f *forger) {
			f.event("cycle-0", 2, journalpb.ArmOrchestrationCompleted, func(e *journalpb.Event) {
				e.GetOrchestrationCompleted().Output.Data = []byte(`["a-1","a-0","b-0","b-1"]`)
			})
		},
		"an update is carried out twice": func(f *forger) { f.again("tally-0", 1, journalpb.ArmSideEffectRecorded) },
		"an update does not see the one before": func(f *forger) {
			f.event("tally-0", 1, journalpb.ArmSideEffectRecorded, func(e *journalpb.Event) { e.GetSideEffectRecorded().Value.Data = []byte("7") })
		},
		"a tally forgets an update": func(f *forger) {
			f.event("tally-0", 1, journalpb.ArmOrchestrationCompleted, func(e *journalpb.Event) { e.GetOrchestrationCompleted().Output.Data = []byte("8") })
		},
	},
	"S16": {"the code would ask for something else": func(f *forger) {
		f.event("chain-0", 1, journalpb.ArmActivityScheduled, func(e *journalpb.Event) { e.GetActivityScheduled().Name = "another" })
	}},
	"S17": {
		"an execution is missing": func(f *forger) {
			f.instances(1, "cycle-0", func(of *evidence.Instance) { of.Executions = of.Executions[:1] })
		},
		"what was carried over is less": func(f *forger) {
			f.event("cycle-0", 2, journalpb.ArmOrchestrationStarted, func(e *journalpb.Event) { e.GetOrchestrationStarted().Inbox = nil })
		},
	},
	"S18": {
		"something follows the end": func(f *forger) {
			f.history("chain-0", 1, func(events []*journalpb.Event) []*journalpb.Event { return append(events, events[2]) })
		},
		"the state is another": func(f *forger) {
			f.instances(1, "chain-0", func(of *evidence.Instance) { of.State = "failed" })
		},
	},
	"S19": {
		"a terminated instance has completed": func(f *forger) { f.call(evidence.Terminate, "chain-2", 0).Instance = "chain-0" },
		"an attempt begins long after": func(f *forger) {
			late := *f.effect("chain-0", "link", false)
			late.Instance, late.At = "chain-2", f.call(evidence.Terminate, "chain-2", 0).End+fence+time.Second
			f.Effects = append(f.Effects, late)
		},
	},
	"S20": {
		"a read misses an acknowledged event": func(f *forger) {
			read := f.call(evidence.Read, "register-0", 1)
			read.Accepted = read.Accepted[:1]
		},
		"a read shows what came later": func(f *forger) {
			f.call(evidence.Read, "register-0", 1).Answer = f.call(evidence.Read, "register-0", 2).Answer
		},
		"an event is refused that is not too late": func(f *forger) {
			f.call(evidence.Send, "register-0", 0).Answer = evidence.Answer{Outcome: evidence.Refused, Code: evidence.Ended}
		},
		"a query misses an update":                  entityForgeries["a query misses an update"],
		"an update is answered as if it were alone": entityForgeries["an update is answered as if it were alone"],
		"a second start is acknowledged": func(f *forger) {
			f.call(evidence.Start, "register-0", 1).Answer = evidence.Answer{Outcome: evidence.Acked}
		},
	},
	"S21": {"the index goes back": func(f *forger) { f.call(evidence.Read, "register-0", 2).AppliedIndex = 1 }},
	"S22": {
		"it has another history afterwards": func(f *forger) {
			f.Installs = []evidence.Install{{Node: "node", Index: 7}}
			f.instances(2, "chain-0", func(of *evidence.Instance) { of.Executions[0].Digest = "another" })
		},
		"it does not know a request ID": func(f *forger) {
			again := *f.call(evidence.Send, "cycle-0", 0)
			again.Repeated, again.Answer = true, evidence.Answer{Outcome: evidence.Refused, Code: evidence.Ended}
			f.Calls = append(f.Calls, again)
		},
	},
	"S23": {
		"another input": func(f *forger) { f.call(evidence.Start, "chain-0", 0).Input = []byte("{}") },
		"another event": func(f *forger) { f.call(evidence.Send, "register-0", 0).Input = []byte("{}") },
		"another output of a chain": func(f *forger) {
			f.call(evidence.Wait, "chain-0", 0).Output = []byte("{}")
		},
		"another output of a fan":  func(f *forger) { f.call(evidence.Wait, "fan-0", 0).Output = []byte("0") },
		"another output of a tree": func(f *forger) { f.call(evidence.Wait, "tree-0", 0).Output = []byte("0") },
	},
	"S24": {
		"it is there again": func(f *forger) {
			f.instances(1, "chain-0", func(of *evidence.Instance) {
				back := *of
				back.ID = "chain-1"
				f.Replicas[1].Instances = append(f.Replicas[1].Instances, back)
			})
		},
		"a call on it is acknowledged": func(f *forger) { f.call(evidence.Wait, "chain-0", 0).Instance = "chain-1" },
	},
	"S25": {"a wiped node leads": func(f *forger) {
		f.Faults = append(f.Faults, evidence.Fault{Name: "wipe-node", Broken: []string{"n1 leads"}})
	}, "two nodes lead in one term": func(f *forger) {
		f.Reigns = append(f.Reigns, evidence.Reign{Node: "other", Epoch: 2, Term: f.Reigns[0].Term})
	}},
	"S26": {
		"a process ends by itself":                 func(f *forger) { f.Exits[0].Wanted = false },
		"a process does not let itself be stopped": func(f *forger) { f.Exits[0].Forced = true },
	},
	"L2": {"it has not ended": func(f *forger) {
		f.history("chain-0", 1, func(events []*journalpb.Event) []*journalpb.Event { return events[:len(events)-1] })
	}},
	"S27": nothingDoneForgeries,
	"S28": looksForgeries,
	"S29": watchForgeries,
	"S30": commandForgeries,
	"L9":  triedOnceForgeries,
	"L10": stuckForgeries,
	"L11": latencyForgeries,
	Unreadable: {
		"nobody has told all": func(f *forger) { f.Replicas = nil },
		"an event is garbage": func(f *forger) {
			f.instances(1, "chain-0", func(of *evidence.Instance) { of.Executions[0].Events[2] = []byte{0xff} })
		},
	},
}

func TestEveryInvariantCanBeBrokenAndIsSeen(t *testing.T) {
	good := goodEvidence(t)
	code := registry(t)
	if verdict := Judge(forge(t, good).Record, code); len(verdict.Violations) > 0 {
		t.Fatalf("of a run in which all went well: %v", verdict.Violations)
	}
	for _, invariant := range Invariants {
		if forgeries[invariant.ID] == nil {
			t.Errorf("%s: nothing shows that it can fail", invariant.ID)
		}
	}
	for id, cases := range forgeries {
		for name, change := range cases {
			t.Run(id+" "+name, func(t *testing.T) {
				f := forge(t, good)
				change(f)
				verdict := Judge(f.Record, code)
				if !slices.ContainsFunc(verdict.Violations, func(v Violation) bool { return v.Invariant == id }) {
					t.Errorf("not seen; seen was %v", verdict.Violations)
				}
			})
		}
	}
}

func TestInvariantsAreThoseOfTheContract(t *testing.T) {
	var got []string
	for _, invariant := range Invariants {
		got = append(got, invariant.ID)
		if invariant.Statement == "" || invariant.check == nil {
			t.Errorf("%s is not judged", invariant.ID)
		}
	}
	want := strings.Fields("S1 S2 S3 S4 S5 S6 S7 S8 S9 S10 S11 S12 S13 S14 S15 S16 S17 S18 S19 S20 S21 S22 S23 S24 S25 S26 S27 S28 S29 S30 L2 L9 L10 L11")
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestUnknownOutcomesFitWhateverHappened(t *testing.T) {
	good := goodEvidence(t)
	f := forge(t, good)
	for _, kind := range []evidence.Kind{evidence.Send, evidence.Terminate} {
		f.call(kind, "register-0", 0).Answer = evidence.Answer{Outcome: evidence.Unknown}
	}
	// One that was never carried out.
	f.call(evidence.Send, "register-0", 2).Answer = evidence.Answer{Outcome: evidence.Unknown}
	if verdict := Judge(f.Record, registry(t)); len(verdict.Violations) > 0 {
		t.Error(verdict.Violations)
	}
}

func TestATimerIsJudgedAlsoOverALossOfAllNodes(t *testing.T) {
	f := forge(t, goodEvidence(t))
	forgeries["S12"]["what follows a timer begins too soon"](f)
	at := f.effect("cycle-0", "before", true).At
	f.Faults = append(f.Faults, evidence.Fault{Name: "kill-all", Begin: at + 1, End: at + 3})
	for _, node := range []string{"n1", "n2", "n3"} {
		f.Exits = append(f.Exits, evidence.Exit{Node: node, Wanted: true, At: at + 2})
	}
	if !slices.ContainsFunc(Judge(f.Record, registry(t)).Violations, func(v Violation) bool { return v.Invariant == "S12" }) {
		t.Error("not seen")
	}
}

func TestAReportSaysWhatWasJudged(t *testing.T) {
	good := goodEvidence(t)
	f := forge(t, good)
	forgeries["S20"]["a read misses an acknowledged event"](f)
	verdict := Judge(f.Record, registry(t))
	var report bytes.Buffer
	verdict.Report(&report)
	for _, want := range []string{"VIOLATED S20: register-0", "S20  VIOLATED 1 times", "S1   holds", "S22  holds"} {
		if !strings.Contains(report.String(), want) {
			t.Errorf("the report does not say %q:\n%s", want, report.String())
		}
	}
	dir := t.TempDir()
	if err := verdict.Draw(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "history.html")); err != nil {
		t.Error(err)
	}
	if idle := verdict.Idle(); len(idle) > 0 {
		t.Error(idle)
	}
	if idle := new(Verdict).Idle(); len(idle) != len(needed) {
		t.Errorf("of nothing: %v", idle)
	}
}

// What each group counts by itself may be the same in another one.
func TestGroupsAreJudgedEachByItself(t *testing.T) {
	good := goodEvidence(t)
	code := registry(t)
	f := forge(t, good)
	f.Groups = 4
	for group := range 4 {
		f.Reigns = append(f.Reigns, evidence.Reign{Node: "other", Group: group + 1, Epoch: 1, Term: 2})
	}
	// Two instances of different groups, of which one has a shorter journal.
	other := *f.call(evidence.Read, "register-0", 2)
	other.Instance, other.AppliedIndex = "fan-0", 1
	if slots.Group(other.Instance, f.Groups) == slots.Group("register-0", f.Groups) {
		t.Fatal("the two are in one group")
	}
	f.Calls = append(f.Calls, other)
	if verdict := Judge(f.Record, code); len(verdict.Violations) > 0 {
		t.Error(verdict.Violations)
	}
	f.Reigns = append(f.Reigns, evidence.Reign{Node: "third", Group: 2, Epoch: 1, Term: 2})
	for _, id := range []string{"S2", "S25"} {
		if !slices.ContainsFunc(Judge(f.Record, code).Violations, func(v Violation) bool { return v.Invariant == id }) {
			t.Errorf("%s is not seen in a group", id)
		}
	}
}

// A run with several groups counts only if something went from one to another.
func TestSeveralGroupsHaveToBeUsed(t *testing.T) {
	f := forge(t, goodEvidence(t))
	if idle := Judge(f.Record, registry(t)).Idle(); len(idle) > 0 {
		t.Errorf("of one group: %v", idle)
	}
	f.Groups = 4
	crossed := Judge(f.Record, registry(t))
	for _, name := range neededAcross {
		if crossed.Counts[name] == 0 {
			t.Errorf("no %s", name)
		}
		crossed.Counts[name] = 0
	}
	if idle := crossed.Idle(); len(idle) != len(neededAcross)+1 {
		t.Errorf("without crossings, and with one group led of four: %v", idle)
	}
}

// Builds before there were several groups told of none.
func TestEarlierEvidenceIsJudgedAsThatOfOneGroup(t *testing.T) {
	dir := goodEvidence(t)
	if err := os.Remove(filepath.Join(dir, "setup.jsonl")); err != nil {
		t.Fatal(err)
	}
	f := forge(t, dir)
	f.Calls = slices.DeleteFunc(f.Calls, func(call evidence.Call) bool { return call.Instance == "tally-0" })
	for i := range f.Replicas {
		told := &f.Replicas[i].Instances
		*told = slices.DeleteFunc(*told, func(of evidence.Instance) bool { return of.ID == "tally-0" })
	}
	verdict := Judge(f.Record, registry(t))
	if idle := verdict.Idle(); len(verdict.Violations) > 0 || len(idle) > 0 {
		t.Errorf("%v, %v", verdict.Violations, idle)
	}
}
