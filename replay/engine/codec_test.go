package engine_test

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
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// withEncryption returns the registry with an encrypting codec.
func withEncryption(t testing.TB, registry *engine.Registry) *engine.Registry {
	t.Helper()
	ring := new(KeyRing)
	if err := ring.Add("k1", newKey()); err != nil {
		t.Fatal(err)
	}
	return withCodec(registry, ring)
}

func withCodec(registry *engine.Registry, codec replay.Codec) *engine.Registry {
	payloads := registry.PayloadConverter()
	payloads.Codec = codec
	return registry.WithPayloadConverter(payloads)
}

// funcCodec makes a codec of functions; nil functions change nothing.
type funcCodec struct {
	encode func([]byte) ([]byte, string, error)
	decode func([]byte, string) ([]byte, error)
}

func (c funcCodec) Encode(data []byte) ([]byte, string, error) {
	if c.encode == nil {
		return data, "test/same", nil
	}
	return c.encode(data)
}

func (c funcCodec) Decode(data []byte, contentType string) ([]byte, error) {
	if c.decode == nil {
		return data, nil
	}
	return c.decode(data, contentType)
}

const canary = "CANARY"

// everything uses every type of payload and puts the canary into each.
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
	if round != canary+" twice" {
		if err := replay.KV[string]("values").Set(ctx, "key", canary); err != nil {
			return "", err
		}
	}
	if value, ok, err := replay.KV[string]("values").Get(ctx, "key"); value != canary || !ok || err != nil {
		return "", fmt.Errorf("the key has %q, %t, %v", value, ok, err)
	}
	value, err := replay.SideEffect(ctx, "value", func() (string, error) { return canary, nil })
	if err != nil {
		return "", err
	}
	_, onceErr := replay.SideEffect(ctx, "error", func() (string, error) { return "", errors.New(canary) })
	work, failed := act.Start(ctx, canary), act.Start(ctx, canary)
	part, lost := child.Start(ctx, canary), child.Start(ctx, canary)
	if err := child.Chain(ctx, canary); err != nil {
		return "", err
	}
	send := func(ctx *replay.Context) (string, error) { return "", answer.SendTo(ctx, "receiver", canary) }
	sent, rejected := replay.Go(ctx, send), replay.Go(ctx, send)
	event, err := answer.Wait(ctx)
	if err != nil {
		return "", err
	}
	if _, err := sent.Await(ctx); err != nil {
		return "", err
	}
	if _, err := rejected.Await(ctx); err == nil {
		return "", errors.New("not rejected")
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

// runEverything returns the end of the second execution.
func runEverything(t *testing.T, in *instance) *journalpb.Error {
	t.Helper()
	mustTurn(t, in, started("everything", canary))
	for range 2 {
		checkReplays(t, in)
		mustTurn(t, in, transferEvent(1, fmt.Sprint("t", in.execution())), external(engine.UpdatePrefix+"grumble", canary, fmt.Sprint("g", in.execution())))
		for _, event := range in.history {
			switch {
			case event.GetActivityScheduled() != nil && in.ended:
			case event.GetActivityScheduled() != nil && countEvents(in, journalpb.TypeActivityCompleted) == 0:
				mustTurn(t, in, activityCompleted(event.EventId, canary))
			case event.GetActivityScheduled() != nil:
				mustTurn(t, in, activityFailed(event.EventId, fmt.Errorf("%s: %w", canary, &limitError{7, canary})))
			case event.GetMessageSent() != nil && countEvents(in, journalpb.TypeMessageDelivered) == 0:
				mustTurn(t, in, messageDelivered(event.EventId))
			case event.GetMessageSent() != nil:
				mustTurn(t, in, messageRejected(event.EventId, errors.New(canary)))
			case event.GetSubOrchestrationScheduled() != nil && countEvents(in, journalpb.TypeSubOrchestrationCompleted) == 0:
				mustTurn(t, in, childCompleted(event.EventId, canary))
			case event.GetSubOrchestrationScheduled() != nil:
				mustTurn(t, in, childFailed(event.EventId, &replay.PanicError{Message: canary, Stack: canary}))
			}
		}
		// The second event goes to the next execution, through the inbox.
		mustTurn(t, in, external("tick", 17, ""), external("unread", canary, ""), external("answer", canary, ""))
		if in.successor != nil {
			in = in.next()
			mustTurn(t, in)
		}
	}
	mustTurn(t, in, external("go", canary, ""))
	checkReplays(t, in)
	in.evict()
	return in.history[len(in.history)-1].GetOrchestrationFailed().GetError()
}

func everythingRegistry(t *testing.T) *engine.Registry {
	return registryOf(t, replay.Orchestration[string, string]("everything").Bind(everything))
}

func TestCodec_NoPlaintextRecorded(t *testing.T) {
	for _, cold := range []bool{false, true} {
		recorded := make(map[int]int)
		in := &instance{registry: withEncryption(t, everythingRegistry(t)), cold: cold, journal: func(event *journalpb.Event) {
			recorded[event.TypeNumber()]++
			if encoded, err := proto.Marshal(event); err != nil || bytes.Contains(encoded, []byte(canary)) {
				t.Errorf("%v: plaintext in %s", err, event)
			}
			if text := engine.Describe(event); strings.Contains(text, canary) {
				t.Errorf("plaintext in Describe: %s", text)
			}
		}}
		failure := engine.DecodeError(runEverything(t, in))
		if !errors.Is(failure, errOutOfStock) || !strings.Contains(failure.Error(), canary) {
			t.Errorf("instance failed: %v", failure)
		}
		for eventType := range 64 {
			event := new(journalpb.Event)
			if hasValues(event.ProtoReflect(), eventType) && recorded[eventType] == 0 && eventType != journalpb.TypeOrchestrationCompleted && eventType != journalpb.TypeHistoryCopied {
				t.Errorf("history has no %s", journalpb.TypeName(eventType))
			}
		}
	}
	// Without a codec the search must find it.
	in := &instance{registry: everythingRegistry(t)}
	runEverything(t, in)
	encoded, err := proto.Marshal(in.history[0])
	if err != nil || !bytes.Contains(encoded, []byte(canary)) {
		t.Error("canary not found without a codec")
	}
}

// hasValues reports whether events of a type hold payloads or errors.
func hasValues(event protoreflect.Message, eventType int) bool {
	field := event.Descriptor().Fields().ByNumber(protoreflect.FieldNumber(eventType))
	return field != nil && field.Message() != nil && len(valuePaths(field.Message(), nil)) > 0
}

var (
	payloadName = new(journalpb.Payload).ProtoReflect().Descriptor().FullName()
	errorName   = new(journalpb.Error).ProtoReflect().Descriptor().FullName()
)

// valuePaths returns the paths of payloads and errors in a message.
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

// TestIsSealedEvent_EveryField puts one sealed value at a time into each field that can hold one.
func TestIsSealedEvent_EveryField(t *testing.T) {
	sealed := &journalpb.Payload{Data: []byte("x"), ContentType: "test/same"}
	paths := valuePaths(new(journalpb.Event).ProtoReflect().Descriptor(), nil)
	if len(paths) < 15 {
		t.Fatalf("only %d fields with values", len(paths))
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
		if !engine.IsSealedEvent(event) {
			t.Errorf("sealed value not detected at %v", path)
		}
	}
}

// A codec failure of any kind fails the turn, but neither the instance nor the node.
func TestCodec_FailureFailsTurnWithCodecError(t *testing.T) {
	broken := errors.New("no key today")
	cases := map[string]struct {
		codec funcCodec
		verb  string
		cause string
	}{
		"encode fails":           {funcCodec{encode: func([]byte) ([]byte, string, error) { return nil, "", broken }}, "encode", broken.Error()},
		"encode panics":          {funcCodec{encode: func([]byte) ([]byte, string, error) { panic("boom") }}, "encode", "panic: boom"},
		"encode exits":           {funcCodec{encode: func([]byte) ([]byte, string, error) { runtime.Goexit(); return nil, "", nil }}, "encode", "runtime.Goexit called in user code"},
		"a type that is no text": {funcCodec{encode: func(data []byte) ([]byte, string, error) { return data, "\xff", nil }}, "encode", `content type "\xff" is not`},
		"a type that is long":    {funcCodec{encode: func(data []byte) ([]byte, string, error) { return data, strings.Repeat("x", 129), nil }}, "encode", `content type "xxx`},
		"far too long":           {funcCodec{encode: func([]byte) ([]byte, string, error) { return make([]byte, 1<<17), "x", nil }}, "encode", "encoded to 131072"},
		"decode fails":           {funcCodec{decode: func([]byte, string) ([]byte, error) { return nil, broken }}, "decode", broken.Error()},
		"decode panics":          {funcCodec{decode: func([]byte, string) ([]byte, error) { panic("boom") }}, "decode", "panic: boom"},
		"decode exits":           {funcCodec{decode: func([]byte, string) ([]byte, error) { runtime.Goexit(); return nil, nil }}, "decode", "runtime.Goexit called in user code"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			registry := withCodec(script(t, func(ctx *replay.Context) (string, error) { return act.Call(ctx, "x") }), c.codec)
			x := engine.NewExecution("i", 1, registry, nil)
			defer x.Evict()
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

// A history that the codec cannot read fails with a CodecError, not a Mismatch.
func TestCodec_UnreadableHistoryFailsReplay(t *testing.T) {
	plain := script(t, func(ctx *replay.Context) (string, error) { return act.Call(ctx, "x") })
	first := withEncryption(t, plain)
	in := &instance{registry: first}
	mustTurn(t, in, started("script", nil))
	in.evict()
	for name, other := range map[string]*engine.Registry{"no codec": plain, "another key": withEncryption(t, plain)} {
		x := engine.NewExecution("i", 1, other, nil)
		err := x.Replay(in.sealedHistory(in.history))
		x.Evict()
		var codec *replay.CodecError
		if !errors.As(err, &codec) || codec.Verb != "decode" || codec.ContentType != "aes-gcm/k1" {
			t.Errorf("%s: %v", name, err)
		}
	}
	mustTurn(t, in, activityCompleted(2, "done"))
	wantLast(t, in, `OrchestrationCompleted output="done"`)
}

// Values recorded without a codec, or with an older key, remain readable.
func TestCodec_ContinuesPlaintextHistory(t *testing.T) {
	plain := script(t, func(ctx *replay.Context) (string, error) {
		if _, err := act.Call(ctx, "x"); err != nil {
			return "", err
		}
		return act.Call(ctx, "y")
	})
	in := &instance{registry: plain}
	mustTurn(t, in, started("script", nil))
	in.evict()
	ring := new(KeyRing)
	var history []*journalpb.Event
	history = append(history, in.history...)
	for n, result := range []string{"first", "second"} {
		if err := ring.Add(fmt.Sprint("k", n), newKey()); err != nil {
			t.Fatal(err)
		}
		registry := withCodec(plain, ring)
		x := engine.NewExecution("i", 1, registry, nil)
		if err := x.Replay(eventSeq(history)); err != nil {
			t.Fatal(err)
		}
		completion, err := registry.PayloadConverter().SealEvent(activityCompleted(uint64(2+2*n), result))
		if err != nil {
			t.Fatal(err)
		}
		turn, err := x.Turn(begin, messagesOf(completion))
		if err != nil {
			t.Fatal(err)
		}
		for _, event := range turn.Events {
			history = append(history, journalCopy(event))
		}
		x.Evict()
	}
	x := engine.NewExecution("i", 1, withCodec(plain, ring), nil)
	defer x.Evict()
	if err := x.Replay(eventSeq(history)); err != nil || !x.Ended() || history[0].GetOrchestrationStarted().Input.ContentType != "" {
		t.Errorf("%v", err)
	}
	opened, err := withCodec(plain, ring).PayloadConverter().OpenEvent(history[len(history)-1])
	if err != nil || engine.Describe(opened) != `OrchestrationCompleted output="second"` {
		t.Errorf("%v, %v", opened, err)
	}
}

// A codec may leave values unencoded, such as small ones.
func TestCodec_MayPassThroughValues(t *testing.T) {
	registry := withCodec(script(t, func(ctx *replay.Context) (string, error) {
		_, err := act.Call(ctx, "x")
		return "", err
	}), funcCodec{
		encode: func([]byte) ([]byte, string, error) { return nil, "", nil },
		decode: func([]byte, string) ([]byte, error) { panic("nothing is to be decoded") },
	})
	eachPlain := &instance{registry: registry, cold: true}
	mustTurn(t, eachPlain, started("script", nil))
	mustTurn(t, eachPlain, activityFailed(2, io.EOF))
	wantLast(t, eachPlain, `OrchestrationFailed code="tenuto.activity" error="activity \"act\": EOF"`)
	checkReplays(t, eachPlain)
}

func TestMismatch_HidesPayloadsWithCodec(t *testing.T) {
	secret := "x"
	registry := withEncryption(t, script(t, func(ctx *replay.Context) (string, error) { return act.Call(ctx, canary+secret) }))
	in := &instance{registry: registry, cold: true}
	mustTurn(t, in, started("script", nil))
	secret = "other"
	_, err := in.turn(begin, nil)
	var mismatch *replay.Mismatch
	if !errors.As(err, &mismatch) || mismatch.Kind != replay.ScheduledDifferently || strings.Contains(err.Error(), canary) ||
		mismatch.Expected != `ActivityScheduled name="act" input=(9 bytes)` || mismatch.Found != `ActivityScheduled name="act" input=(13 bytes)` {
		t.Errorf("%v", err)
	}
	failing := withEncryption(t, script(t, func(*replay.Context) (string, error) { return "", errors.New(canary + secret) }))
	in = &instance{registry: failing, cold: true}
	mustTurn(t, in, started("script", nil))
	secret = "x"
	if _, err := in.turn(begin, nil); !errors.As(err, &mismatch) || strings.Contains(err.Error(), canary) {
		t.Errorf("%v", err)
	}
}

// Outside the body of an activity its error is encoded; code and retry flag remain readable.
func TestCodec_EncodesActivityErrors(t *testing.T) {
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
			registry := withEncryption(t, registryOf(t, act.Bind(func(context.Context, string) (string, error) { return "", c.fail() })))
			var failure error
			registry.RunActivity(t.Context(), &engine.Attempt{Attempt: replay.Attempt{Name: "act"}}, func(_ *journalpb.Payload, err error) { failure = err })
			record := engine.EncodeError(engine.DecodeError(engine.EncodeError(failure)))
			encoded, err := proto.Marshal(record)
			if err != nil || bytes.Contains(encoded, []byte(canary)) || strings.Contains(fmt.Sprintf("%v %+v", failure, engine.DecodeError(record)), canary) {
				t.Errorf("%v: plaintext in %v", err, record)
			}
			if _, again := engine.RetryAfter(nil, 1, engine.DecodeError(record), 0); again != c.again || record.Code != c.code {
				t.Errorf("retry %t, %v", again, record)
			}
			opened := registry.PayloadConverter().DecodeError(record)
			if opened == nil || name != "a nil that panics" && !strings.Contains(opened.Error()+fmt.Sprint(opened), canary) && !errors.As(opened, new(*limitError)) {
				t.Errorf("decoded error: %v", opened)
			}
			var codec *replay.CodecError
			if err := withEncryption(t, registry).PayloadConverter().DecodeError(record); !errors.As(err, &codec) || c.code != "" && !errors.Is(err, &replay.Error{Code: c.code}) {
				t.Errorf("decoded with another key: %v", err)
			}
			// The next attempt can read it.
			next := registryOf(t, act.Bind(func(ctx context.Context, _ string) (string, error) {
				if last := replay.ActivityInfo(ctx).LastError; last == nil || last.Error() != opened.Error() {
					t.Errorf("LastError is %v", last)
				}
				return "", replay.ErrResultPending
			}))
			next.WithPayloadConverter(registry.PayloadConverter()).RunActivity(t.Context(), &engine.Attempt{Attempt: replay.Attempt{Name: "act", LastError: engine.DecodeError(record)}}, func(_ *journalpb.Payload, err error) {
				if !errors.Is(err, replay.ErrResultPending) {
					t.Errorf("ErrResultPending was changed to %v", err)
				}
			})
		})
	}
}

type heartbeatFunc func(*journalpb.Payload)

func (f heartbeatFunc) RecordHeartbeat(details *journalpb.Payload) { f(details) }

func TestCodec_EncodesHeartbeatDetails(t *testing.T) {
	var heartbeats []*journalpb.Payload
	registry := withEncryption(t, registryOf(t, act.Bind(func(ctx context.Context, _ string) (string, error) {
		details, ok := replay.HeartbeatDetails[string](ctx)
		for _, next := range []string{canary + details, canary + details, canary} {
			if err := replay.Heartbeat(ctx, next); err != nil {
				t.Error(err)
			}
		}
		return fmt.Sprint(details, ok), nil
	})))
	attempt := func(details *journalpb.Payload) (output string) {
		heartbeats = nil
		registry.RunActivity(t.Context(), &engine.Attempt{Attempt: replay.Attempt{Name: "act"}, Details: details, Worker: heartbeatFunc(func(p *journalpb.Payload) { heartbeats = append(heartbeats, p) })},
			func(payload *journalpb.Payload, err error) {
				if err != nil || registry.PayloadConverter().Decode(replay.PayloadInfo{}, payload, &output) != nil {
					t.Error(err)
				}
			})
		return output
	}
	if output := attempt(nil); output != "false" {
		t.Errorf("first attempt has details %q", output)
	}
	if output := attempt(heartbeats[2]); output != canary+"true" {
		t.Errorf("second attempt has details %q", output)
	}
	if !proto.Equal(heartbeats[0], heartbeats[1]) || proto.Equal(heartbeats[1], heartbeats[2]) {
		t.Error("unchanged details were encoded again, or changed ones were not")
	}
	for _, payload := range heartbeats {
		if bytes.Contains(payload.Data, []byte(canary)) {
			t.Errorf("plaintext: %s", payload)
		}
	}
}

// An attempt that fails in the codec may be retried, here or on a node with the key.
func TestCodec_FailedAttemptIsRetried(t *testing.T) {
	ok := func(context.Context, string) (string, error) { return "x", nil }
	fails := func(context.Context, string) (string, error) { return "", errors.New(canary) }
	broken := funcCodec{encode: func([]byte) ([]byte, string, error) { return nil, "", io.ErrUnexpectedEOF }}
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
		registry.RunActivity(t.Context(), &engine.Attempt{Attempt: replay.Attempt{Name: "act"}, Input: c.input}, func(_ *journalpb.Payload, err error) {
			var codec *replay.CodecError
			if !errors.As(roundTrip(t, err), &codec) || codec.Verb != c.verb || strings.Contains(err.Error(), canary) {
				t.Errorf("%s: %v", name, err)
			}
			if _, again := engine.RetryAfter(nil, 1, err, 0); !again {
				t.Errorf("%s: not retried", name)
			}
		})
	}
}

