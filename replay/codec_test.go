package replay_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// encrypting returns the registry with a codec, and otherwise the same payloads.
func encrypting(t testing.TB, registry *replay.Registry) *replay.Registry {
	t.Helper()
	ring := new(KeyRing)
	if err := ring.Add("k1", newKey()); err != nil {
		t.Fatal(err)
	}
	return withCodec(registry, ring)
}

func withCodec(registry *replay.Registry, codec replay.Codec) *replay.Registry {
	payloads := registry.Payloads()
	payloads.Codec = codec
	return registry.WithPayloads(payloads)
}

// codecOf makes a codec of functions; nil ones change nothing.
type codecOf struct {
	encode func([]byte) ([]byte, string, error)
	decode func([]byte, string) ([]byte, error)
}

func (c codecOf) Encode(data []byte) ([]byte, string, error) {
	if c.encode == nil {
		return data, "test/same", nil
	}
	return c.encode(data)
}

func (c codecOf) Decode(data []byte, contentType string) ([]byte, error) {
	if c.decode == nil {
		return data, nil
	}
	return c.decode(data, contentType)
}

const canary = "CANARY"

// everything uses every kind of payload, and puts the canary into each.
func everything(ctx *replay.Context, round string) (string, error) {
	if err := transfer.Handle(ctx, nil, func(*replay.Context, int) (string, error) { return canary, nil }); err != nil {
		return "", err
	}
	grumble := replay.Update[string, string]("grumble")
	if err := grumble.Handle(ctx, nil, func(_ *replay.Context, text string) (string, error) { return "", errors.New(text) }); err != nil {
		return "", err
	}
	if err := replay.SetStatus(ctx, canary); err != nil {
		return "", err
	}
	value, err := replay.Once(ctx, "value", func() (string, error) { return canary, nil })
	if err != nil {
		return "", err
	}
	_, onceErr := replay.Once(ctx, "error", func() (string, error) { return "", errors.New(canary) })
	work, failed := act.Start(ctx, canary), act.Start(ctx, canary)
	part, lost := child.Start(ctx, canary), child.Start(ctx, canary)
	if err := child.Chain(ctx, canary); err != nil {
		return "", err
	}
	event, err := answer.Wait(ctx)
	if err != nil {
		return "", err
	}
	done, err := replay.All(ctx, work, part)
	if err != nil {
		return "", err
	}
	_, actErr := failed.Await(ctx)
	_, childErr := lost.Await(ctx)
	if round != canary+" twice" {
		return "", replay.Orchestration[string, string]("everything").ContinueAsNew(ctx, canary+" twice")
	}
	if _, err := goOn.Wait(ctx); err != nil {
		return "", err
	}
	return fmt.Sprint(value, event, done, onceErr, actErr, childErr), errors.Join(errors.New(canary), errOutOfStock)
}

// playEverything returns the end of the second execution.
func playEverything(t *testing.T, in *instance) *journalpb.Error {
	t.Helper()
	mustTurn(t, in, started("everything", canary))
	for range 2 {
		checkReplays(t, in)
		mustTurn(t, in, transferred(1, fmt.Sprint("t", in.execution())), external(replay.UpdatePrefix+"grumble", canary, fmt.Sprint("g", in.execution())))
		for _, event := range in.history {
			switch {
			case event.GetActivityScheduled() != nil && in.ended:
			case event.GetActivityScheduled() != nil && count(in, journalpb.ArmActivityCompleted) == 0:
				mustTurn(t, in, activityCompleted(event.EventId, canary))
			case event.GetActivityScheduled() != nil:
				mustTurn(t, in, activityFailed(event.EventId, fmt.Errorf("%s: %w", canary, &limitError{7, canary})))
			case event.GetSubOrchestrationScheduled() != nil && count(in, journalpb.ArmSubOrchestrationCompleted) == 0:
				mustTurn(t, in, childCompleted(event.EventId, canary))
			case event.GetSubOrchestrationScheduled() != nil:
				mustTurn(t, in, childFailed(event.EventId, &replay.PanicError{Message: canary, Stack: canary}))
			}
		}
		// The second goes to the next execution, by way of the inbox.
		mustTurn(t, in, external("tick", 17, ""), external("unread", canary, ""), external("answer", canary, ""))
		if in.successor != nil {
			in = in.next()
			mustTurn(t, in)
		}
	}
	mustTurn(t, in, external("go", canary, ""))
	checkReplays(t, in)
	in.drop()
	return in.history[len(in.history)-1].GetOrchestrationFailed().GetError()
}

