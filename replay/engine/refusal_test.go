package engine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// checkedMessage returns an event whose data is checked.
func checkedMessage(name string, data any, requestID string) engine.Message {
	return engine.Message{Event: external(name, data, requestID), CheckData: true}
}

// deliverChecked delivers one such event and returns the outcome.
func deliverChecked(t *testing.T, in *instance, m engine.Message) (engine.Disposition, error) {
	t.Helper()
	turn, err := in.turn(begin, []engine.Message{m})
	if err != nil {
		t.Fatal(err)
	}
	if recorded := turn.Dispositions[0] == engine.Recorded; !recorded && len(turn.Events) > 0 {
		t.Errorf("%v recorded %v", turn.Dispositions[0], turn.Events)
	}
	if in.resident == nil {
		return turn.Dispositions[0], nil // the execution is evicted
	}
	return turn.Dispositions[0], in.resident.Refusal(0)
}

// waitForTick waits for one tick, then for the event go, and then for another tick.
func waitForTick(ctx *replay.Context) (int, error) {
	first, err := tick.Wait(ctx)
	if err == nil {
		_, err = goOn.Wait(ctx)
	}
	if err != nil {
		return 0, err
	}
	second, err := tick.Wait(ctx)
	return first + second, err
}

func TestRefusal_BySubscribedType(t *testing.T) {
	forEachMode(t, script(t, waitForTick), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		deliver := func(m engine.Message, want engine.Disposition) {
			t.Helper()
			got, reason := deliverChecked(t, in, m)
			if got != want || in.resident != nil && (reason != nil) != (want == engine.Refused) {
				t.Errorf("%s: %v, %v; want %v", engine.Describe(m.Event), got, reason, want)
			}
		}
		deliver(checkedMessage("tick", "x", "r1"), engine.Refused)
		deliver(checkedMessage("tick", 1.5, ""), engine.Refused)
		deliver(checkedMessage("unknown", "x", ""), engine.Recorded)
		deliver(checkedMessage("tick", 1, "r1"), engine.Recorded) // no trace of the refused one
		deliver(checkedMessage("tick", "x", ""), engine.Refused)  // nothing waits for it now
		deliver(engine.Message{Event: external("tick", 2, "")}, engine.Recorded)
		deliver(checkedMessage("go", map[string]any{"any": "type"}, ""), engine.Recorded)
		if output := in.history[len(in.history)-1].GetOrchestrationCompleted().GetOutput().GetData(); string(output) != "3" {
			t.Errorf("the output is %s: %v", output, in.history)
		}
	})
}

func TestRefusal_NamesEventTypeAndData(t *testing.T) {
	x, _ := startScript(t, script(t, waitForTick))
	defer x.Evict()
	if _, err := x.Turn(begin, []engine.Message{checkedMessage("tick", 1, ""), checkedMessage("tick", "one", "r1")}); err != nil {
		t.Fatal(err)
	}
	if x.Refusal(0) != nil {
		t.Errorf("the first: %v", x.Refusal(0))
	}
	const text = `decode data of event "tick" as int: sent "one": json: cannot unmarshal string into Go value of type int`
	want := replay.PayloadError{
		Verb: "decode", PayloadInfo: replay.PayloadInfo{Kind: "event", Name: "tick", Part: "data"}, Type: "int", RequestID: "r1", Sent: `"one"`,
	}
	err := x.Refusal(1)
	for range 2 { // the second time as read from the journal
		var refused *replay.PayloadError
		if !errors.As(err, &refused) || err.Error() != text {
			t.Fatalf("%#v, %v", err, err)
		}
		got := replay.PayloadError{Verb: refused.Verb, PayloadInfo: refused.PayloadInfo, Type: refused.Type, RequestID: refused.RequestID, Sent: refused.Sent}
		if got != want {
			t.Errorf("%+v; want %+v", got, want)
		}
		err = engine.DecodeError(proto.CloneOf(engine.EncodeError(err)))
	}
	if _, err := x.Turn(begin, nil); err != nil || x.Refusal(1) != nil {
		t.Errorf("after the next turn: %v, %v", err, x.Refusal(1))
	}
}

