package engine_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// The types of two releases. Handles of both have the same names.
type (
	firstOrder  struct{ ID string }
	secondOrder struct {
		ID   string
		Gift bool
	}
	thirdOrder struct {
		ID   string
		Tags []string `json:",omitempty"`
	}
	failingOrder struct{ ID string }

	// Values in interfaces, as JSON objects with fields in another order than their names.
	notice       struct{ Data any }
	secondNotice struct {
		Data   any
		Urgent bool
	}
	detail      struct{ Zone, Area string }
	otherDetail struct{ Zone string }
)

// UnmarshalJSON stands for code of the author that fails.
func (*failingOrder) UnmarshalJSON([]byte) error { panic("broken") }

// orderCode is the code of a release whose orders have type T: every call with an input, and the
// output.
func orderCode[T any](order T) func(ctx *replay.Context) (T, error) {
	var (
		pay    = replay.Activity[T, string]("pay")
		ship   = replay.Orchestration[T, string]("ship")
		record = replay.Orchestration[T, string]("record")
		none   T
	)
	return func(ctx *replay.Context) (T, error) {
		if _, err := pay.Call(ctx, order); err != nil {
			return none, err
		}
		if _, err := ship.Call(ctx, order); err != nil {
			return none, err
		}
		return order, record.Chain(ctx, order)
	}
}

// recordedBy returns the history of code that has run to its end or waits.
func recordedBy[O any](t *testing.T, payloads engine.PayloadConverter, body func(ctx *replay.Context) (O, error)) []*journalpb.Event {
	t.Helper()
	in := &instance{registry: script(t, body).WithPayloadConverter(payloads)}
	mustTurn(t, in, started("script", nil))
	for i := 0; i < len(in.history); i++ {
		switch event := in.history[i]; {
		case event.GetActivityScheduled() != nil:
			mustTurn(t, in, activityCompleted(event.EventId, ""))
		case event.GetSubOrchestrationScheduled() != nil:
			mustTurn(t, in, childCompleted(event.EventId, ""))
		case event.GetMessageSent() != nil:
			mustTurn(t, in, messageDelivered(event.EventId))
		case event.GetTimerCreated() != nil:
			mustTurn(t, in, timerFired(event.EventId, time.Unix(0, event.GetTimerCreated().FireAt)))
		}
	}
	in.evict()
	return in.history
}

// mismatchOf replays a history with other code, to its end.
func mismatchOf[O any](t *testing.T, history []*journalpb.Event, payloads engine.PayloadConverter, strict bool, body func(ctx *replay.Context) (O, error)) *replay.Mismatch {
	t.Helper()
	registry := script(t, body).WithPayloadConverter(payloads).WithStrict(strict)
	in := &instance{registry: registry}
	x := engine.NewExecution("i", 1, registry, nil)
	defer x.Evict()
	err := x.Replay(in.sealedHistory(history))
	var m *replay.Mismatch
	if err != nil && !errors.As(err, &m) {
		t.Fatal(err)
	}
	return m
}

// A codeChange is a row of the table in docs/versioning.md.
type codeChange struct {
	name          string
	before, after release
	want          changeEffect
}

// A release is the code of a release. Its output has a type of its own.
type release struct {
	record func(t *testing.T) []*journalpb.Event
	replay func(t *testing.T, history []*journalpb.Event, strict bool) *replay.Mismatch
}

func releaseOf[O any](body func(*replay.Context) (O, error)) release {
	return release{
		record: func(t *testing.T) []*journalpb.Event { return recordedBy(t, engine.PayloadConverter{}, body) },
		replay: func(t *testing.T, history []*journalpb.Event, strict bool) *replay.Mismatch {
			return mismatchOf(t, history, engine.PayloadConverter{}, strict, body)
		},
	}
}

type changeEffect string

const (
	accepted   changeEffect = "accepted"
	strictOnly changeEffect = "accepted without Strict"
	rejected   changeEffect = "rejected"
)

// callCode is code that makes one call.
func callCode(call func(ctx *replay.Context) error) release {
	return releaseOf(func(ctx *replay.Context) (any, error) { return nil, call(ctx) })
}

func payWith(options ...replay.Option) release {
	return callCode(func(ctx *replay.Context) error { return pay(ctx, options...) })
}

func pay(ctx *replay.Context, options ...replay.Option) error {
	_, err := replay.Activity[string, string]("pay").Call(ctx, "x", options...)
	return err
}

