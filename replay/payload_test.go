package replay_test

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
)

// The handles whose types are not those of what is recorded.
var (
	numberAct   = replay.Activity[string, int]("act")
	numberChild = replay.Orchestration[string, int]("child")
	numberEvent = replay.Event[int]("answer")
)

func TestAResultThatDoesNotDecodeIsATypedErrorLiveAndAfterARestart(t *testing.T) {
	cases := map[string]struct {
		await  func(*replay.Context) (int, error)
		result *journalpb.Event
		of     replay.PayloadOf // before protocol 3
		part   string           // since then
		text   string
	}{
		"of an activity": {
			await:  func(ctx *replay.Context) (int, error) { return numberAct.Call(ctx, "x") },
			result: activityCompleted(2, "seven"),
			of:     replay.PayloadOf{Kind: "activity", Name: "act", Part: "result"},
			part:   "result",
			text:   `decode result of activity "act" (event_id 2): json: `,
		},
		"of a child": {
			await:  func(ctx *replay.Context) (int, error) { return numberChild.Call(ctx, "x") },
			result: childCompleted(2, "seven"),
			of:     replay.PayloadOf{Kind: "orchestration", Name: "child", Part: "result"},
			part:   "result",
			text:   `decode result of orchestration "child" (event_id 2): json: `,
		},
		"of an event": {
			await:  func(ctx *replay.Context) (int, error) { return numberEvent.Wait(ctx) },
			result: external("answer", "seven", "from Ada"),
			of:     replay.PayloadOf{Kind: "event", Name: "answer", Part: "result"},
			part:   "data",
			text:   `decode data of event "answer" (event_id 3, request ID "from Ada"): json: `,
		},
	}
	for name, c := range cases {
		for _, protocol3 := range []bool{false, true} {
			first, of, start := "decode result: json: ", c.of, started("script", nil)
			if protocol3 {
				first, of.Part, start.GetOrchestrationStarted().Incarnation = c.text, c.part, 7
			}
			t.Run(fmt.Sprintf("%s, protocol 3 %t", name, protocol3), func(t *testing.T) {
				awaitUndecodable(t, start, c.await, c.result, of, first)
			})
		}
	}
}

// awaitUndecodable checks that awaiting the result is an error of that payload and text.
func awaitUndecodable(t *testing.T, start *journalpb.Event, await func(*replay.Context) (int, error), result *journalpb.Event, of replay.PayloadOf, text string) {
	var seen []string
	registry := script(t, func(ctx *replay.Context) (string, error) {
		value, err := await(ctx)
		var unfit *replay.PayloadError
		var wrong *json.UnmarshalTypeError
		if !errors.As(err, &unfit) || !errors.As(err, &wrong) || unfit.PayloadOf != of || unfit.Verb != "decode" || unfit.Type != "int" || value != 0 {
			t.Errorf("%d, %#v", value, err)
		}
		seen = append(seen, err.Error())
		_, waited := goOn.Wait(ctx)
		return "", errors.Join(err, waited)
	})
	eachWay(t, registry, func(t *testing.T, in *instance) {
		mustTurn(t, in, start)
		mustTurn(t, in, result)
		mustTurn(t, in, external("go", nil, ""))
		// What the orchestration fails with is known to its parent, too.
		err := replay.DecodeError(in.history[len(in.history)-1].GetOrchestrationFailed().GetError())
		var unfit *replay.PayloadError
		if !errors.As(err, &unfit) || unfit.PayloadOf != of || unfit.Type != "int" {
			t.Errorf("failed with %#v", err)
		}
		if _, again := replay.RetryAfter(nil, 1, err, 0); again {
			t.Error("it would be tried again")
		}
	})
	for _, said := range seen {
		if said != seen[0] || !strings.HasPrefix(said, text) {
			t.Errorf("%q, first %q; want %q", said, seen[0], text)
		}
	}
}

