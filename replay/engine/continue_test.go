package engine_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

func TestSuccessor_KeepsInstanceFields(t *testing.T) {
	x := engine.NewExecution("i", 7, programRegistry(t), nil)
	defer x.Evict()
	start := withVersion(started("upgrade", "go"), "1")
	first := start.GetOrchestrationStarted()
	first.Parent = &journalpb.OperationRef{Instance: "p", Execution: 2, EventId: 5}
	first.Tags = map[string]string{"tenant": "a"}
	first.RequestId = "start-1"
	first.Status = payloadOf("from before")
	later := begin.Add(time.Hour)
	if _, err := x.Turn(begin, messagesOf(start)); err != nil || x.Successor() != nil {
		t.Fatal(err, x.Successor())
	}
	if _, err := x.Turn(later, messagesOf(external("spare", 1, "e1"), external("go", nil, ""))); err != nil {
		t.Fatal(err)
	}
	want := &journalpb.Event{EventId: 1, Timestamp: later.UnixNano(), Body: &journalpb.Event_OrchestrationStarted{
		OrchestrationStarted: &journalpb.OrchestrationStarted{
			Name: "upgrade", Version: "2", Input: payloadOf("go from 1"), Parent: first.Parent, Tags: first.Tags,
			RequestId: "start-1", Status: first.Status, Inbox: []*journalpb.ExternalEvent{external("spare", 1, "e1").GetExternalEvent()},
			RequestIds: []string{"e1"},
		},
	}}
	if diff := cmp.Diff(want, x.Successor(), protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A run with only one option keeps it, too.
func TestSuccessor_KeepsEachOptionOfTheRun(t *testing.T) {
	for name, set := range map[string]func(*journalpb.OrchestrationStarted){
		"tags":     func(s *journalpb.OrchestrationStarted) { s.Tags = map[string]string{"tenant": "a"} },
		"headers":  func(s *journalpb.OrchestrationStarted) { s.Headers = []*journalpb.Header{{Name: "n", Value: "v"}} },
		"summary":  func(s *journalpb.OrchestrationStarted) { s.Summary = "17 pears" },
		"trace":    func(s *journalpb.OrchestrationStarted) { s.Trace = "00-a-b-01" },
		"deadline": func(s *journalpb.OrchestrationStarted) { s.Deadline = begin.Add(24 * time.Hour).UnixNano() },
		"retry":    func(s *journalpb.OrchestrationStarted) { s.Retry = &journalpb.RetryPolicy{MaxAttempts: 3} },
	} {
		t.Run(name, func(t *testing.T) {
			x := engine.NewExecution("i", 7, programRegistry(t), nil)
			defer x.Evict()
			start := withVersion(started("upgrade", "go"), "1")
			set(start.GetOrchestrationStarted())
			if _, err := x.Turn(begin, messagesOf(start, external("go", nil, ""))); err != nil {
				t.Fatal(err)
			}
			want := &journalpb.OrchestrationStarted{Name: "upgrade", Version: "2", Input: payloadOf("go from 1")}
			set(want)
			if diff := cmp.Diff(want, x.Successor().GetOrchestrationStarted(), protocmp.Transform()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestSuccessor_CarriesLastStatus(t *testing.T) {
	forEachMode(t, programRegistry(t), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("sticky-status", ""))
		for range 2 {
			mustTurn(t, in, external("go", nil, ""))
			if got := string(in.successor.GetOrchestrationStarted().Status.GetData()); got != `{"second":2}` {
				t.Errorf("status %s in execution %d", got, in.execution())
			}
			checkReplays(t, in)
			in = in.next()
			mustTurn(t, in)
		}
		mustTurn(t, in, external("go", nil, ""))
		wantLast(t, in, `OrchestrationCompleted output="done"`)
		in.evict()
	})
}

// A message after the end belongs to the next execution, unless it was recorded, completes an
// operation of this one, or is for another.
func TestTurn_DispositionsAfterContinueAsNew(t *testing.T) {
	messages := map[string]struct {
		message engine.Message
		want    engine.Disposition
	}{
		"event":                {engine.Message{Event: external("tick", 1, "new")}, engine.Postponed},
		"event again":          {engine.Message{Event: external("tick", 1, "r1")}, engine.Dropped},
		"event for this":       {engine.Message{Execution: 1, Event: external("tick", 1, "")}, engine.Postponed},
		"event for another":    {engine.Message{Execution: 3, Event: external("tick", 1, "")}, engine.Dropped},
		"cancel":               {engine.Message{Event: cancelRequested("", "")}, engine.Postponed},
		"terminate":            {engine.Message{Event: terminated("")}, engine.Postponed},
		"suspend":              {engine.Message{Event: suspended("", "")}, engine.Postponed},
		"resume":               {engine.Message{Event: resumed("", "")}, engine.Postponed},
		"start":                {engine.Message{Event: started("restless", "")}, engine.Dropped},
		"completion":           {engine.Message{Event: activityCompleted(2, "")}, engine.Dropped},
		"completion for this":  {engine.Message{Execution: 1, Event: timerFired(3, begin)}, engine.Dropped},
		"completion of nobody": {engine.Message{Event: childCompleted(99, "")}, engine.Dropped},
	}
	forEachMode(t, programRegistry(t), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("restless", ""))
		mustTurn(t, in, external("tick", 1, "r1"), external("go", nil, ""))
		for name, test := range messages {
			turn, err := in.turn(begin, []engine.Message{test.message})
			if err != nil || len(turn.Events) != 0 || turn.Dispositions[0] != test.want {
				t.Errorf("%s: %v, %v, want %d", name, turn, err, test.want)
			}
		}
	})
}

func TestContinueAsNew_RejectsInvalid(t *testing.T) {
	var errs []string
	self := replay.Orchestration[any, string]("script")
	x, turn := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
		for _, err := range []error{
			child.ContinueAsNew(ctx, ""),
			self.ContinueAsNew(ctx, func() {}),
			self.ContinueAsNew(ctx, nil, replay.Version("\xff")),
			self.ContinueAsNew(ctx, nil, replay.Version(strings.Repeat("1", 129))),
			self.ContinueAsNew(ctx, strings.Repeat("x", replay.PayloadMax)),
		} {
			errs = append(errs, err.Error())
		}
		return "went on", nil
	}))
	defer x.Evict()
	want := []string{
		`tenuto: orchestration "script" cannot continue as "child"`,
		`encode input of orchestration "script": json: unsupported type: func()`,
		`tenuto: name of version of orchestration "script" is not UTF-8`,
		`tenuto: name of version of orchestration "script" has 129 bytes: 1 to 128 are allowed`,
		`encode input of orchestration "script": tenuto: payload of 1048578 bytes: at most 1048576 are allowed`,
	}
	if diff := cmp.Diff(want, errs); diff != "" || len(turn.Events) != 2 || x.Successor() != nil {
		t.Errorf("%d events (-want +got):\n%s", len(turn.Events), diff)
	}
}