func shipWith(options ...replay.Option) release {
	ship := replay.Orchestration[string, string]("ship")
	return callCode(func(ctx *replay.Context) error { _, err := ship.Call(ctx, "x", options...); return err })
}

func codeChanges() []codeChange {
	status := func(text string) release {
		return callCode(func(ctx *replay.Context) error { return replay.SetStatus(ctx, text) })
	}
	sleep := func(d time.Duration) release {
		return callCode(func(ctx *replay.Context) error { return ctx.Sleep(d) })
	}
	sendTo := func(receiver string, order any) release {
		return callCode(func(ctx *replay.Context) error { return replay.Event[any]("note").SendTo(ctx, receiver, order) })
	}
	sendOrder := func(order secondOrder) release {
		return callCode(func(ctx *replay.Context) error { return replay.Event[secondOrder]("note").SendTo(ctx, "a", order) })
	}
	cancel := func(receiver, reason string) release {
		return callCode(func(ctx *replay.Context) error { return replay.CancelInstance(ctx, receiver, reason) })
	}
	setRegion := func(value string) release {
		return callCode(func(ctx *replay.Context) error { return region.Set(ctx, value) })
	}
	setNote := func(key string, value any) release {
		return callCode(func(ctx *replay.Context) error { return replay.KV[any]("notes").Set(ctx, key, value) })
	}
	first := releaseOf(orderCode(firstOrder{"17"}))
	return []codeChange{
		{"a field is added, zero for old instances", first, releaseOf(orderCode(secondOrder{ID: "17"})), strictOnly},
		{"a field is added beside an interface", releaseOf(orderCode(notice{detail{"1", "2"}})), releaseOf(orderCode(secondNotice{Data: detail{"1", "2"}})), strictOnly},
		{"another value in an interface", releaseOf(orderCode(notice{detail{"1", "2"}})), releaseOf(orderCode(notice{otherDetail{"1"}})), rejected},
		{"another type for a handle of any", releaseOf(orderCode[any](detail{"1", "2"})), releaseOf(orderCode[any](otherDetail{"1"})), rejected},
		{"a field is removed", releaseOf(orderCode(secondOrder{ID: "17", Gift: true})), first, strictOnly},
		{"an omitted field is added", first, releaseOf(orderCode(thirdOrder{ID: "17"})), accepted},
		{"a field is added and set", first, releaseOf(orderCode(secondOrder{ID: "17", Gift: true})), rejected},
		{"another value", first, releaseOf(orderCode(firstOrder{"18"})), rejected},
		{"a type that does not decode the record", first, releaseOf(orderCode(17)), rejected},
		{"a type whose method panics", first, releaseOf(orderCode(failingOrder{"18"})), rejected},
		{"a timeout is set", payWith(), payWith(replay.StartToClose(time.Minute)), strictOnly},
		{"a retry policy changes", payWith(replay.Retry(replay.RetryPolicy{MaxAttempts: 3})), payWith(replay.Retry(replay.RetryPolicy{MaxAttempts: 9})), strictOnly},
		{"a default is written out", payWith(), payWith(replay.StartToClose(0)), accepted},
		{"the tag changes", payWith(), payWith(replay.Tag("gpu")), rejected},
		{"the status has another text", status("half"), status("half of it"), strictOnly},
		{"the status is set no more", status("half"), callCode(func(*replay.Context) error { return nil }), rejected},
		{"a duration changes", sleep(time.Hour), sleep(time.Minute), accepted},
		{"the close policy changes", shipWith(), shipWith(replay.OnParentClose(replay.AbandonChild)), strictOnly},
		{"the version of a child changes", shipWith(replay.Version("1")), shipWith(replay.Version("2")), rejected},
		{"the version of a child is named no more", shipWith(replay.Version("1")), shipWith(), accepted},
		{"the ID of a child changes", shipWith(replay.ChildID("a")), shipWith(replay.ChildID("b")), rejected},
		{"the receiver of an event changes", sendTo("a", 1), sendTo("b", 1), rejected},
		{"the data of an event changes", sendTo("a", 1), sendTo("a", 2), rejected},
		{"a field of the data is added", sendTo("a", firstOrder{"17"}), sendOrder(secondOrder{ID: "17"}), strictOnly},
		{"an event becomes a cancellation", sendTo("a", 1), cancel("a", ""), rejected},
		{"another instance is canceled", cancel("a", ""), cancel("b", ""), rejected},
		{"the reason of a cancellation changes", cancel("a", "x"), cancel("a", "y"), strictOnly},
		{"an attribute has another value", setRegion("north"), setRegion("south"), strictOnly},
		{"an attribute is removed instead of set", callCode(func(ctx *replay.Context) error {
			return errors.Join(region.Set(ctx, "a"), region.Set(ctx, "b"))
		}), callCode(func(ctx *replay.Context) error {
			return errors.Join(region.Set(ctx, "a"), region.Remove(ctx))
		}), rejected},
		{"another attribute is set", setRegion("north"), callCode(func(ctx *replay.Context) error { return urgent.Set(ctx, true) }), rejected},
		{"a key gets another value", setNote("a", 1), setNote("a", 2), rejected},
		{"another key gets the value", setNote("a", 1), setNote("b", 1), rejected},
		{"a field of a key's value is added", setNote("a", firstOrder{"17"}), callCode(func(ctx *replay.Context) error {
			return replay.KV[secondOrder]("notes").Set(ctx, "a", secondOrder{ID: "17"})
		}), strictOnly},
		{"a key is deleted instead of set", setNote("a", 1), callCode(func(ctx *replay.Context) error { return notes.Delete(ctx, "a") }), rejected},
		{"a call is added", payWith(), callCode(func(ctx *replay.Context) error {
			return errors.Join(pay(ctx), pay(ctx))
		}), rejected},
		{"a call is removed", payWith(), callCode(func(*replay.Context) error { return nil }), rejected},
		{"a call has another name", payWith(), shipWith(), rejected},
	}
}

