package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Handles whose types differ from the recorded ones.
var (
	numberAct   = replay.Activity[string, int]("act")
	numberChild = replay.Orchestration[string, int]("child")
	numberEvent = replay.Event[int]("answer")
)

func TestPayloadError_UndecodableResult(t *testing.T) {
	cases := map[string]struct {
		await  func(*replay.Context) (int, error)
		result *journalpb.Event
		info   replay.PayloadInfo // before protocol 3
		part   string             // since protocol 3
		text   string
	}{
		"of an activity": {
			await:  func(ctx *replay.Context) (int, error) { return numberAct.Call(ctx, "x") },
			result: activityCompleted(2, "seven"),
			info:   replay.PayloadInfo{Kind: "activity", Name: "act", Part: "result"},
			part:   "result",
			text:   `decode result of activity "act" (event_id 2): json: `,
		},
		"of a child": {
			await:  func(ctx *replay.Context) (int, error) { return numberChild.Call(ctx, "x") },
			result: childCompleted(2, "seven"),
			info:   replay.PayloadInfo{Kind: "orchestration", Name: "child", Part: "result"},
			part:   "result",
			text:   `decode result of orchestration "child" (event_id 2): json: `,
		},
		"of an event": {
			await:  func(ctx *replay.Context) (int, error) { return numberEvent.Wait(ctx) },
			result: external("answer", "seven", "from Ada"),
			info:   replay.PayloadInfo{Kind: "event", Name: "answer", Part: "result"},
			part:   "data",
			text:   `decode data of event "answer" (event_id 3, request ID "from Ada"): json: `,
		},
	}
	for name, c := range cases {
		for _, protocol3 := range []bool{false, true} {
			first, info, start := "decode result: json: ", c.info, started("script", nil)
			if protocol3 {
				first, info.Part, start.GetOrchestrationStarted().Incarnation = c.text, c.part, 7
			}
			t.Run(fmt.Sprintf("%s, protocol 3 %t", name, protocol3), func(t *testing.T) {
				awaitUndecodable(t, start, c.await, c.result, info, first)
			})
		}
	}
}

// awaitUndecodable checks that awaiting the result returns a PayloadError with that payload and
// text.
func awaitUndecodable(t *testing.T, start *journalpb.Event, await func(*replay.Context) (int, error), result *journalpb.Event, info replay.PayloadInfo, text string) {
	var seen []string
	registry := script(t, func(ctx *replay.Context) (string, error) {
		value, err := await(ctx)
		var invalid *replay.PayloadError
		var wrong *json.UnmarshalTypeError
		if !errors.As(err, &invalid) || !errors.As(err, &wrong) || invalid.PayloadInfo != info || invalid.Verb != "decode" || invalid.Type != "int" || value != 0 {
			t.Errorf("%d, %#v", value, err)
		}
		seen = append(seen, err.Error())
		_, waitErr := goOn.Wait(ctx)
		return "", errors.Join(err, waitErr)
	})
	forEachMode(t, registry, func(t *testing.T, in *instance) {
		mustTurn(t, in, start)
		mustTurn(t, in, result)
		mustTurn(t, in, external("go", nil, ""))
		// The orchestration's error is known to its parent too.
		err := engine.DecodeError(in.history[len(in.history)-1].GetOrchestrationFailed().GetError())
		var invalid *replay.PayloadError
		if !errors.As(err, &invalid) || invalid.PayloadInfo != info || invalid.Type != "int" {
			t.Errorf("failed with %#v", err)
		}
		if _, again := engine.RetryAfter(nil, 1, err, 0); again {
			t.Error("the error is retried")
		}
	})
	for _, output := range seen {
		if output != seen[0] || !strings.HasPrefix(output, text) {
			t.Errorf("%q, first %q; want %q", output, seen[0], text)
		}
	}
}