func everythingRegistry(t *testing.T) *replay.Registry {
	return registryOf(t, replay.Orchestration[string, string]("everything").Bind(everything))
}

func TestNoRecordedByteIsPlainWhateverPayloadsARunHas(t *testing.T) {
	for _, cold := range []bool{false, true} {
		recorded := make(map[int]int)
		in := &instance{registry: encrypting(t, everythingRegistry(t)), cold: cold, journal: func(event *journalpb.Event) {
			recorded[event.Arm()]++
			if encoded, err := proto.Marshal(event); err != nil || bytes.Contains(encoded, []byte(canary)) {
				t.Errorf("%v: plain in %s", err, event)
			}
			if text := replay.Describe(event); strings.Contains(text, canary) {
				t.Errorf("described: %s", text)
			}
		}}
		failure := replay.DecodeError(playEverything(t, in))
		if !errors.Is(failure, errOutOfStock) || !strings.Contains(failure.Error(), canary) {
			t.Errorf("it failed with %v", failure)
		}
		for arm := range 64 {
			event := new(journalpb.Event)
			if hasValues(event.ProtoReflect(), arm) && recorded[arm] == 0 && arm != journalpb.ArmOrchestrationCompleted {
				t.Errorf("the run has no %s", journalpb.ArmName(arm))
			}
		}
	}
	// Without a codec it is found, so the search is worth something.
	in := &instance{registry: everythingRegistry(t)}
	playEverything(t, in)
	encoded, err := proto.Marshal(in.history[0])
	if err != nil || !bytes.Contains(encoded, []byte(canary)) {
		t.Error("without a codec nothing is plain")
	}
}

// hasValues tells whether events of a type hold payloads or errors.
func hasValues(event protoreflect.Message, arm int) bool {
	field := event.Descriptor().Fields().ByNumber(protoreflect.FieldNumber(arm))
	return field != nil && field.Message() != nil && len(valuePaths(field.Message(), nil)) > 0
}

var (
	payloadName = new(journalpb.Payload).ProtoReflect().Descriptor().FullName()
	errorName   = new(journalpb.Error).ProtoReflect().Descriptor().FullName()
)

// valuePaths returns where a message holds payloads and errors.
func valuePaths(message protoreflect.MessageDescriptor, before []protoreflect.FieldDescriptor) [][]protoreflect.FieldDescriptor {
	var paths [][]protoreflect.FieldDescriptor
	for i := range message.Fields().Len() {
		field := message.Fields().Get(i)
		path := append(before[:len(before):len(before)], field)
		switch {
		case field.IsMap() || field.Message() == nil:
		case field.Message().FullName() == payloadName, field.Message().FullName() == errorName:
			paths = append(paths, path)
		default:
			paths = append(paths, valuePaths(field.Message(), path)...)
		}
	}
	return paths
}

// TestEverySealedValueOfEveryEventIsNoticed puts one sealed value after the other
// into each place that the schema has for one.
func TestEverySealedValueOfEveryEventIsNoticed(t *testing.T) {
	sealed := &journalpb.Payload{Data: []byte("x"), ContentType: "test/same"}
	paths := valuePaths(new(journalpb.Event).ProtoReflect().Descriptor(), nil)
	if len(paths) < 15 {
		t.Fatalf("only %d places", len(paths))
	}
	for _, path := range paths {
		event := new(journalpb.Event)
		at := event.ProtoReflect()
		for _, field := range path {
			if field.IsList() {
				at = at.Mutable(field).List().AppendMutable().Message()
			} else {
				at = at.Mutable(field).Message()
			}
		}
		switch value := at.Interface().(type) {
		case *journalpb.Payload:
			proto.Merge(value, sealed)
		case *journalpb.Error:
			value.OtherCauses = []*journalpb.Error{{Cause: &journalpb.Error{Details: sealed}}}
		}
		if !replay.SealedEvent(event) {
			t.Errorf("not noticed: %v", path)
		}
	}
}