func TestVersioning_EveryKindOfChange(t *testing.T) {
	for _, change := range codeChanges() {
		t.Run(change.name, func(t *testing.T) {
			history := change.before.record(t)
			m := change.after.replay(t, history, false)
			if isAccepted := m == nil; isAccepted != (change.want != rejected) {
				t.Errorf("%v, want the change to be %s", m, change.want)
			}
			strict := change.after.replay(t, history, true)
			if isAccepted := strict == nil; isAccepted != (change.want == accepted) {
				t.Errorf("strict: %v, want the change to be %s", strict, change.want)
			}
			if strict != nil && strict.Strict != (change.want == strictOnly) {
				t.Errorf("strict: the mismatch says %v that only the strict comparison finds it", strict.Strict)
			}
		})
	}
}

// A flipCodec flips a bit of every byte.
type flipCodec struct{}

func (flipCodec) Encode(data []byte) ([]byte, string, error)   { return flip(data), "flip", nil }
func (flipCodec) Decode(data []byte, _ string) ([]byte, error) { return flip(data), nil }

func flip(data []byte) []byte {
	flipped := make([]byte, len(data))
	for i := range data {
		flipped[i] = data[i] ^ 1
	}
	return flipped
}

func TestVersioning_AddedFieldUnderCodec(t *testing.T) {
	payloads := engine.PayloadConverter{Codec: flipCodec{}}
	history := recordedBy(t, payloads, orderCode(firstOrder{"17"}))
	if m := mismatchOf(t, history, payloads, false, orderCode(secondOrder{ID: "17"})); m != nil {
		t.Error(m)
	}
	if m := mismatchOf(t, history, payloads, false, orderCode(secondOrder{ID: "17", Gift: true})); m == nil {
		t.Error("another value was accepted")
	}
}

// The record wins: the next execution starts with the status that the history has.
func TestVersioning_RecordedStatusIsCarriedOver(t *testing.T) {
	self := replay.Orchestration[string, string]("self")
	code := func(text string) *engine.Registry {
		return registryOf(t, self.Bind(func(ctx *replay.Context, in string) (string, error) {
			if err := replay.SetStatus(ctx, text); err != nil {
				return "", err
			}
			if _, err := goOn.Wait(ctx); err != nil {
				return "", err
			}
			return "", self.ContinueAsNew(ctx, in)
		}))
	}
	in := &instance{registry: code("before"), cold: true}
	mustTurn(t, in, started("self", ""))
	in.registry = code("after")
	mustTurn(t, in, external("go", "", "1"))
	if got := string(in.successor.GetOrchestrationStarted().Status.Data); got != `"before"` {
		t.Errorf("the next execution starts with status %s", got)
	}
}