// The recorded text of such an error is kept, before and since protocol 3: code may have used it in
// what it schedules.
func TestPayloadError_RecordedTextKept(t *testing.T) {
	named := &journalpb.Error{
		Code:    "tenuto.payload",
		Message: `decode data of event "go" (recorded in an earlier execution): no number`,
		Details: &journalpb.Payload{Data: []byte(`{"Verb":"decode","Kind":"event","Name":"go","Part":"data","Type":"int"}`)},
		Cause:   &journalpb.Error{Message: "no number"},
	}
	before := proto.CloneOf(named)
	before.Message = "decode data: no number"
	for _, record := range []*journalpb.Error{named, before} {
		if err := roundTrip(t, engine.DecodeError(record)); err.Error() != record.Message {
			t.Errorf("%q; want %q", err, record.Message)
		}
	}
}

func TestPayloadError_SurvivesJournal(t *testing.T) {
	for name, before := range map[string]error{
		"decode input: no number":                   &replay.PayloadError{Verb: "decode", PayloadInfo: replay.PayloadInfo{Kind: "activity", Name: "a", Part: "input"}, Type: "int", Err: errors.New("no number")},
		"encode status: no number":                  &replay.PayloadError{Verb: "encode", PayloadInfo: replay.PayloadInfo{Kind: "orchestration", Name: "o", Part: "status"}, Type: "int", Err: errors.New("no number")},
		`encode input of activity "a": no number`:   &replay.PayloadError{Verb: "encode", PayloadInfo: replay.PayloadInfo{Kind: "activity", Name: "a", Part: "input"}, Err: errors.New("no number")},
		`tenuto: codec: decode "k": no key`:         &replay.CodecError{Verb: "decode", ContentType: "k", Err: errors.New("no key")},
		`tenuto: codec: encode: no key`:             &replay.CodecError{Verb: "encode", Err: errors.New("no key")},
		"tenuto: payload of 9 bytes: at most 8 are": &replay.PayloadTooLargeError{Bytes: 9, Max: 8},
	} {
		after := roundTrip(t, roundTrip(t, before))
		switch before := before.(type) {
		case *replay.PayloadError:
			var invalid *replay.PayloadError
			if !errors.As(after, &invalid) || invalid.PayloadInfo != before.PayloadInfo || invalid.Type != before.Type || invalid.Err == nil {
				t.Errorf("%s: %#v", name, after)
			}
			if _, again := engine.RetryAfter(nil, 1, after, 0); again {
				t.Errorf("%s: the error is retried", name)
			}
		case *replay.CodecError:
			var codec *replay.CodecError
			if !errors.As(after, &codec) || codec.Verb != before.Verb || codec.ContentType != before.ContentType || codec.Err == nil {
				t.Errorf("%s: %#v", name, after)
			}
		case *replay.PayloadTooLargeError:
			var large *replay.PayloadTooLargeError
			if !errors.As(after, &large) || *large != *before {
				t.Errorf("%s: %#v", name, after)
			}
		}
		if after.Error() != before.Error() || !strings.HasPrefix(after.Error(), name) {
			t.Errorf("recorded text %q was decoded as %q, want %q", before, after, name)
		}
	}
}

// A value that is too large is an error of its call, and no event is recorded.
func TestPayloadTooLarge_FailsCallWithoutEvent(t *testing.T) {
	large := strings.Repeat("x", 100)
	calls := map[replay.PayloadInfo]func(*replay.Context) error{
		{Kind: "activity", Name: "act", Part: "input"}: func(ctx *replay.Context) error {
			_, err := act.Call(ctx, large)
			return err
		},
		{Kind: "orchestration", Name: "child", Part: "input"}: func(ctx *replay.Context) error {
			_, err := child.Call(ctx, large)
			return errors.Join(err, child.Chain(ctx, large))
		},
		{Kind: "orchestration", Name: "script", Part: "input"}: func(ctx *replay.Context) error {
			return replay.Orchestration[string, string]("script").ContinueAsNew(ctx, large)
		},
		{Kind: "orchestration", Name: "script", Part: "status"}: func(ctx *replay.Context) error { return replay.SetStatus(ctx, large) },
	}
	for info, call := range calls {
		t.Run(info.String(), func(t *testing.T) {
			registry := script(t, func(ctx *replay.Context) (string, error) {
				checkTooLarge(t, call(ctx), info)
				return "went on", nil
			}).WithPayloadConverter(engine.PayloadConverter{PayloadMax: func() int { return 50 }})
			forEachMode(t, registry, func(t *testing.T, in *instance) {
				turn := mustTurn(t, in, started("script", nil))
				wantLast(t, in, `OrchestrationCompleted output="went on"`)
				if len(turn.Events) != 2 {
					t.Errorf("%d events", len(turn.Events))
				}
			})
		})
	}
}

