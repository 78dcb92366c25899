package engine_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// roundTrip returns the error as read from a journal.
func roundTrip(t *testing.T, err error) error {
	t.Helper()
	encoded, failed := proto.Marshal(engine.EncodeError(err))
	if failed != nil {
		t.Fatal(failed)
	}
	record := new(journalpb.Error)
	if err := proto.Unmarshal(encoded, record); err != nil {
		t.Fatal(err)
	}
	return engine.DecodeError(record)
}

func TestEncodeError_Nil(t *testing.T) {
	if engine.EncodeError(nil) != nil || engine.DecodeError(nil) != nil {
		t.Error("nil was decoded as an error")
	}
	if replay.NonRetryable(nil) != nil || replay.WithCode("x", nil) != nil {
		t.Error("NonRetryable or WithCode of nil is not nil")
	}
}

func TestSentinelError_SurvivesJournal(t *testing.T) {
	sentinels := []error{replay.ErrCanceled, replay.ErrTimeout, replay.ErrInstanceExists, replay.ErrTerminated}
	wraps := map[string]func(error) error{
		"bare":         func(err error) error { return err },
		"wrapped":      func(err error) error { return fmt.Errorf("a: %w", fmt.Errorf("b: %w", err)) },
		"joined":       func(err error) error { return errors.Join(err, io.EOF) },
		"coded":        func(err error) error { return replay.WithCode("mine", err) },
		"marked":       func(err error) error { return replay.NonRetryable(err) },
		"coded twice":  func(err error) error { return replay.WithCode("a", replay.WithCode("b", err)) },
		"of activity":  func(err error) error { return &replay.ActivityError{Name: "act", Err: err} },
		"of child":     func(err error) error { return &replay.ChildError{Name: "child", Err: err} },
		"crossed once": func(err error) error { return roundTrip(t, err) },
	}
	for name, wrap := range wraps {
		for _, sentinel := range sentinels {
			before := wrap(sentinel)
			after := roundTrip(t, before)
			for _, other := range sentinels {
				if errors.Is(before, other) != (other == sentinel) || errors.Is(after, other) != (other == sentinel) {
					t.Errorf("%s: errors.Is(%v, %v) is %t, after decoding %t", name, sentinel, other, errors.Is(before, other), errors.Is(after, other))
				}
			}
			if after.Error() != before.Error() {
				t.Errorf("%s: text %q was decoded as %q", name, before, after)
			}
		}
	}
}

func TestErrorCode_SurvivesJournal(t *testing.T) {
	err := fmt.Errorf("pay: %w", replay.WithCode("card.rejected", fmt.Errorf("bank: %w", replay.WithCode("bank.closed", io.EOF))))
	after := roundTrip(t, err)
	if after.Error() != "pay: bank: EOF" {
		t.Errorf("message %q", after)
	}
	for code, want := range map[string]bool{"card.rejected": true, "bank.closed": true, "other": false, "": false} {
		if got := errors.Is(after, &replay.Error{Code: code}); got != want {
			t.Errorf("code %q: %t", code, got)
		}
	}
	var e *replay.Error
	if !errors.As(after, &e) || e.Code != "" {
		t.Errorf("outermost is %#v", e)
	}
	var messages []string
	for err := after; err != nil; err = errors.Unwrap(err) {
		messages = append(messages, err.Error())
	}
	want := []string{"pay: bank: EOF", "bank: EOF", "EOF"}
	if diff := cmp.Diff(want, messages); diff != "" {
		t.Errorf("causes (-want +got):\n%s", diff)
	}
}

// Encoding a decoded error again, as for the error of a child, changes nothing.
func TestEncodeError_Idempotent(t *testing.T) {
	errs := []error{
		errors.New("plain"),
		replay.NonRetryable(replay.WithCode("c", fmt.Errorf("a: %w", io.EOF))),
		&replay.PanicError{Message: "panic: x", Stack: "stack"},
		&replay.CanceledError{Reason: "enough"},
		errors.Join(io.EOF, io.ErrNoProgress),
		replay.ErrTimeout,
	}
	for _, err := range errs {
		once := roundTrip(t, err)
		if diff := cmp.Diff(once, roundTrip(t, once), cmp.AllowUnexported(replay.Error{}, replay.CanceledError{})); diff != "" {
			t.Errorf("%v (-once +twice):\n%s", err, diff)
		}
	}
}

func TestCanceledError_KeepsReason(t *testing.T) {
	for reason, text := range map[string]string{"enough": "canceled: enough", "": "canceled"} {
		err := fmt.Errorf("work: %w", &replay.CanceledError{Reason: reason})
		for _, err := range []error{err, roundTrip(t, err)} {
			if !errors.Is(err, replay.ErrCanceled) || err.Error() != "work: "+text {
				t.Errorf("%v", err)
			}
		}
	}
}