// An event is refused only if it fits none of the types with which the code has subscribed.
func TestRefusal_TwoSubscribedTypesOfOneName(t *testing.T) {
	const all = "string or int"
	checkTicks(t, registryOf(t, program("script", waitForTextAndTick)), [][2]string{
		{"{}", all}, {`"x"`, ""}, {"1.5", all}, {"[true]", all}, {"1", ""},
	})
}

// Of a declared name, only the declared types count: the same for code that runs and for code that
// is not in memory.
func TestRefusal_DeclarationAloneDecides(t *testing.T) {
	registry := registryOf(t, program("script", waitForTextAndTick,
		replay.Receives(replay.Event[[]bool]("tick"), tick), replay.Receives(replay.Event[[]bool]("tick"))))
	const all = "[]bool or int"
	want := [][2]string{{"{}", all}, {`"x"`, all}, {"1.5", all}, {"[true]", ""}, {"1", ""}}
	checkTicks(t, registry, want)
	for _, c := range want {
		err := registry.CheckEvent("script", "", external("tick", json.RawMessage(c[0]), "").GetExternalEvent())
		if refused, ok := err.(*replay.PayloadError); ok != (c[1] != "") || ok && refused.Type != c[1] {
			t.Errorf("%s: %v; want a refusal as %q", c[0], err, c[1])
		}
	}
}

// waitForTextAndTick subscribes to tick with two types.
func waitForTextAndTick(ctx *replay.Context, _ string) (string, error) {
	replay.Event[string]("tick").Subscribe(ctx)
	replay.Event[string]("tick").Subscribe(ctx)
	_, err := tick.Wait(ctx)
	return "", err
}

// checkTicks delivers ticks to running code: the data, and as which types it is refused; "" if it
// is recorded.
func checkTicks(t *testing.T, registry *engine.Registry, ticks [][2]string) {
	t.Helper()
	x, _ := startScript(t, registry)
	defer x.Evict()
	var messages []engine.Message
	var want []string
	for _, c := range ticks {
		messages, want = append(messages, checkedMessage("tick", json.RawMessage(c[0]), "")), append(want, c[1])
	}
	turn, err := x.Turn(begin, messages)
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range messages {
		got := ""
		if refused, ok := x.Refusal(i).(*replay.PayloadError); ok {
			got = refused.Type
		}
		if got != want[i] || (turn.Dispositions[i] == engine.Refused) != (want[i] != "") {
			t.Errorf("%s: %v, refused as %q; want %q", engine.Describe(m.Event), turn.Dispositions[i], got, want[i])
		}
	}
}

func TestRefusal_AfterDuplicateCheck(t *testing.T) {
	in := &instance{registry: script(t, func(ctx *replay.Context) (any, error) {
		if _, err := goOn.Wait(ctx); err != nil {
			return nil, err
		}
		return tick.Wait(ctx)
	})}
	defer in.evict()
	mustTurn(t, in, started("script", nil))
	for _, step := range []struct {
		message engine.Message
		want    engine.Disposition
	}{
		{checkedMessage("tick", "x", "r1"), engine.Recorded}, // the type is not known yet
		{checkedMessage("go", nil, ""), engine.Recorded},     // the wait fails: the instance ends
	} {
		if got, _ := deliverChecked(t, in, step.message); got != step.want {
			t.Fatalf("%v; want %v", got, step.want)
		}
	}
	if !in.ended {
		t.Fatalf("not ended: %v", in.history)
	}
	again := &instance{registry: script(t, waitForTick)}
	defer again.evict()
	mustTurn(t, again, started("script", nil))
	mustTurn(t, again, external("tick", "x", "r1")) // without the check, as by an older leader
	again.resident.SetAppliedIndex(100)
	mustTurn(t, again)
	for name, c := range map[string]struct {
		message engine.Message
		want    engine.Disposition
	}{
		"recorded before": {checkedMessage("tick", "x", "r1"), engine.Dropped},
		"new":             {checkedMessage("tick", "x", "r2"), engine.Ended},
		"other name":      {checkedMessage("go", "x", "r1"), engine.RequestIDReused},
	} {
		if got, _ := deliverChecked(t, again, c.message); got != c.want {
			t.Errorf("%s: %v; want %v", name, got, c.want)
		}
	}
}