// A codec that fails, in whichever way, makes the turn fail, and neither the
// instance nor the node.
func TestACodecThatGoesWrongFailsTheTurnWithATypedError(t *testing.T) {
	broken := errors.New("no key today")
	cases := map[string]struct {
		codec codecOf
		verb  string
		cause string
	}{
		"encode fails":           {codecOf{encode: func([]byte) ([]byte, string, error) { return nil, "", broken }}, "encode", broken.Error()},
		"encode panics":          {codecOf{encode: func([]byte) ([]byte, string, error) { panic("boom") }}, "encode", "panic: boom"},
		"encode exits":           {codecOf{encode: func([]byte) ([]byte, string, error) { runtime.Goexit(); return nil, "", nil }}, "encode", "runtime.Goexit called in user code"},
		"a type that is no text": {codecOf{encode: func(data []byte) ([]byte, string, error) { return data, "\xff", nil }}, "encode", `content type "\xff" is not`},
		"a type that is long":    {codecOf{encode: func(data []byte) ([]byte, string, error) { return data, strings.Repeat("x", 129), nil }}, "encode", `content type "xxx`},
		"far too long":           {codecOf{encode: func([]byte) ([]byte, string, error) { return make([]byte, 1<<17), "x", nil }}, "encode", "have become 131072"},
		"decode fails":           {codecOf{decode: func([]byte, string) ([]byte, error) { return nil, broken }}, "decode", broken.Error()},
		"decode panics":          {codecOf{decode: func([]byte, string) ([]byte, error) { panic("boom") }}, "decode", "panic: boom"},
		"decode exits":           {codecOf{decode: func([]byte, string) ([]byte, error) { runtime.Goexit(); return nil, nil }}, "decode", "runtime.Goexit called in user code"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			registry := withCodec(script(t, func(ctx *replay.Context) (string, error) { return act.Call(ctx, "x") }), c.codec)
			x := replay.NewExecution("i", 1, registry, nil)
			defer x.Drop()
			start := started("script", nil)
			if c.verb == "decode" {
				start.GetOrchestrationStarted().Input.ContentType = "test/same"
			}
			turn, err := x.Turn(begin, messagesOf(start))
			var codec *replay.CodecError
			if !errors.As(err, &codec) || codec.Verb != c.verb || !strings.HasPrefix(codec.Err.Error(), c.cause) && !strings.Contains(codec.Err.Error(), c.cause) || turn != nil {
				t.Errorf("%v, %v", turn, err)
			}
			if errors.Is(err, broken) != strings.HasSuffix(name, "fails") {
				t.Errorf("%v", err)
			}
		})
	}
}

// Which codec there is decides who can read a history; a history that cannot be
// read is no history of another instance's code.
func TestAHistoryThatOnlyAnotherCodecCanReadWaitsForIt(t *testing.T) {
	plain := script(t, func(ctx *replay.Context) (string, error) { return act.Call(ctx, "x") })
	first := encrypting(t, plain)
	in := &instance{registry: first}
	mustTurn(t, in, started("script", nil))
	in.drop()
	for name, other := range map[string]*replay.Registry{"no codec": plain, "another key": encrypting(t, plain)} {
		x := replay.NewExecution("i", 1, other, nil)
		err := x.Replay(in.recorded(in.history))
		x.Drop()
		var codec *replay.CodecError
		if !errors.As(err, &codec) || codec.Verb != "decode" || codec.ContentType != "aes-gcm/k1" {
			t.Errorf("%s: %v", name, err)
		}
	}
	mustTurn(t, in, activityCompleted(2, "done"))
	wantLast(t, in, `OrchestrationCompleted output="done"`)
}