// The text of a cancellation is the reason alone if it was recorded so, and in executions that
// began before protocol 3.
func TestCanceledError_KeepsTextBeforeProtocol3(t *testing.T) {
	record := engine.EncodeError(&replay.CanceledError{Reason: "enough"})
	record.Message = "enough"
	if err := roundTrip(t, engine.DecodeError(record)); err.Error() != "enough" || !errors.Is(err, replay.ErrCanceled) {
		t.Errorf("text %q, want the recorded one", err)
	}
	registry := script(t, func(ctx *replay.Context) (string, error) {
		_, err := goOn.Wait(ctx)
		return err.Error(), nil
	})
	for incarnation, text := range map[uint64]string{0: "enough", 7: "canceled: enough"} {
		forEachMode(t, registry, func(t *testing.T, in *instance) {
			start := started("script", nil)
			start.GetOrchestrationStarted().Incarnation = incarnation
			mustTurn(t, in, start)
			mustTurn(t, in, cancelRequested("enough", ""))
			var output string
			if err := engine.Decode(in.history[len(in.history)-1].GetOrchestrationCompleted().GetOutput(), &output); err != nil || output != text {
				t.Errorf("incarnation %d: %q, %v; want %q", incarnation, output, err, text)
			}
		})
	}
}

func TestPanicError_SurvivesJournal(t *testing.T) {
	want := &replay.PanicError{Message: "panic: boom", Stack: "goroutine 1"}
	for _, err := range []error{want, fmt.Errorf("w: %w", want), replay.WithCode("c", want), &replay.ActivityError{Name: "a", Err: want}} {
		var got *replay.PanicError
		if !errors.As(roundTrip(t, err), &got) || *got != *want {
			t.Errorf("%v: %#v", err, got)
		}
	}
}

// A record holds only UTF-8; errors may hold anything.
func TestEncodeError_InvalidUTF8(t *testing.T) {
	raw := "\xff\xfe output \x80"
	errs := []error{
		errors.New(raw), fmt.Errorf("w: %w", errors.New(raw)), replay.WithCode(raw, io.EOF), &replay.PanicError{Message: raw, Stack: raw},
		&replay.CanceledError{Reason: raw}, &replay.Error{Code: raw, Message: raw}, &replay.ActivityError{Name: "a", Err: errors.New(raw)},
	}
	for _, err := range errs {
		if after := roundTrip(t, err); !utf8.ValidString(after.Error()) || after.Error() == "" {
			t.Errorf("text %q was decoded as %q", err, after)
		}
	}
}

func TestOperationErrors_Text(t *testing.T) {
	errs := map[string]error{
		`activity "ship": broken`:                                    &replay.ActivityError{Name: "ship", Err: errors.New("broken")},
		`orchestration "pay" (order-17::1.4): broken`:                &replay.ChildError{Name: "pay", Instance: "order-17::1.4", Err: errors.New("broken")},
		`no code for activity "ship" on this node`:                   &replay.NotRegisteredError{Kind: "activity", Name: "ship"},
		`no code for orchestration "pay" on this node`:               &replay.NotRegisteredError{Kind: "orchestration", Name: "pay"},
		`no code for orchestration "pay", version "2", on this node`: &replay.NotRegisteredError{Kind: "orchestration", Name: "pay", Version: "2"},
		`the instance does not answer query "sum"`:                   &replay.NotRegisteredError{Kind: "query", Name: "sum"},
		`the instance does not handle update "add"`:                  &replay.NotRegisteredError{Kind: "update", Name: "add"},
		`tenuto: option Tag is too long`:                             &replay.InvalidError{Field: "option Tag", Reason: "is too long"},
	}
	for want, err := range errs {
		if err.Error() != want {
			t.Errorf("%q, want %q", err, want)
		}
	}
}

// Histories have recorded errors of missing query handlers by their code, others by their text
// only.
func TestNotRegisteredError_RecordUnchanged(t *testing.T) {
	query := &replay.NotRegisteredError{Kind: "query", Name: "sum"}
	record := engine.EncodeError(query)
	want := &journalpb.Error{Code: "tenuto.no_query", Message: query.Error(), Details: &journalpb.Payload{Data: []byte(`{"Name":"sum"}`)}}
	if !proto.Equal(record, want) {
		t.Errorf("record %v; want %v", record, want)
	}
	var decoded *replay.NotRegisteredError
	if err := engine.DecodeError(want); !errors.As(err, &decoded) || *decoded != *query || err.Error() != query.Error() {
		t.Errorf("%v was decoded as %v", want, err)
	}
	for _, kind := range []string{"orchestration", "activity", "update"} {
		err := &replay.NotRegisteredError{Kind: kind, Name: "sum", Version: "2"}
		if record := engine.EncodeError(err); !proto.Equal(record, &journalpb.Error{Message: err.Error()}) {
			t.Errorf("%s: record %v", kind, record)
		}
	}
}