// A repetition that may have been recorded long ago is not refused: the leader must search first.
func TestRefusal_AfterForgotten(t *testing.T) {
	x := engine.NewExecution("i", 1, script(t, waitForTick), nil)
	defer x.Evict()
	x.SetAppliedIndex(100)
	if _, err := x.Turn(begin, messagesOf(started("script", nil))); err != nil {
		t.Fatal(err)
	}
	m := checkedMessage("tick", "x", "r1")
	m.Retried, m.FirstIndex = true, 50
	turn, err := x.Turn(begin, []engine.Message{m})
	if err != nil || turn.Dispositions[0] != engine.Forgotten || x.Refusal(0) != nil {
		t.Errorf("%v, %v, %v", turn.Dispositions, err, x.Refusal(0))
	}
	m.FirstIndex = 100
	if turn, err = x.Turn(begin, []engine.Message{m}); err != nil || turn.Dispositions[0] != engine.Refused {
		t.Errorf("since the horizon: %v, %v", turn.Dispositions, err)
	}
}

// The event of a start, which has its request ID, is recorded with it: SendOrStart is atomic. No
// request ID names no start.
func TestRefusal_NotOfEventWithStart(t *testing.T) {
	for requestID, want := range map[string]engine.Disposition{"": engine.Refused, "r1": engine.Recorded} {
		x := engine.NewExecution("i", 1, script(t, waitForTick), nil)
		defer x.Evict()
		start := started("script", nil)
		start.GetOrchestrationStarted().RequestId = requestID
		turn, err := x.Turn(begin, []engine.Message{{Event: start}, checkedMessage("tick", "x", requestID), checkedMessage("tick", "x", "r2")})
		if err != nil || turn.Dispositions[1] != want {
			t.Errorf("%q: %v, %v", requestID, turn.Dispositions, err)
		}
	}
}

// nullRefusing is data that null does not fit.
type nullRefusing struct{ text string }

func (d *nullRefusing) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return errors.New("a value is required")
	}
	d.text = string(data)
	return nil
}

// As for encoding/json, null fits every type that does not decode itself, for the check and for the
// wait.
func TestRefusal_NullFits(t *testing.T) {
	type data struct{ N int }
	for name, event := range map[string]replay.AnyEvent{
		"struct": replay.Event[data]("tick"), "number": replay.Event[float64]("tick"), "int": tick, "string": replay.Event[string]("tick"),
		"bool": replay.Event[bool]("tick"), "pointer": replay.Event[*data]("tick"), "slice": replay.Event[[]int]("tick"),
		"map": replay.Event[map[string]int]("tick"), "pointer to own": replay.Event[*nullRefusing]("tick"), "own": replay.Event[nullRefusing]("tick"),
	} {
		registry := registryOf(t, program("script", nil2, replay.Receives(event)))
		err := registry.CheckEvent("script", "", external("tick", json.RawMessage("null"), "").GetExternalEvent())
		if refused := err != nil; refused != (name == "own") {
			t.Errorf("%s: %v", name, err)
		}
	}
	in := &instance{registry: script(t, waitForTick)}
	defer in.evict()
	mustTurn(t, in, started("script", nil), external("tick", json.RawMessage("null"), ""), external("go", nil, ""), external("tick", 2, ""))
	if output := in.history[len(in.history)-1].GetOrchestrationCompleted().GetOutput().GetData(); string(output) != "2" {
		t.Errorf("the output is %s: %v", output, in.history)
	}
}

// hostileData cannot be decoded.
type hostileData struct{ text string }

func (d *hostileData) UnmarshalJSON(data []byte) error {
	switch string(data) {
	case `"panic"`:
		panic("broken")
	case `"goexit"`:
		runtime.Goexit()
	case `"error"`:
		return fmt.Errorf("wrapped: %w", replay.ErrCanceled)
	}
	d.text = string(data)
	return nil
}

