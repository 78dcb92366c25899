package replay_test

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
)

func TestTheSuccessorKeepsWhatBelongsToTheInstance(t *testing.T) {
	x := replay.NewExecution("i", 7, programRegistry(t), nil)
	defer x.Drop()
	start := version(started("upgrade", "go"), "1")
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

func TestTheSuccessorCarriesTheLastStatus(t *testing.T) {
	eachWay(t, programRegistry(t), func(t *testing.T, in *instance) {
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
		in.drop()
	})
}

// What comes after the end belongs to the next execution, unless it was
// recorded already, answers something of this one, or is meant for another.
func TestDispositionsAfterContinueAsNew(t *testing.T) {
	messages := map[string]struct {
		message replay.Message
		want    replay.Disposition
	}{
		"event":                {replay.Message{Event: external("tick", 1, "new")}, replay.Postponed},
		"event again":          {replay.Message{Event: external("tick", 1, "r1")}, replay.Dropped},
		"event for this":       {replay.Message{Execution: 1, Event: external("tick", 1, "")}, replay.Postponed},
		"event for another":    {replay.Message{Execution: 3, Event: external("tick", 1, "")}, replay.Dropped},
		"cancel":               {replay.Message{Event: cancelRequested("", "")}, replay.Postponed},
		"terminate":            {replay.Message{Event: terminated("")}, replay.Postponed},
		"suspend":              {replay.Message{Event: suspended("", "")}, replay.Postponed},
		"resume":               {replay.Message{Event: resumed("", "")}, replay.Postponed},
		"start":                {replay.Message{Event: started("restless", "")}, replay.Dropped},
		"completion":           {replay.Message{Event: activityCompleted(2, "")}, replay.Dropped},
		"completion for this":  {replay.Message{Execution: 1, Event: timerFired(3, begin)}, replay.Dropped},
		"completion of nobody": {replay.Message{Event: childCompleted(99, "")}, replay.Dropped},
	}
	eachWay(t, programRegistry(t), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("restless", ""))
		mustTurn(t, in, external("tick", 1, "r1"), external("go", nil, ""))
		for name, test := range messages {
			turn, err := in.turn(begin, []replay.Message{test.message})
			if err != nil || len(turn.Events) != 0 || turn.Dispositions[0] != test.want {
				t.Errorf("%s: %v, %v, want %d", name, turn, err, test.want)
			}
		}
	})
}

func TestContinueAsNewRefuses(t *testing.T) {
	var errs []string
	self := replay.Orchestration[any, string]("script")
	x, turn := live(t, script(t, func(ctx *replay.Context) (string, error) {
		for _, err := range []error{
			child.ContinueAsNew(ctx, ""),
			self.ContinueAsNew(ctx, func() {}),
			self.ContinueAsNew(ctx, nil, replay.ContinueVersion("\xff")),
			self.ContinueAsNew(ctx, nil, replay.ContinueVersion(strings.Repeat("1", 129))),
			self.ContinueAsNew(ctx, strings.Repeat("x", replay.PayloadMax)),
		} {
			errs = append(errs, err.Error())
		}
		return "went on", nil
	}))
	defer x.Drop()
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

// The version of the next execution is taken as recorded: by now there may be
// a newer one.
func TestARecordedContinueAsNewKeepsItsVersion(t *testing.T) {
	history := numbered(version(started("upgrade", "go"), "1"), subscribed("go"), external("go", nil, ""), continuedAsNew("go from 1", "1.5"))
	x := replay.NewExecution("i", 1, programRegistry(t), nil)
	defer x.Drop()
	if err := x.Replay(all(history)); err != nil {
		t.Fatal(err)
	}
	if got := x.Successor().GetOrchestrationStarted().Version; got != "1.5" {
		t.Errorf("version %q", got)
	}
}

// hints returns how the hint stands at each tick.
func hints(ctx *replay.Context) ([]bool, error) {
	var all []bool
	for {
		text, err := answer.Wait(ctx)
		if err != nil || text == "end" {
			return all, err
		}
		if text == "once" {
			if _, err := replay.Once(ctx, "big", func() (string, error) { return strings.Repeat("x", 1<<20-2), nil }); err != nil {
				return nil, err
			}
		}
		all = append(all, ctx.ShouldContinueAsNew())
	}
}

func TestShouldContinueAsNewFromTenThousandEventsOn(t *testing.T) {
	x, _ := live(t, script(t, hints))
	defer x.Drop()
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
	if err := replay.Decode(turn.Events[1].GetOrchestrationCompleted().GetOutput(), &all); err != nil {
		t.Fatal(err)
	}
	// The n-th answer, from 0, is event 3+2n.
	if len(all) != 5000 || all[4998] || !all[4999] {
		t.Errorf("%d hints, %v", len(all), all[4990:])
	}
}

// Eight times 1 MiB that a side effect yields, and the hint stands as it stood
// on every replay: checkReplays compares the output.
func TestShouldContinueAsNewFromEightMebibytesOn(t *testing.T) {
	eachWay(t, script(t, hints), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		for range 8 {
			mustTurn(t, in, external("answer", "once", ""))
		}
		mustTurn(t, in, external("answer", "end", ""))
		want := fmt.Sprintf("OrchestrationCompleted output=[%strue]", strings.Repeat("false,", 7))
		wantLast(t, in, want)
	})
}