// Orchestration code gets the decoded copy of the recorded error, with its operation.
func TestActivityError_SeenByCode(t *testing.T) {
	var seen error
	registry := script(t, func(ctx *replay.Context) (string, error) {
		_, seen = act.Call(ctx, "x")
		return "", nil
	})
	in := &instance{registry: registry, cold: true}
	mustTurn(t, in, started("script", nil))
	failed := activityFailed(2, replay.NonRetryable(replay.WithCode("full", fmt.Errorf("disk: %w", io.EOF))))
	failed.GetActivityFailed().Attempts = 4
	mustTurn(t, in, failed)
	var e *replay.ActivityError
	if !errors.As(seen, &e) || e.Name != "act" || e.EventID != 2 || e.Attempts != 4 {
		t.Fatalf("%#v", seen)
	}
	want := &replay.Error{Code: "full", Message: "disk: EOF", NonRetryable: true, Cause: &replay.Error{Message: "EOF"}}
	if diff := cmp.Diff(error(want), e.Err, cmp.AllowUnexported(replay.Error{}, replay.CanceledError{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if errors.Is(seen, io.EOF) || !strings.HasSuffix(seen.Error(), "disk: EOF") {
		t.Errorf("%v", seen)
	}
}

var (
	errOutOfStock = replay.NewError("shop.out_of_stock", "out of stock")
	errForeign    = errors.New("somebody else's")
)

type limitError struct {
	Limit int
	Unit  string
}

func (e *limitError) Error() string { return fmt.Sprintf("over %d %s", e.Limit, e.Unit) }

func init() {
	replay.RegisterError("test.foreign", errForeign)
	replay.RegisterErrorType[*limitError]("test.limit")
}

func TestRegisterError_SurvivesJournal(t *testing.T) {
	for _, sentinel := range []error{errOutOfStock, errForeign} {
		for _, err := range []error{
			sentinel,
			fmt.Errorf("wrapped: %w", sentinel),
			errors.Join(io.EOF, fmt.Errorf("second: %w", sentinel)),
			&replay.ActivityError{Name: "act", Err: fmt.Errorf("wrapped: %w", sentinel)},
		} {
			for _, after := range []error{roundTrip(t, err), roundTrip(t, roundTrip(t, err))} {
				if !errors.Is(after, sentinel) || errors.Is(after, replay.ErrTimeout) || after.Error() != err.Error() {
					t.Errorf("%v was decoded as %v", err, after)
				}
			}
		}
	}
}

func TestRegisterErrorType_SurvivesJournal(t *testing.T) {
	for _, err := range []error{
		&limitError{7, "apples"},
		fmt.Errorf("wrapped: %w", &limitError{7, "apples"}),
		errors.Join(io.EOF, &limitError{7, "apples"}),
	} {
		for _, after := range []error{roundTrip(t, err), roundTrip(t, roundTrip(t, err))} {
			var found *limitError
			if !errors.As(after, &found) || *found != (limitError{7, "apples"}) || after.Error() != err.Error() {
				t.Errorf("%v was decoded as %v, with %v", err, after, found)
			}
		}
	}
}

func TestSystemErrors_SurviveJournal(t *testing.T) {
	inner := &replay.ActivityError{Name: "pay", EventID: 4, Attempts: 3, Err: errOutOfStock}
	err := error(&replay.ChildError{Name: "order", Instance: "i::1.2", EventID: 2, Err: inner})
	after := roundTrip(t, roundTrip(t, err))
	var child *replay.ChildError
	var activity *replay.ActivityError
	if !errors.As(after, &child) || child.Instance != "i::1.2" || child.EventID != 2 || child.Name != "order" {
		t.Errorf("child %+v", child)
	}
	if !errors.As(after, &activity) || activity.Attempts != 3 || activity.EventID != 4 || activity.Name != "pay" {
		t.Errorf("activity %+v", activity)
	}
	if !errors.Is(after, errOutOfStock) || after.Error() != err.Error() {
		t.Errorf("%v was decoded as %v", err, after)
	}
}

func TestEncodeError_SizeBounded(t *testing.T) {
	deep := error(io.EOF)
	for range 1000 {
		deep = fmt.Errorf("x%w", deep)
	}
	var wide []error
	coded, long := io.EOF, errors.New(strings.Repeat("x", 20<<10))
	for n := range 1000 {
		wide = append(wide, fmt.Errorf("%d: %w", n, deep))
		coded = replay.WithCode(fmt.Sprint("code", n), coded)
	}
	for range 40 {
		long = fmt.Errorf("y%w", long)
	}
	for _, err := range []error{
		errors.New(strings.Repeat("é", 1<<20)),
		&replay.PanicError{Message: strings.Repeat("m", 1<<20), Stack: strings.Repeat("s", 1<<20)},
		deep,
		errors.Join(wide...),
		coded,
		long,
	} {
		record := engine.EncodeError(err)
		if size := proto.Size(record); size > 260<<10 {
			t.Errorf("%.20q: record has %d bytes", err, size)
		}
		if !utf8.ValidString(record.Message) {
			t.Errorf("%.20q: cut inside a character", err)
		}
	}
}

func TestRegisterError_TwicePanics(t *testing.T) {
	for name, register := range map[string]func(){
		"the sentinel":    func() { replay.RegisterError("test.other", errForeign) },
		"its code":        func() { replay.RegisterError("test.foreign", io.EOF) },
		"the type":        func() { replay.RegisterErrorType[*limitError]("test.other") },
		"the type's code": func() { replay.RegisterErrorType[*replay.InvalidError]("test.limit") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			register()
		}()
	}
}