func checkTooLarge(t *testing.T, err error, info replay.PayloadInfo) {
	t.Helper()
	var invalid *replay.PayloadError
	var tooLarge *replay.PayloadTooLargeError
	if !errors.As(err, &invalid) || invalid.PayloadInfo != info || invalid.Verb != "encode" || !errors.As(err, &tooLarge) || tooLarge.Max != 50 || tooLarge.Bytes != 102 {
		t.Errorf("%#v", err)
	}
	if _, again := engine.RetryAfter(nil, 1, err, 0); again {
		t.Error("the error is retried")
	}
}

// An output that is too large fails the instance.
func TestPayloadTooLarge_OutputFailsInstance(t *testing.T) {
	large := strings.Repeat("x", 100)
	update := replay.Update[int, string]("grow")
	registry := script(t, func(ctx *replay.Context) (string, error) {
		if err := update.Handle(ctx, nil, func(*replay.Context, int) (string, error) { return large, nil }); err != nil {
			return "", err
		}
		_, err := replay.SideEffect(ctx, "big", func() (string, error) { return large, nil })
		checkTooLarge(t, err, replay.PayloadInfo{Kind: "side effect", Name: "big", Part: "value"})
		_, err = goOn.Wait(ctx)
		return large, err
	}).WithPayloadConverter(engine.PayloadConverter{PayloadMax: func() int { return 50 }})
	forEachMode(t, registry, func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		mustTurn(t, in, external("tenuto.update/grow", 1, "r1"))
		checkTooLarge(t, engine.DecodeError(in.history[len(in.history)-1].GetSideEffectRecorded().GetError()), replay.PayloadInfo{Kind: "update", Name: "grow", Part: "output"})
		mustTurn(t, in, external("go", nil, ""))
		checkTooLarge(t, engine.DecodeError(in.history[len(in.history)-1].GetOrchestrationFailed().GetError()), replay.PayloadInfo{Kind: "orchestration", Name: "script", Part: "output"})
	})
	body := act.Bind(func(context.Context, string) (string, error) { return large, nil })
	attempt := &engine.Attempt{Attempt: replay.Attempt{Name: "act"}, Input: payloadOf("")}
	registryOf(t, body).WithPayloadConverter(engine.PayloadConverter{PayloadMax: func() int { return 50 }}).RunActivity(t.Context(), attempt, func(output *journalpb.Payload, err error) {
		checkTooLarge(t, roundTrip(t, err), replay.PayloadInfo{Kind: "activity", Name: "act", Part: "output"})
	})
}

// Code may have seen that a value was too large. A replay under another bound must not let it take
// another branch, so an execution keeps the bound that it has recorded; the next one takes the
// present bound.
func TestPayloadTooLarge_ExecutionKeepsRecordedBound(t *testing.T) {
	large, bound := strings.Repeat("x", 100), 50
	registry := script(t, func(ctx *replay.Context) (string, error) {
		if _, err := act.Call(ctx, large); err == nil {
			return "accepted", nil
		}
		_, err := goOn.Wait(ctx)
		return "", errors.Join(err, replay.Orchestration[string, string]("script").ContinueAsNew(ctx, ""))
	}).WithPayloadConverter(engine.PayloadConverter{PayloadMax: func() int { return bound }})
	forEachMode(t, registry, func(t *testing.T, in *instance) {
		bound = 50
		start := startedAs(journalpb.NewIncarnation(1, 1))
		start.GetOrchestrationStarted().PayloadMax = registry.RecordedPayloadMax()
		mustTurn(t, in, start)
		bound = 1000
		mustTurn(t, in, external("go", nil, ""))
		wantLast(t, in, `OrchestrationContinuedAsNew input=""`)
		checkReplays(t, in)
		in = in.next()
		mustTurn(t, in)
		wantLast(t, in, `ActivityScheduled name="act" input="`+large+`"`)
		in.evict()
	})
}