// A request to cancel does not reach beyond an execution that ends otherwise.
func TestContinuingAsNewInSpiteOfACancellation(t *testing.T) {
	self := replay.Orchestration[any, string]("script")
	registry := script(t, func(ctx *replay.Context) (string, error) {
		if _, err := goOn.Wait(ctx); !errors.Is(err, replay.ErrCanceled) {
			return "", err
		}
		return "", self.ContinueAsNew(ctx, nil)
	})
	eachWay(t, registry, func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		mustTurn(t, in, cancelRequested("by hand", "c"))
		wantLast(t, in, "OrchestrationContinuedAsNew input=null")
	})
}

// A cancellation that the code has met is its own to decide about; one that it
// has not is the next execution's.
func TestCancellationThatNobodyHasMetIsCarriedOver(t *testing.T) {
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
	x := replay.NewExecution("i", 1, registry, nil)
	defer x.Drop()
	turn, err := x.Turn(begin, messagesOf(started("self", false), cancelRequested("by hand", "c"), external("go", nil, "e")))
	if err != nil {
		t.Fatal(err)
	}
	if last := turn.Events[len(turn.Events)-1]; last.Arm() != journalpb.ArmOrchestrationContinuedAsNew {
		t.Fatalf("ended with %s", replay.Describe(last))
	}
	successor := stored(x.Successor())
	next := replay.NewExecution("i", 2, registry, nil)
	defer next.Drop()
	if err := next.Replay(all([]*journalpb.Event{successor})); err != nil {
		t.Fatal(err)
	}
	// Inputs of the execution before that are repeated are still known.
	turn, err = next.Turn(begin, messagesOf(cancelRequested("by hand", "c"), external("go", nil, "e")))
	if err != nil {
		t.Fatal(err)
	}
	if len(turn.Events) != 1 || turn.Events[0].GetOrchestrationCancelled().GetReason() != "by hand" {
		t.Fatalf("the next execution: %v", turn.Events)
	}
	for i, disposition := range turn.Dispositions {
		if disposition != replay.Dropped {
			t.Errorf("repeated input %d: disposition %d", i, disposition)
		}
	}
}

func TestRequestIDsCarriedOverAreBounded(t *testing.T) {
	self := replay.Orchestration[int, int]("self")
	registry := registryOf(t, self.Bind(func(ctx *replay.Context, n int) (int, error) {
		for range 1000 {
			if _, err := tick.Wait(ctx); err != nil {
				return 0, err
			}
		}
		return 0, self.ContinueAsNew(ctx, n+1)
	}))
	x := replay.NewExecution("i", 1, registry, nil)
	defer x.Drop()
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
