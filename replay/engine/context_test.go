package engine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Nodes may be in different time zones; times in the code must not differ.
func TestNow_IndependentOfTimeZone(t *testing.T) {
	here := time.Local
	defer func() { time.Local = here }()
	moment := replay.Activity[time.Time, string]("moment")
	in := &instance{cold: true, registry: script(t, func(ctx *replay.Context) (string, error) {
		if _, err := moment.Call(ctx, ctx.Now()); err != nil {
			return "", err
		}
		fired, err := ctx.Timer(time.Hour).Await(ctx)
		return fired.String() + " " + ctx.Now().String(), err
	})}
	time.Local = time.FixedZone("east", 9*3600)
	mustTurn(t, in, started("script", nil))
	time.Local = time.FixedZone("west", -8*3600)
	mustTurn(t, in, activityCompleted(2, "x"))
	time.Local = time.UTC
	mustTurn(t, in, timerFired(4, begin.Add(time.Hour)))
	want := `OrchestrationCompleted output="2026-01-01 01:00:00 +0000 UTC 2026-01-01 00:00:00 +0000 UTC"`
	if got := engine.Describe(in.history[len(in.history)-1]); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestTimer_HugeDurationDoesNotWrap(t *testing.T) {
	x, turn := startScript(t, script(t, func(ctx *replay.Context) (string, error) { return "", ctx.Sleep(math.MaxInt64) }))
	defer x.Evict()
	if at := turn.Events[1].GetTimerCreated().GetFireAt(); at != math.MaxInt64 {
		t.Errorf("fire_at is %d", at)
	}
}

func TestContext_Accessors(t *testing.T) {
	var seen []any
	registry := script(t, func(ctx *replay.Context) (string, error) {
		seen = append(seen, ctx.InstanceID(), ctx.Execution(), ctx.Now(), ctx.Replaying())
		err := ctx.Sleep(time.Second)
		seen = append(seen, ctx.Now(), ctx.Replaying())
		return "", err
	})
	x := engine.NewExecution("order-17", 3, registry, nil)
	defer x.Evict()
	if err := x.Replay(eventSeq(withEventIDs(started("script", nil), timerCreated(begin)))); err != nil {
		t.Fatal(err)
	}
	later := begin.Add(time.Minute)
	if _, err := x.Turn(later, messagesOf(timerFired(2, begin))); err != nil {
		t.Fatal(err)
	}
	want := []any{"order-17", uint64(3), begin, true, later, false}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestContextLog_SilentOnReplay(t *testing.T) {
	var text strings.Builder
	logger := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	in := &instance{cold: true, logger: logger, registry: script(t, func(ctx *replay.Context) (string, error) {
		log := ctx.Log().WithGroup("order").With("id", 7)
		log.Info("before")
		defer log.Info("deferred")
		err := ctx.Sleep(time.Second)
		log.Warn("after")
		return "", err
	})}
	mustTurn(t, in, started("script", nil))
	mustTurn(t, in)
	mustTurn(t, in, timerFired(2, begin))
	want := `level=INFO msg=before instance=i execution=1 order.id=7
level=WARN msg=after instance=i execution=1 order.id=7
level=INFO msg=deferred instance=i execution=1 order.id=7
`
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A turn without messages records the pending actions of replayed code and no more.
func TestTurn_WithoutMessagesRecordsPendingActions(t *testing.T) {
	in := &instance{cold: true, registry: script(t, waiting), history: withEventIDs(started("script", nil))}
	if turn := mustTurn(t, in); len(turn.Events) != 2 {
		t.Errorf("%d events", len(turn.Events))
	}
	if turn := mustTurn(t, in); len(turn.Events) != 0 {
		t.Errorf("%d events the second time", len(turn.Events))
	}
	empty := engine.NewExecution("i", 1, in.registry, nil)
	if turn, err := empty.Turn(begin, nil); err != nil || len(turn.Events) != 0 {
		t.Errorf("without a history: %v, %v", turn, err)
	}
}

func TestTurn_RejectsFirstEventOtherThanStarted(t *testing.T) {
	x := engine.NewExecution("i", 1, script(t, waiting), nil)
	defer x.Evict()
	_, err := x.Turn(begin, messagesOf(external("go", nil, "")))
	var m *replay.Mismatch
	if !errors.As(err, &m) || m.Kind != replay.Corrupt {
		t.Errorf("%v", err)
	}
}

// Messages that are not inputs are dropped.
func TestTurn_DropsNonInputMessages(t *testing.T) {
	x, before := startScript(t, script(t, waiting))
	defer x.Evict()
	events := []*journalpb.Event{nil, {}, {SourceEventId: 2}, started("script", nil), completed("x"), activityScheduled("act", "a"),
		timerCreated(begin), subscribed("go"), childScheduled("child", "i", 1), operationCanceled(2)}
	turn, err := x.Turn(begin, messagesOf(events...))
	if err != nil || len(turn.Events) != 0 || x.LastEventID() != uint64(len(before.Events)) {
		t.Fatalf("%v, %v", turn, err)
	}
	for i, disposition := range turn.Dispositions {
		if disposition != engine.Dropped {
			t.Errorf("message %d: %d", i, disposition)
		}
	}
}

// External events carried over by an earlier execution come first, and their request IDs remain
// known.
func TestInbox_CarriedOverEventsComeFirst(t *testing.T) {
	start := started("script", nil)
	for n := range 2 {
		carriedOver := external("tick", n, fmt.Sprint("r", n)).GetExternalEvent()
		start.GetOrchestrationStarted().Inbox = append(start.GetOrchestrationStarted().Inbox, carriedOver)
	}
	x := engine.NewExecution("i", 2, script(t, func(ctx *replay.Context) (string, error) {
		var got []int
		for range 3 {
			n, err := tick.Wait(ctx)
			if err != nil {
				return "", err
			}
			got = append(got, n)
		}
		return fmt.Sprint(got), nil
	}), nil)
	defer x.Evict()
	turn, err := x.Turn(begin, messagesOf(start, external("tick", 1, "r1"), external("tick", 2, "r2")))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]engine.Disposition{engine.Recorded, engine.Dropped, engine.Recorded}, turn.Dispositions); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := engine.Describe(turn.Events[len(turn.Events)-1]); got != `OrchestrationCompleted output="[0 1 2]"` {
		t.Error(got)
	}
}

func TestPayload_RoundTrip(t *testing.T) {
	type order struct {
		ID    string
		Lines map[string]int
		Note  *string
	}
	want := order{ID: "17", Lines: map[string]int{"b": 2, "a": 1}}
	payload, err := engine.Encode(want)
	if err != nil || string(payload.Data) != `{"ID":"17","Lines":{"a":1,"b":2},"Note":null}` || payload.ContentType != "" {
		t.Fatalf("%v, %v", payload, err)
	}
	var got order
	if err := engine.Decode(payload, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	untouched := order{ID: "kept"}
	if err := engine.Decode(nil, &untouched); err != nil || untouched.ID != "kept" {
		t.Errorf("%v, %v", untouched, err)
	}
	if err := engine.Decode(&journalpb.Payload{Data: []byte("1"), ContentType: "text/plain"}, &got); err == nil {
		t.Error("an unknown content type was decoded")
	}
	if _, err := engine.Encode(make(chan int)); !errors.As(err, new(*json.UnsupportedTypeError)) {
		t.Errorf("a channel was encoded: %v", err)
	}
}

func TestPayload_SizeBounded(t *testing.T) {
	largest := strings.Repeat("x", replay.PayloadMax-2) // plus two quotes
	if _, err := engine.Encode(largest); err != nil {
		t.Error(err)
	}
	_, err := engine.Encode(largest + "x")
	var large *replay.PayloadTooLargeError
	if !errors.As(err, &large) || large.Bytes != replay.PayloadMax+1 {
		t.Errorf("%v", err)
	}
}

func TestDescribe_OneLine(t *testing.T) {
	cases := map[string]*journalpb.Event{
		`ExternalEvent name="go" data="{\n \"a\": 1\n}"`: rawEvent("go", "{\n \"a\": 1\n}"),
		`ExternalEvent name="go" data="\xff"`:            rawEvent("go", "\xff"),
		`ExternalEvent name="a\nb"`:                      rawEvent("a\nb", ""),
		"Unknown":                                        {},
		`CancelRequested source_event_id=7`:              operationCanceled(7),
	}
	for want, event := range cases {
		if got := engine.Describe(event); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestDescribe_TruncatesBetweenRunes(t *testing.T) {
	for shift := range 4 {
		text := strings.Repeat("x", shift) + strings.Repeat("🎵", 100)
		got := engine.Describe(rawEvent("go", text))
		_, data, _ := strings.Cut(got, "data=")
		if !strings.HasPrefix(text, strings.TrimSuffix(data, "…")) || len(data) < 110 {
			t.Errorf("shifted by %d: %s", shift, got)
		}
	}
}

func rawEvent(name, data string) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_ExternalEvent{
		ExternalEvent: &journalpb.ExternalEvent{Name: name, Data: &journalpb.Payload{Data: []byte(data)}},
	}}
}