// Warn is called once for each value, with its PayloadInfo.
func TestPayload_LargeValueWarnsOnce(t *testing.T) {
	var warnings []string
	warn := func(info replay.PayloadInfo, bytes int) {
		warnings = append(warnings, fmt.Sprintf("%s: %d", info, bytes))
		panic("which is of no account")
	}
	registry := script(t, func(ctx *replay.Context) (string, error) {
		if err := replay.SetStatus(ctx, "12345678"); err != nil {
			return "", err
		}
		return act.Call(ctx, "1234567")
	}).WithPayloadConverter(engine.PayloadConverter{WarnBytes: 10, Warn: warn})
	in := &instance{registry: registry, cold: true}
	mustTurn(t, in, started("script", nil))
	mustTurn(t, in, activityCompleted(3, "1"))
	checkReplays(t, in)
	if diff := cmp.Diff([]string{`status of orchestration "script": 10`}, warnings); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	payloads := engine.PayloadConverter{WarnBytes: -1, Warn: warn}
	if _, err := payloads.Encode(replay.PayloadInfo{Kind: "event", Name: "go", Part: "data"}, strings.Repeat("x", 1<<19)); err != nil || len(warnings) != 1 {
		t.Errorf("%v, %v", err, warnings)
	}
	payloads.WarnBytes = 0 // 256 KiB
	for _, length := range []int{256<<10 - 3, 256<<10 - 2} {
		if _, err := payloads.Encode(replay.PayloadInfo{Kind: "event", Name: "go", Part: "data"}, strings.Repeat("x", length)); err != nil {
			t.Error(err)
		}
	}
	if warnings = warnings[1:]; len(warnings) != 1 || warnings[0] != `data of event "go": 262144` {
		t.Errorf("%q", warnings)
	}
}

func TestCoroutine_MayReturnNil(t *testing.T) {
	registry := script(t, func(ctx *replay.Context) (string, error) {
		value, err := replay.Go(ctx, func(*replay.Context) (any, error) { return nil, nil }).Await(ctx)
		if value == nil {
			return "nothing", err
		}
		return "something", err
	})
	in := &instance{registry: registry}
	defer in.evict()
	mustTurn(t, in, started("script", nil))
	wantLast(t, in, `OrchestrationCompleted output="nothing"`)
}

func TestDecode_RejectsInvalidDestinations(t *testing.T) {
	destinations := map[string]any{
		"<nil>": nil, "map[string]int": map[string]int{}, "uint": uint(0),
		"int": (*int)(nil), "int64": (*int64)(nil), "bool": (*bool)(nil), "string": (*string)(nil),
	}
	for typeName, into := range destinations {
		for _, text := range []string{`1`, `true`, `"text"`, `{}`} {
			payload := &journalpb.Payload{Data: []byte(text)}
			var failed *replay.PayloadError
			err := engine.PayloadConverter{}.Decode(replay.PayloadInfo{Kind: "event"}, payload, into)
			if !errors.As(err, &failed) || failed.Type != typeName {
				t.Errorf("Decode of %s into %T(nil or value) = %v, want a PayloadError for %s", text, into, err, typeName)
			}
			if err := engine.Decode(payload, into); err == nil {
				t.Errorf("engine.Decode of %s into %T succeeds", text, into)
			}
		}
	}
}