// What was recorded of such an error before protocol 3 keeps its words, and so does what is
// recorded now: code may have made them part of what it asks for.
func TestThePayloadErrorsOfAChildKeepTheirWords(t *testing.T) {
	named := &journalpb.Error{
		Code:    "tenuto.payload",
		Message: `decode data of event "go" (recorded in an earlier execution): no number`,
		Details: &journalpb.Payload{Data: []byte(`{"Verb":"decode","Kind":"event","Name":"go","Part":"data","Type":"int"}`)},
		Cause:   &journalpb.Error{Message: "no number"},
	}
	before := proto.CloneOf(named)
	before.Message = "decode data: no number"
	for _, record := range []*journalpb.Error{named, before} {
		if err := crossed(t, replay.DecodeError(record)); err.Error() != record.Message {
			t.Errorf("%q; want %q", err, record.Message)
		}
	}
}

func TestPayloadErrorsAreKnownAfterCrossing(t *testing.T) {
	for name, before := range map[string]error{
		"decode input: no number":                   &replay.PayloadError{Verb: "decode", PayloadOf: replay.PayloadOf{Kind: "activity", Name: "a", Part: "input"}, Type: "int", Err: errors.New("no number")},
		"encode status: no number":                  &replay.PayloadError{Verb: "encode", PayloadOf: replay.PayloadOf{Kind: "orchestration", Name: "o", Part: "status"}, Type: "int", Err: errors.New("no number")},
		`encode input of activity "a": no number`:   &replay.PayloadError{Verb: "encode", PayloadOf: replay.PayloadOf{Kind: "activity", Name: "a", Part: "input"}, Err: errors.New("no number")},
		`tenuto: codec: decode "k": no key`:         &replay.CodecError{Verb: "decode", ContentType: "k", Err: errors.New("no key")},
		`tenuto: codec: encode: no key`:             &replay.CodecError{Verb: "encode", Err: errors.New("no key")},
		"tenuto: payload of 9 bytes: at most 8 are": &replay.PayloadTooLargeError{Bytes: 9, Max: 8},
	} {
		after := crossed(t, crossed(t, before))
		switch before := before.(type) {
		case *replay.PayloadError:
			var unfit *replay.PayloadError
			if !errors.As(after, &unfit) || unfit.PayloadOf != before.PayloadOf || unfit.Type != before.Type || unfit.Err == nil {
				t.Errorf("%s: %#v", name, after)
			}
			if _, again := replay.RetryAfter(nil, 1, after, 0); again {
				t.Errorf("%s: it would be tried again", name)
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
			t.Errorf("%q has become %q, want %q", before, after, name)
		}
	}
}

// A value of orchestration code that is too large is an error of the very call,
// which nothing is recorded of.
func TestAValueThatIsTooLargeIsAnErrorOfTheCallAndLeavesNoTrace(t *testing.T) {
	large := strings.Repeat("x", 100)
	calls := map[replay.PayloadOf]func(*replay.Context) error{
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
	for of, call := range calls {
		t.Run(of.String(), func(t *testing.T) {
			registry := script(t, func(ctx *replay.Context) (string, error) {
				checkTooLarge(t, call(ctx), of)
				return "went on", nil
			}).WithPayloads(replay.Payloads{Max: 50})
			eachWay(t, registry, func(t *testing.T, in *instance) {
				turn := mustTurn(t, in, started("script", nil))
				wantLast(t, in, `OrchestrationCompleted output="went on"`)
				if len(turn.Events) != 2 {
					t.Errorf("%d events", len(turn.Events))
				}
			})
		})
	}
}

func checkTooLarge(t *testing.T, err error, of replay.PayloadOf) {
	t.Helper()
	var unfit *replay.PayloadError
	var tooLarge *replay.PayloadTooLargeError
	if !errors.As(err, &unfit) || unfit.PayloadOf != of || unfit.Verb != "encode" || !errors.As(err, &tooLarge) || tooLarge.Max != 50 || tooLarge.Bytes != 102 {
		t.Errorf("%#v", err)
	}
	if _, again := replay.RetryAfter(nil, 1, err, 0); again {
		t.Error("it would be tried again")
	}
}

// What is recorded as an outcome fails with the error instead.
func TestAnOutcomeThatIsTooLargeIsAFailure(t *testing.T) {
	large := strings.Repeat("x", 100)
	update := replay.Update[int, string]("grow")
	registry := script(t, func(ctx *replay.Context) (string, error) {
		if err := update.Handle(ctx, nil, func(*replay.Context, int) (string, error) { return large, nil }); err != nil {
			return "", err
		}
		_, err := replay.Once(ctx, "big", func() (string, error) { return large, nil })
		checkTooLarge(t, err, replay.PayloadOf{Kind: "side effect", Name: "big", Part: "value"})
		_, err = goOn.Wait(ctx)
		return large, err
	}).WithPayloads(replay.Payloads{Max: 50})
	eachWay(t, registry, func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		mustTurn(t, in, external("tenuto.update/grow", 1, "r1"))
		checkTooLarge(t, replay.DecodeError(in.history[len(in.history)-1].GetSideEffectRecorded().GetError()), replay.PayloadOf{Kind: "update", Name: "grow", Part: "output"})
		mustTurn(t, in, external("go", nil, ""))
		checkTooLarge(t, replay.DecodeError(in.history[len(in.history)-1].GetOrchestrationFailed().GetError()), replay.PayloadOf{Kind: "orchestration", Name: "script", Part: "output"})
	})
	body := act.Bind(func(context.Context, string) (string, error) { return large, nil })
	attempt := &replay.Attempt{Name: "act", Input: payloadOf("")}
	registryOf(t, body).WithPayloads(replay.Payloads{Max: 50}).Run(t.Context(), attempt, func(output *journalpb.Payload, err error) {
		checkTooLarge(t, crossed(t, err), replay.PayloadOf{Kind: "activity", Name: "act", Part: "output"})
	})
}

// Warn is told of each value once, with what it is.
func TestLargeValuesAreWarnedOfOnce(t *testing.T) {
	var warned []string
	warn := func(of replay.PayloadOf, bytes int) {
		warned = append(warned, fmt.Sprintf("%s: %d", of, bytes))
		panic("which is of no account")
	}
	registry := script(t, func(ctx *replay.Context) (string, error) {
		if err := replay.SetStatus(ctx, "12345678"); err != nil {
			return "", err
		}
		return act.Call(ctx, "1234567")
	}).WithPayloads(replay.Payloads{WarnFrom: 10, Warn: warn})
	in := &instance{registry: registry, cold: true}
	mustTurn(t, in, started("script", nil))
	mustTurn(t, in, activityCompleted(3, "1"))
	checkReplays(t, in)
	if diff := cmp.Diff([]string{`status of orchestration "script": 10`}, warned); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	payloads := replay.Payloads{WarnFrom: -1, Warn: warn}
	if _, err := payloads.Encode(replay.PayloadOf{Kind: "event", Name: "go", Part: "data"}, strings.Repeat("x", 1<<19)); err != nil || len(warned) != 1 {
		t.Errorf("%v, %v", err, warned)
	}
	payloads.WarnFrom = 0 // 256 KiB
	for _, length := range []int{256<<10 - 3, 256<<10 - 2} {
		if _, err := payloads.Encode(replay.PayloadOf{Kind: "event", Name: "go", Part: "data"}, strings.Repeat("x", length)); err != nil {
			t.Error(err)
		}
	}
	if warned = warned[1:]; len(warned) != 1 || warned[0] != `data of event "go": 262144` {
		t.Errorf("%q", warned)
	}
}

func TestACoroutineMayReturnNil(t *testing.T) {
	registry := script(t, func(ctx *replay.Context) (string, error) {
		value, err := replay.Go(ctx, func(*replay.Context) (any, error) { return nil, nil }).Await(ctx)
		if value == nil {
			return "nothing", err
		}
		return "something", err
	})
	in := &instance{registry: registry}
	defer in.drop()
	mustTurn(t, in, started("script", nil))
	wantLast(t, in, `OrchestrationCompleted output="nothing"`)
}