// What was recorded before there was a codec, or by an older key, goes on.
func TestAHistoryFromBeforeTheCodecGoesOn(t *testing.T) {
	plain := script(t, func(ctx *replay.Context) (string, error) {
		if _, err := act.Call(ctx, "x"); err != nil {
			return "", err
		}
		return act.Call(ctx, "y")
	})
	in := &instance{registry: plain}
	mustTurn(t, in, started("script", nil))
	in.drop()
	ring := new(KeyRing)
	var history []*journalpb.Event
	history = append(history, in.history...)
	for n, result := range []string{"first", "second"} {
		if err := ring.Add(fmt.Sprint("k", n), newKey()); err != nil {
			t.Fatal(err)
		}
		registry := withCodec(plain, ring)
		x := replay.NewExecution("i", 1, registry, nil)
		if err := x.Replay(all(history)); err != nil {
			t.Fatal(err)
		}
		completion, err := registry.Payloads().SealEvent(activityCompleted(uint64(2+2*n), result))
		if err != nil {
			t.Fatal(err)
		}
		turn, err := x.Turn(begin, messagesOf(completion))
		if err != nil {
			t.Fatal(err)
		}
		for _, event := range turn.Events {
			history = append(history, stored(event))
		}
		x.Drop()
	}
	x := replay.NewExecution("i", 1, withCodec(plain, ring), nil)
	defer x.Drop()
	if err := x.Replay(all(history)); err != nil || !x.Ended() || history[0].GetOrchestrationStarted().Input.ContentType != "" {
		t.Errorf("%v", err)
	}
	opened, err := withCodec(plain, ring).Payloads().OpenEvent(history[len(history)-1])
	if err != nil || replay.Describe(opened) != `OrchestrationCompleted output="second"` {
		t.Errorf("%v, %v", opened, err)
	}
}

// A codec may leave values as they are, small ones for example.
func TestACodecMayLeaveValuesAsTheyAre(t *testing.T) {
	registry := withCodec(script(t, func(ctx *replay.Context) (string, error) {
		_, err := act.Call(ctx, "x")
		return "", err
	}), codecOf{
		encode: func([]byte) ([]byte, string, error) { return nil, "", nil },
		decode: func([]byte, string) ([]byte, error) { panic("nothing is to be decoded") },
	})
	eachPlain := &instance{registry: registry, cold: true}
	mustTurn(t, eachPlain, started("script", nil))
	mustTurn(t, eachPlain, activityFailed(2, io.EOF))
	wantLast(t, eachPlain, `OrchestrationFailed code="tenuto.activity" error="activity \"act\": EOF"`)
	checkReplays(t, eachPlain)
}

func TestAMismatchShowsNoPayloadIfThereIsACodec(t *testing.T) {
	secret := "x"
	registry := encrypting(t, script(t, func(ctx *replay.Context) (string, error) { return act.Call(ctx, canary+secret) }))
	in := &instance{registry: registry, cold: true}
	mustTurn(t, in, started("script", nil))
	secret = "other"
	_, err := in.turn(begin, nil)
	var mismatch *replay.Mismatch
	if !errors.As(err, &mismatch) || mismatch.Kind != replay.ScheduledDifferently || strings.Contains(err.Error(), canary) ||
		mismatch.Expected != `ActivityScheduled name="act" input=(9 bytes)` || mismatch.Found != `ActivityScheduled name="act" input=(13 bytes)` {
		t.Errorf("%v", err)
	}
	failing := encrypting(t, script(t, func(*replay.Context) (string, error) { return "", errors.New(canary + secret) }))
	in = &instance{registry: failing, cold: true}
	mustTurn(t, in, started("script", nil))
	secret = "x"
	if _, err := in.turn(begin, nil); !errors.As(err, &mismatch) || strings.Contains(err.Error(), canary) {
		t.Errorf("%v", err)
	}
}