func TestCodec_EncodesQueries(t *testing.T) {
	ask := replay.Query[string, string]("ask")
	registry := withEncryption(t, script(t, func(ctx *replay.Context) (string, error) {
		err := ask.Handle(ctx, func(text string) (string, error) {
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
	payloads := registry.PayloadConverter()
	x := engine.NewExecution("i", 1, registry, nil)
	defer x.Evict()
	if _, err := x.Turn(begin, messagesOf(started("script", nil))); err != nil {
		t.Fatal(err)
	}
	info := replay.PayloadInfo{Kind: "query", Name: "ask", Part: "input"}
	for _, text := range []string{"a ", ""} {
		input, err := payloads.Encode(info, text)
		if err != nil {
			t.Fatal(err)
		}
		output, err := x.Query("ask", input)
		if text == "" {
			if err == nil || strings.Contains(err.Error(), canary) || payloads.DecodeError(engine.EncodeError(err)).Error() != canary {
				t.Errorf("query returned %v", err)
			}
			continue
		}
		var answer string
		if decodeErr := payloads.Decode(info, output, &answer); err != nil || decodeErr != nil || answer != "a "+canary || bytes.Contains(output.Data, []byte(canary)) {
			t.Errorf("%q, %v, %v", answer, err, decodeErr)
		}
	}
	var none *replay.NotRegisteredError
	if _, err := x.Query("other", nil); !errors.As(err, &none) || none.Kind != "query" || none.Name != "other" {
		t.Errorf("%v", err)
	}
	var codec *replay.CodecError
	if _, err := x.Query("ask", &journalpb.Payload{Data: []byte("x"), ContentType: "other"}); !errors.As(err, &codec) {
		t.Errorf("%v", err)
	}
}

func TestCodec_EncodesErrorOnce(t *testing.T) {
	payloads := withEncryption(t, registryOf(t)).PayloadConverter()
	inner, err := payloads.EncodeError(fmt.Errorf("%s: %w", canary, errOutOfStock))
	if err != nil {
		t.Fatal(err)
	}
	timeout := &replay.TimeoutError{Kind: replay.TimeoutScheduleToClose, Err: engine.DecodeError(inner)}
	outer, err := payloads.EncodeError(errors.Join(io.EOF, timeout))
	if err != nil {
		t.Fatal(err)
	}
	got := payloads.DecodeError(outer)
	if !errors.Is(got, errOutOfStock) || !errors.Is(got, replay.ErrTimeout) || errors.As(got, new(*replay.CodecError)) {
		t.Errorf("%v", got)
	}
	if again, err := payloads.EncodeError(engine.DecodeError(outer)); err != nil || !proto.Equal(again, outer) {
		t.Errorf("%v, %v", again, err)
	}
	if record, err := payloads.EncodeError(nil); record != nil || err != nil || payloads.DecodeError(nil) != nil {
		t.Errorf("nil error was encoded as %v, %v", record, err)
	}
}

func BenchmarkColdReplay_WithCodec(b *testing.B) {
	for name, registry := range map[string]*engine.Registry{"none": programRegistry(b), "aes-gcm": withEncryption(b, programRegistry(b))} {
		b.Run(name, func(b *testing.B) {
			in := &instance{registry: registry}
			defer in.evict()
			if _, err := in.turn(begin, messagesOf(started("parallel", "x"), activityCompleted(3, "b"), activityCompleted(2, "a"))); err != nil {
				b.Fatal(err)
			}
			var history []*journalpb.Event
			for event := range in.sealedHistory(in.history) {
				history = append(history, event)
			}
			b.ReportAllocs()
			for b.Loop() {
				x := engine.NewExecution("i", 1, registry, nil)
				if err := x.Replay(eventSeq(history)); err != nil {
					b.Fatal(err)
				}
				x.Evict()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(history)), "ns/event")
		})
	}
}
