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