// The recorded version of the next execution is used, even if there is a newer one.
func TestContinueAsNew_RecordedVersionWins(t *testing.T) {
	history := withEventIDs(withVersion(started("upgrade", "go"), "1"), subscribed("go"), external("go", nil, ""), continuedAsNew("go from 1", "1.5"))
	x := engine.NewExecution("i", 1, programRegistry(t), nil)
	defer x.Evict()
	if err := x.Replay(eventSeq(history)); err != nil {
		t.Fatal(err)
	}
	if got := x.Successor().GetOrchestrationStarted().Version; got != "1.5" {
		t.Errorf("version %q", got)
	}
}

// continueHints returns ShouldContinueAsNew at each tick.
func continueHints(ctx *replay.Context) ([]bool, error) {
	var all []bool
	for {
		text, err := answer.Wait(ctx)
		if err != nil || text == "end" {
			return all, err
		}
		if text == "once" {
			if _, err := replay.SideEffect(ctx, "big", func() (string, error) { return strings.Repeat("x", 1<<20-2), nil }); err != nil {
				return nil, err
			}
		}
		all = append(all, ctx.ShouldContinueAsNew())
	}
}

func TestShouldContinueAsNew_EventThreshold(t *testing.T) {
	x, _ := startScript(t, script(t, continueHints))
	defer x.Evict()
	for x.LastEventID() < 10_001 {
		if _, err := x.Turn(begin, messagesOf(external("answer", "", ""))); err != nil {
			t.Fatal(err)
		}
	}
	turn, err := x.Turn(begin, messagesOf(external("answer", "end", "")))
	if err != nil {
		t.Fatal(err)
	}
	var all []bool
	if err := engine.Decode(turn.Events[1].GetOrchestrationCompleted().GetOutput(), &all); err != nil {
		t.Fatal(err)
	}
	// Result n, from 0, is event 3+2n.
	if len(all) != 5000 || all[4998] || !all[4999] {
		t.Errorf("%d hints, %v", len(all), all[4990:])
	}
}