func TestRefusal_IsolatesDecoding(t *testing.T) {
	hostile := replay.Event[hostileData]("hostile")
	registry := registryOf(t, program("script", nil2, replay.Receives(hostile)))
	for data, want := range map[string]string{
		"panic": "panic: broken", "goexit": "runtime.Goexit", "error": "wrapped: canceled", "fine": "",
	} {
		err := registry.CheckEvent("script", "", external("hostile", data, "").GetExternalEvent())
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v", data, err)
		case errors.Is(err, replay.ErrCanceled):
			t.Errorf("%s: an error of the author shows through: %v", data, err)
		}
	}
}

// A nilError panics if it is a nil pointer, in every method.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }
func (e *nilError) Unwrap() error { return errors.New(e.text) }
func (e *nilError) As(any) bool   { return e.text != "" }

// nilErrorData is data that does not decode, with a nilError.
type nilErrorData struct{}

func (*nilErrorData) UnmarshalJSON(data []byte) error {
	var e *nilError
	if string(data) == `"panic"` {
		panic(e)
	}
	return e
}

// A selfError panics with itself.
type selfError struct{}

func (e selfError) Error() string { panic(e) }

// selfErrorData is data whose decoding panics with a selfError.
type selfErrorData struct{}

func (*selfErrorData) UnmarshalJSON([]byte) error { panic(selfError{}) }

// Methods of the author's error may panic, which also counts as data that does not decode.
func TestRefusal_IsolatesErrorOfAuthor(t *testing.T) {
	handleUpdate := func(ctx *replay.Context, _ string) (string, error) {
		if err := replay.Update[nilErrorData, int]("up").Handle(ctx, nil, func(*replay.Context, nilErrorData) (int, error) { return 0, nil }); err != nil {
			return "", err
		}
		_, err := replay.Event[nilErrorData]("data").Wait(ctx)
		return "", err
	}
	plain := registryOf(t, program("script", handleUpdate, replay.Receives(replay.Event[nilErrorData]("declared"), replay.Event[selfErrorData]("self"))))
	for _, codec := range []replay.Codec{nil, funcCodec{}} {
		registry := plain.WithPayloadConverter(engine.PayloadConverter{Codec: codec})
		in := &instance{registry: registry}
		mustTurn(t, in, started("script", ""))
		for _, data := range []string{"panic", "error"} {
			reasons := map[string]error{
				"declared": registry.CheckEvent("script", "", external("declared", data, "").GetExternalEvent()),
				"self":     registry.CheckEvent("script", "", external("self", data, "").GetExternalEvent()),
			}
			_, reasons["subscribed"] = deliverChecked(t, in, checkedMessage("data", data, ""))
			if codec == nil { // with one, the codec encodes the whole error
				_, reasons["update"] = in.resident.Query(engine.UpdatePrefix+"up", payloadOf(data))
			}
			for name, reason := range reasons {
				var refused *replay.PayloadError
				if !errors.As(reason, &refused) || refused.Err == nil || refused.Error() == "" {
					t.Errorf("%s, %s: %#v", name, data, reason)
				}
			}
		}
		in.evict()
	}
}

// nil2 is a body that ends at once.
func nil2(*replay.Context, string) (string, error) { return "", nil }

func TestRefusal_BoundsText(t *testing.T) {
	registry := registryOf(t, program("script", nil2, replay.Receives(tick)))
	for _, text := range []string{strings.Repeat("é", 100), strings.Repeat("é", 5000), "a" + strings.Repeat("é", 5000)} {
		event := &journalpb.ExternalEvent{Name: "tick", Data: &journalpb.Payload{Data: []byte(`"` + text + `"`)}}
		var refused *replay.PayloadError
		if err := registry.CheckEvent("script", "", event); !errors.As(err, &refused) {
			t.Fatal(err)
		}
		if len(refused.Sent) > 200 || len(refused.Sent) < 190 || !utf8.ValidString(refused.Sent) || !strings.HasSuffix(refused.Sent, "…") {
			t.Errorf("%d bytes: %q", len(refused.Sent), refused.Sent)
		}
	}
	invalid := &journalpb.ExternalEvent{Name: "tick", Data: &journalpb.Payload{Data: []byte("\"\xff\xff\"")}}
	if refused, ok := registry.CheckEvent("script", "", invalid).(*replay.PayloadError); !ok || !utf8.ValidString(refused.Sent) {
		t.Errorf("invalid UTF-8: %v", refused)
	}
	whole := strings.Repeat("x", 195) // 197 bytes with the quotes
	err := registry.CheckEvent("script", "", external("tick", whole, "").GetExternalEvent())
	if refused, ok := err.(*replay.PayloadError); !ok || refused.Sent != `"`+whole+`"` {
		t.Errorf("%v", err)
	}
}