// Between the body of an activity and its history nobody can read its error; its
// code and whether to retry are known all the same.
func TestErrorsOfActivitiesPassThroughTheCodec(t *testing.T) {
	cases := map[string]struct {
		fail  func() error
		code  string
		again bool
	}{
		"an error":           {func() error { return errors.New(canary) }, "", true},
		"with a code inside": {func() error { return fmt.Errorf("%s: %w", canary, errOutOfStock) }, "shop.out_of_stock", true},
		"a final one":        {func() error { return replay.NonRetryable(&limitError{7, canary}) }, "test.limit", false},
		"a panic":            {func() error { panic(canary) }, "tenuto.panic", true},
		"a nil that panics":  {func() error { var e *limitError; return e }, "tenuto.panic", true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			registry := encrypting(t, registryOf(t, act.Bind(func(context.Context, string) (string, error) { return "", c.fail() })))
			var failure error
			registry.Run(t.Context(), &replay.Attempt{Name: "act"}, func(_ *journalpb.Payload, err error) { failure = err })
			record := replay.EncodeError(replay.DecodeError(replay.EncodeError(failure)))
			encoded, err := proto.Marshal(record)
			if err != nil || bytes.Contains(encoded, []byte(canary)) || strings.Contains(fmt.Sprintf("%v %+v", failure, replay.DecodeError(record)), canary) {
				t.Errorf("%v: plain in %v", err, record)
			}
			if _, again := replay.RetryAfter(nil, 1, replay.DecodeError(record), 0); again != c.again || record.Code != c.code {
				t.Errorf("again %t, %v", again, record)
			}
			opened := registry.Payloads().DecodeError(record)
			if opened == nil || name != "a nil that panics" && !strings.Contains(opened.Error()+fmt.Sprint(opened), canary) && !errors.As(opened, new(*limitError)) {
				t.Errorf("opened: %v", opened)
			}
			var codec *replay.CodecError
			if err := encrypting(t, registry).Payloads().DecodeError(record); !errors.As(err, &codec) || c.code != "" && !errors.Is(err, &replay.Error{Code: c.code}) {
				t.Errorf("with another key: %v", err)
			}
			// The next attempt reads it.
			next := registryOf(t, act.Bind(func(ctx context.Context, _ string) (string, error) {
				if last := replay.ActivityInfo(ctx).LastError; last == nil || last.Error() != opened.Error() {
					t.Errorf("the last error is %v", last)
				}
				return "", replay.ErrPending
			}))
			next.WithPayloads(registry.Payloads()).Run(t.Context(), &replay.Attempt{Name: "act", LastError: replay.DecodeError(record)}, func(_ *journalpb.Payload, err error) {
				if !errors.Is(err, replay.ErrPending) {
					t.Errorf("pending has become %v", err)
				}
			})
		})
	}
}

func TestDetailsOfHeartbeatsPassThroughTheCodec(t *testing.T) {
	var beaten []*journalpb.Payload
	registry := encrypting(t, registryOf(t, act.Bind(func(ctx context.Context, _ string) (string, error) {
		details, ok := replay.HeartbeatDetails[string](ctx)
		for _, next := range []string{canary + details, canary + details, canary} {
			if err := replay.Heartbeat(ctx, next); err != nil {
				t.Error(err)
			}
		}
		return fmt.Sprint(details, ok), nil
	})))
	attempt := func(details *journalpb.Payload) (output string) {
		beaten = nil
		registry.Run(t.Context(), &replay.Attempt{Name: "act", Details: details, Beat: func(p *journalpb.Payload) { beaten = append(beaten, p) }},
			func(payload *journalpb.Payload, err error) {
				if err != nil || registry.Payloads().Decode(replay.PayloadOf{}, payload, &output) != nil {
					t.Error(err)
				}
			})
		return output
	}
	if output := attempt(nil); output != "false" {
		t.Errorf("the first finds %q", output)
	}
	if output := attempt(beaten[2]); output != canary+"true" {
		t.Errorf("the second finds %q", output)
	}
	if !proto.Equal(beaten[0], beaten[1]) || proto.Equal(beaten[1], beaten[2]) {
		t.Error("the same details are encoded anew, or others are not")
	}
	for _, payload := range beaten {
		if bytes.Contains(payload.Data, []byte(canary)) {
			t.Errorf("plain: %s", payload)
		}
	}
}

// An attempt that the codec fails is one that may be tried again, here or where
// the key is.
func TestAnAttemptThatTheCodecFailsIsTriedAgain(t *testing.T) {
	ok := func(context.Context, string) (string, error) { return "x", nil }
	fails := func(context.Context, string) (string, error) { return "", errors.New(canary) }
	broken := codecOf{encode: func([]byte) ([]byte, string, error) { return nil, "", io.ErrUnexpectedEOF }}
	for name, c := range map[string]struct {
		body  func(context.Context, string) (string, error)
		input *journalpb.Payload
		verb  string
	}{
		"its input":  {ok, &journalpb.Payload{Data: []byte("x"), ContentType: "test/x"}, "decode"},
		"its output": {ok, nil, "encode"},
		"its error":  {fails, nil, "encode"},
	} {
		registry := withCodec(registryOf(t, act.Bind(c.body)), broken)
		if c.verb == "decode" {
			registry = registryOf(t, act.Bind(c.body))
		}
		registry.Run(t.Context(), &replay.Attempt{Name: "act", Input: c.input}, func(_ *journalpb.Payload, err error) {
			var codec *replay.CodecError
			if !errors.As(crossed(t, err), &codec) || codec.Verb != c.verb || strings.Contains(err.Error(), canary) {
				t.Errorf("%s: %v", name, err)
			}
			if _, again := replay.RetryAfter(nil, 1, err, 0); !again {
				t.Errorf("%s: it is not tried again", name)
			}
		})
	}
}