// A side effect yields 1 MiB eight times. checkReplays compares the output, so every replay must
// return the same values.
func TestShouldContinueAsNew_ByteThreshold(t *testing.T) {
	forEachMode(t, script(t, continueHints), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		for range 8 {
			mustTurn(t, in, external("answer", "once", ""))
		}
		mustTurn(t, in, external("answer", "end", ""))
		want := fmt.Sprintf("OrchestrationCompleted output=[%strue]", strings.Repeat("false,", 7))
		wantLast(t, in, want)
	})
}

// A cancel request that was observed is not carried over.
func TestContinueAsNew_AfterObservedCancel(t *testing.T) {
	self := replay.Orchestration[any, string]("script")
	registry := script(t, func(ctx *replay.Context) (string, error) {
		if _, err := goOn.Wait(ctx); !errors.Is(err, replay.ErrCanceled) {
			return "", err
		}
		return "", self.ContinueAsNew(ctx, nil)
	})
	forEachMode(t, registry, func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		mustTurn(t, in, cancelRequested("by hand", "c"))
		wantLast(t, in, "OrchestrationContinuedAsNew input=null")
	})
}

// An observed cancellation is left to the code; an unobserved one is carried over.
func TestContinueAsNew_CarriesUnobservedCancel(t *testing.T) {
	self := replay.Orchestration[bool, string]("self")
	registry := registryOf(t, self.Bind(func(ctx *replay.Context, again bool) (string, error) {
		if again {
			_, err := goOn.Wait(ctx)
			return "", err
		}
		if _, err := goOn.Wait(replay.WithoutCancel(ctx)); err != nil {
			return "", err
		}
		return "", self.ContinueAsNew(ctx, true)
	}))
	x := engine.NewExecution("i", 1, registry, nil)
	defer x.Evict()
	turn, err := x.Turn(begin, messagesOf(started("self", false), cancelRequested("by hand", "c"), external("go", nil, "e")))
	if err != nil {
		t.Fatal(err)
	}
	if last := turn.Events[len(turn.Events)-1]; last.TypeNumber() != journalpb.TypeOrchestrationContinuedAsNew {
		t.Fatalf("ended with %s", engine.Describe(last))
	}
	successor := journalCopy(x.Successor())
	next := engine.NewExecution("i", 2, registry, nil)
	defer next.Evict()
	if err := next.Replay(eventSeq([]*journalpb.Event{successor})); err != nil {
		t.Fatal(err)
	}
	// Repeated inputs of the previous execution are still known.
	turn, err = next.Turn(begin, messagesOf(cancelRequested("by hand", "c"), external("go", nil, "e")))
	if err != nil {
		t.Fatal(err)
	}
	if len(turn.Events) != 1 || turn.Events[0].GetOrchestrationCanceled().GetReason() != "by hand" {
		t.Fatalf("the next execution: %v", turn.Events)
	}
	for i, disposition := range turn.Dispositions {
		if disposition != engine.Dropped {
			t.Errorf("repeated input %d has disposition %d", i, disposition)
		}
	}
}

func TestContinueAsNew_CarriedRequestIDsBounded(t *testing.T) {
	self := replay.Orchestration[int, int]("self")
	registry := registryOf(t, self.Bind(func(ctx *replay.Context, n int) (int, error) {
		for range 1000 {
			if _, err := tick.Wait(ctx); err != nil {
				return 0, err
			}
		}
		return 0, self.ContinueAsNew(ctx, n+1)
	}))
	x := engine.NewExecution("i", 1, registry, nil)
	defer x.Evict()
	messages := []*journalpb.Event{started("self", 0)}
	for n := range 1000 {
		messages = append(messages, external("tick", n, fmt.Sprintf("r%d", n)))
	}
	if _, err := x.Turn(begin, messagesOf(messages...)); err != nil {
		t.Fatal(err)
	}
	ids := x.Successor().GetOrchestrationStarted().RequestIds
	if len(ids) != 256 || ids[0] != "r744" || ids[255] != "r999" {
		t.Errorf("%d IDs: %v", len(ids), ids)
	}
}