// With a codec, the error has nothing of the data.
func TestRefusal_WithCodecHidesData(t *testing.T) {
	plain := registryOf(t, program("script", nil2, replay.Receives(tick, replay.Event[hostileData]("hostile"))))
	registry := plain.WithPayloadConverter(engine.PayloadConverter{Codec: funcCodec{}})
	for _, event := range []*journalpb.ExternalEvent{
		{Name: "tick", Data: &journalpb.Payload{Data: []byte("47.11"), ContentType: "test/same"}},
		{Name: "tick", Data: &journalpb.Payload{Data: []byte(`"4711"`)}},
		{Name: "hostile", Data: &journalpb.Payload{Data: []byte(`"error"`), ContentType: "test/same"}},
		{Name: "hostile", Data: &journalpb.Payload{Data: []byte(`"panic"`)}},
	} {
		var refused *replay.PayloadError
		err := registry.CheckEvent("script", "", event)
		if !errors.As(err, &refused) || refused.Sent != "" || refused.Type == "" {
			t.Fatalf("%#v", err)
		}
		record := engine.EncodeError(err)
		for _, part := range []string{"11", "wrapped", "broken"} {
			if strings.Contains(record.String(), part) {
				t.Errorf("the error shows %q: %v", part, record)
			}
		}
		if again := engine.DecodeError(record); again.Error() != err.Error() {
			t.Errorf("%q becomes %q", err, again)
		}
	}
	sealed := &journalpb.ExternalEvent{Name: "tick", Data: &journalpb.Payload{Data: []byte(`"x"`), ContentType: "other"}}
	if err := plain.CheckEvent("script", "", sealed); err != nil {
		t.Errorf("data that only a codec can read: %v", err)
	}
}

// What is remembered of the code is bounded; what is not known is not refused.
func TestRefusal_BoundsKnownTypes(t *testing.T) {
	const names = 1001
	x, _ := startScript(t, script(t, func(ctx *replay.Context) (any, error) {
		for i := range names {
			replay.Event[int](fmt.Sprint("name ", i)).Subscribe(ctx)
		}
		replay.Event[int8]("name 1").Subscribe(ctx)
		replay.Event[int16]("name 1").Subscribe(ctx)
		replay.Event[int32]("name 1").Subscribe(ctx)
		replay.Event[int64]("name 1").Subscribe(ctx)
		replay.Event[uint8]("name 1").Subscribe(ctx)
		replay.Event[uint16]("name 1").Subscribe(ctx)
		replay.Event[uint32]("name 1").Subscribe(ctx)
		replay.Event[uint64]("name 1").Subscribe(ctx) // the ninth type
		replay.Event[int]("name 1").Subscribe(ctx)
		return goOn.Wait(ctx)
	}))
	defer x.Evict()
	for name, want := range map[string]engine.Disposition{"name 0": engine.Refused, "name 1": engine.Recorded, "name 999": engine.Refused, "name 1000": engine.Recorded} {
		turn, err := x.Turn(begin, []engine.Message{checkedMessage(name, "x", "")})
		if err != nil || turn.Dispositions[0] != want {
			t.Errorf("%s: %v, %v; want %v", name, turn.Dispositions, err, want)
		}
	}
}