func TestQueriesAndTheirAnswersPassThroughTheCodec(t *testing.T) {
	ask := replay.Query[string, string]("ask")
	registry := encrypting(t, script(t, func(ctx *replay.Context) (string, error) {
		err := ask.Answer(ctx, func(text string) (string, error) {
			if text == "" {
				return "", errors.New(canary)
			}
			return text + canary, nil
		})
		if err != nil {
			return "", err
		}
		_, err = goOn.Wait(ctx)
		return "", err
	}))
	payloads := registry.Payloads()
	x := replay.NewExecution("i", 1, registry, nil)
	defer x.Drop()
	if _, err := x.Turn(begin, messagesOf(started("script", nil))); err != nil {
		t.Fatal(err)
	}
	of := replay.PayloadOf{Kind: "query", Name: "ask", Part: "input"}
	for _, text := range []string{"a ", ""} {
		input, err := payloads.Encode(of, text)
		if err != nil {
			t.Fatal(err)
		}
		output, err := x.Query("ask", input)
		if text == "" {
			if err == nil || strings.Contains(err.Error(), canary) || payloads.DecodeError(replay.EncodeError(err)).Error() != canary {
				t.Errorf("it answers %v", err)
			}
			continue
		}
		var answer string
		if decodeErr := payloads.Decode(of, output, &answer); err != nil || decodeErr != nil || answer != "a "+canary || bytes.Contains(output.Data, []byte(canary)) {
			t.Errorf("%q, %v, %v", answer, err, decodeErr)
		}
	}
	var none *replay.NoQueryError
	if _, err := x.Query("other", nil); !errors.As(err, &none) {
		t.Errorf("%v", err)
	}
	var codec *replay.CodecError
	if _, err := x.Query("ask", &journalpb.Payload{Data: []byte("x"), ContentType: "other"}); !errors.As(err, &codec) {
		t.Errorf("%v", err)
	}
}

func TestAnErrorThatHasCrossedPassesThroughTheCodecOnce(t *testing.T) {
	payloads := encrypting(t, registryOf(t)).Payloads()
	inner, err := payloads.EncodeError(fmt.Errorf("%s: %w", canary, errOutOfStock))
	if err != nil {
		t.Fatal(err)
	}
	timeout := &replay.TimeoutError{Kind: replay.TimeoutScheduleToClose, Err: replay.DecodeError(inner)}
	outer, err := payloads.EncodeError(errors.Join(io.EOF, timeout))
	if err != nil {
		t.Fatal(err)
	}
	got := payloads.DecodeError(outer)
	if !errors.Is(got, errOutOfStock) || !errors.Is(got, replay.ErrTimeout) || errors.As(got, new(*replay.CodecError)) {
		t.Errorf("%v", got)
	}
	if again, err := payloads.EncodeError(replay.DecodeError(outer)); err != nil || !proto.Equal(again, outer) {
		t.Errorf("%v, %v", again, err)
	}
	if record, err := payloads.EncodeError(nil); record != nil || err != nil || payloads.DecodeError(nil) != nil {
		t.Errorf("no error is %v, %v", record, err)
	}
}

func BenchmarkColdReplayWithACodec(b *testing.B) {
	for name, registry := range map[string]*replay.Registry{"none": programRegistry(b), "aes-gcm": encrypting(b, programRegistry(b))} {
		b.Run(name, func(b *testing.B) {
			in := &instance{registry: registry}
			defer in.drop()
			if _, err := in.turn(begin, messagesOf(started("parallel", "x"), activityCompleted(3, "b"), activityCompleted(2, "a"))); err != nil {
				b.Fatal(err)
			}
			var history []*journalpb.Event
			for event := range in.recorded(in.history) {
				history = append(history, event)
			}
			b.ReportAllocs()
			for b.Loop() {
				x := replay.NewExecution("i", 1, registry, nil)
				if err := x.Replay(all(history)); err != nil {
					b.Fatal(err)
				}
				x.Drop()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(history)), "ns/event")
		})
	}
}