func TestReceives_KnownFromStart(t *testing.T) {
	body := func(ctx *replay.Context, _ string) (string, error) {
		_, err := goOn.Wait(ctx)
		return "", err
	}
	registry := registryOf(t,
		program("script", body, replay.Version("1")),
		program("script", body, replay.Version("2"), replay.Receives(tick, answer), replay.Receives(goOn), replay.Receives(tick)),
		program("other", body))
	if plain := registryOf(t, program("other", body)); plain.DeclaresEvents() || !registry.DeclaresEvents() {
		t.Error("DeclaresEvents is wrong")
	}
	if registry.DeclaresEvent("script", "1", "tick") || !registry.DeclaresEvent("script", "2", "tick") ||
		registry.DeclaresEvent("script", "2", "unknown") || registry.DeclaresEvent("script", "3", "tick") {
		t.Error("DeclaresEvent is wrong")
	}
	check := func(name, version, event string, data any) bool {
		return registry.CheckEvent(name, version, external(event, data, "").GetExternalEvent()) != nil
	}
	for _, c := range []struct {
		name, version, event string
		data                 any
		refused              bool
	}{
		{"script", "2", "tick", "x", true}, {"script", "2", "tick", 1, false}, {"script", "2", "answer", 1, true},
		{"script", "2", "go", 1, false}, {"script", "2", "unknown", 1, false},
		{"script", "1", "tick", "x", false}, {"script", "3", "tick", "x", false}, {"other", "", "tick", "x", false},
		{"script", engine.NewestVersion, "tick", "x", true},
	} {
		if got := check(c.name, c.version, c.event, c.data); got != c.refused {
			t.Errorf("%+v: refused is %t", c, got)
		}
	}
	start := started("script", "")
	start.GetOrchestrationStarted().Version = "2"
	in := &instance{registry: registry}
	defer in.evict()
	mustTurn(t, in, start)
	if got, reason := deliverChecked(t, in, checkedMessage("tick", "x", "")); got != engine.Refused || reason == nil {
		t.Errorf("%v, %v", got, reason)
	}
}

func TestReceives_InvalidBindings(t *testing.T) {
	long := strings.Repeat("e", 129)
	for want, options := range map[string][]replay.Option{
		`has 0 bytes: 1 to 128 are allowed`:   {replay.Receives(nil)},
		`name of event "" has 0 bytes`:        {replay.Receives(replay.EventHandle[int]{})},
		`has 129 bytes: 1 to 128 are allowed`: {replay.Receives(replay.Event[int](long))},
		`is not UTF-8`:                        {replay.Receives(replay.Event[int]("\xff"))},
		`reserved for updates`:                {replay.Receives(replay.Event[int](engine.UpdatePrefix + "x"))},
	} {
		_, err := engine.NewRegistry(program("script", nil2, options...))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"script"`) {
			t.Errorf("%v; want %s", err, want)
		}
	}
	if _, err := engine.NewRegistry(program("script", nil2, replay.Receives())); err != nil {
		t.Errorf("without handles: %v", err)
	}
}

// An update that is rejected by its type names what was sent.
func TestRefusal_OfUpdate(t *testing.T) {
	in := &instance{registry: script(t, handleTransfers)}
	defer in.evict()
	mustTurn(t, in, started("script", nil))
	_, err := in.resident.Query(engine.UpdatePrefix+"transfer", payloadOf([]string{"ten"}))
	var refused *replay.PayloadError
	if !errors.As(engine.DecodeError(engine.EncodeError(err)), &refused) {
		t.Fatalf("%#v", err)
	}
	want := replay.PayloadError{Verb: "decode", PayloadInfo: replay.PayloadInfo{Kind: "update", Name: "transfer", Part: "input"}, Type: "int", Sent: `["ten"]`}
	got := replay.PayloadError{Verb: refused.Verb, PayloadInfo: refused.PayloadInfo, Type: refused.Type, Sent: refused.Sent}
	if diff := cmp.Diff(want, got, cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" {
		t.Error(diff)
	}
	const text = `decode input of update "transfer" as int: sent ["ten"]: json: cannot unmarshal array into Go value of type int`
	if refused.Error() != text {
		t.Errorf("%s; want %s", refused, text)
	}
}

// The check of a value of a simple type allocates nothing.
func TestRefusal_ScalarAllocatesNothing(t *testing.T) {
	registry := registryOf(t, program("script", nil2, replay.Receives(tick, answer)))
	for name, data := range map[string]any{"tick": 17, "answer": "yes"} {
		event := external(name, data, "").GetExternalEvent()
		allocs := testing.AllocsPerRun(100, func() {
			if err := registry.CheckEvent("script", "", event); err != nil {
				t.Fatal(err)
			}
		})
		if allocs > 0 {
			t.Errorf("%s: %v allocations", name, allocs)
		}
	}
}
