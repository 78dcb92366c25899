package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// NewError returns a new sentinel that errors.Is finds before and after it is recorded. Its code
// identifies it: 1 to 128 bytes, unique in the program. Codes that begin with "tenuto." are
// reserved.
//
//	var ErrOutOfStock = replay.NewError("shop.out_of_stock", "out of stock")
func NewError(code, message string) error { return &host.Sentinel{Code: code, Message: message} }

var (
	// ErrCanceled reports that the operation was canceled or its scope has ended.
	ErrCanceled error = &host.Sentinel{Code: host.CanceledCode, Message: "canceled"}
	// ErrTimeout reports that a timeout passed first.
	ErrTimeout error = &host.Sentinel{Code: host.TimeoutCode, Message: "timeout"}
	// ErrInstanceExists reports that the child's ID belongs to another instance.
	ErrInstanceExists error = &host.Sentinel{Code: "tenuto.instance_exists", Message: "an instance of that ID exists"}
	// ErrNotFound reports that there is no instance with that ID.
	ErrNotFound error = &host.Sentinel{Code: "tenuto.not_found", Message: "tenuto: no such instance"}
	// ErrEnded reports that the instance has ended and takes no more input.
	ErrEnded error = &host.Sentinel{Code: "tenuto.ended", Message: "tenuto: the instance has ended"}
	// ErrTerminated reports that the child was terminated without running its code.
	ErrTerminated error = &host.Sentinel{Code: "tenuto.terminated", Message: "terminated"}
	// ErrEvicting reports that the instance is being evicted from memory and the call did nothing.
	// Only deferred functions receive it. It is never recorded.
	ErrEvicting = errors.New("tenuto: the instance is being evicted from memory")
)

// A CanceledError is [ErrCanceled] with the reason of the request to cancel the instance.
type CanceledError struct {
	Reason string

	text host.CanceledText
}

// Host returns what selects the text, for package engine.
func (e *CanceledError) Host() *host.CanceledText { return &e.text }

func (e *CanceledError) Error() string {
	switch {
	case e.Reason == "":
		return ErrCanceled.Error()
	case e.text.Legacy:
		return e.Reason
	}
	return ErrCanceled.Error() + ": " + e.Reason
}

// Is makes errors.Is(err, ErrCanceled) true.
func (e *CanceledError) Is(target error) bool { return target == ErrCanceled }

// An ActivityError reports an activity that did not complete.
type ActivityError struct {
	Name     string
	EventID  uint64 // event_id of its ActivityScheduled
	Attempts int    // number of attempts made
	Err      error  `json:"-"` // error of the last attempt
}

func (e *ActivityError) Error() string { return fmt.Sprintf("activity %q: %v", e.Name, e.Err) }
func (e *ActivityError) Unwrap() error { return e.Err }

// A TimeoutKind names the timeout that has passed, after the [Option] that sets it.
type TimeoutKind string

// The kinds of a [TimeoutError].
const (
	TimeoutScheduleToStart TimeoutKind = "schedule-to-start"
	TimeoutStartToClose    TimeoutKind = "start-to-close"
	TimeoutScheduleToClose TimeoutKind = "schedule-to-close"
	TimeoutHeartbeat       TimeoutKind = "heartbeat"
)

// A TimeoutError reports that an activity, or one attempt of it, timed out.
type TimeoutError struct {
	Kind TimeoutKind
	// Err is the error of the last failed attempt, for schedule-to-close only; nil if none failed.
	Err error `json:"-"`
}

func (e *TimeoutError) Error() string {
	if e.Err == nil {
		return string(e.Kind) + " timeout"
	}
	return fmt.Sprintf("%s timeout; the last attempt: %v", e.Kind, e.Err)
}

func (e *TimeoutError) Unwrap() error { return e.Err }

// Is makes errors.Is(err, ErrTimeout) true.
func (e *TimeoutError) Is(target error) bool { return target == ErrTimeout }

// A ChildError reports a child instance that did not complete.
type ChildError struct {
	Name     string
	Instance string
	EventID  uint64 // event_id of its SubOrchestrationScheduled
	Err      error  `json:"-"`
}

func (e *ChildError) Error() string {
	return fmt.Sprintf("orchestration %q (%s): %v", e.Name, e.Instance, e.Err)
}
func (e *ChildError) Unwrap() error { return e.Err }

// A PanicError reports user code that ended by a panic or by runtime.Goexit.
type PanicError struct {
	Message string
	Stack   string
}

func (e *PanicError) Error() string { return e.Message }

// An InvalidError reports that an argument, an option, a name or a setting is not valid. Nothing
// was done.
type InvalidError struct {
	// Field is what is not valid, for example "option StartToClose", `name of activity "x"`,
	// "instance ID" or "Config.Dir".
	Field string
	// Reason is why, for example "is empty".
	Reason string
}

// Error returns the text that existing histories have recorded, so its wording must not change.
func (e *InvalidError) Error() string { return "tenuto: " + e.Field + " " + e.Reason }

// A NotRegisteredError reports a name without code or without a handler. Kind says where:
//
//   - "orchestration", "activity": this node, which runs the instance or the attempt, has no code.
//     If package cluster returns it for a call of a client, the leader has no code, and nothing was
//     recorded.
//   - "query", "update": the code of the instance has no handler, has not registered it yet, or,
//     for an update, is done.
type NotRegisteredError struct {
	Kind string // "orchestration", "activity", "query" or "update"
	// Name is the name that has no code; "" if a leader of an earlier version reported it.
	Name string
	// Version is the version of the orchestration, "" for none and for other kinds.
	Version string

	text host.NotRegisteredText
}

// Host returns what replaces the text, for package cluster.
func (e *NotRegisteredError) Host() *host.NotRegisteredText { return &e.text }

// Error returns the text that existing histories have recorded, so its wording must not change.
func (e *NotRegisteredError) Error() string {
	switch {
	case e.text.Leader != "":
		return e.text.Leader
	case e.Kind == "query":
		return fmt.Sprintf("the instance does not answer query %q", e.Name)
	case e.Kind == "update":
		return fmt.Sprintf("the instance does not handle update %q", e.Name)
	case e.Version == "":
		return fmt.Sprintf("no code for %s %q on this node", e.Kind, e.Name)
	}
	return fmt.Sprintf("no code for %s %q, version %q, on this node", e.Kind, e.Name, e.Version)
}

// An Error is an error that was read from the journal: its message, code and causes, and its value
// if its type was registered. Without the codec that encoded it, only the code and NonRetryable are
// known.
type Error struct {
	Code         string
	Message      string
	NonRetryable bool
	Cause        error

	decoded host.DecodedError
}

// Host returns what package engine keeps in the error.
func (e *Error) Host() *host.DecodedError { return &e.decoded }

func (e *Error) Error() string { return e.Message }
func (e *Error) Unwrap() error { return e.Cause }

// Is makes errors.Is true for another Error with the same code and for sentinels with that code:
// the reserved ones, those of [NewError] and those given to [RegisterError].
func (e *Error) Is(target error) bool {
	if other, ok := target.(*Error); ok {
		return e.Code != "" && e.Code == other.Code
	}
	return e.Code != "" && e.Code == host.SentinelCode(target)
}

// As makes errors.As find the value of a registered type.
func (e *Error) As(target any) bool {
	if e.decoded.Typed == nil {
		return false
	}
	into := reflect.ValueOf(target).Elem()
	if !reflect.TypeOf(e.decoded.Typed).AssignableTo(into.Type()) {
		return false
	}
	into.Set(reflect.ValueOf(e.decoded.Typed))
	return true
}

// NonRetryable marks an error so that no retry policy retries it.
func NonRetryable(err error) error {
	if err == nil {
		return nil
	}
	return &host.AnnotatedError{Err: err, NonRetryable: true}
}

// WithCode gives an error a code that identifies it after it was recorded: as [Error.Code], and in
// [RetryPolicy.NonRetryableCodes]. Codes that begin with "tenuto." are reserved.
func WithCode(code string, err error) error {
	if err == nil {
		return nil
	}
	return &host.AnnotatedError{Err: err, Code: code}
}

// RegisterError gives a sentinel of another package a code, so that errors.Is finds it before and
// after it is recorded:
//
//	replay.RegisterError("sql.no_rows", sql.ErrNoRows)
//
// Call it during initialization, in every program that shares the journal. It panics if the code or
// the sentinel is already registered.
func RegisterError(code string, err error) { host.RegisterError(code, err) }

// RegisterErrorType gives errors of type E a code, so that errors.As finds them before and after
// they are recorded, with their exported fields as encoded by encoding/json. Call it as described
// at [RegisterError].
func RegisterErrorType[E error](code string) {
	host.RegisterErrorType(code, reflect.TypeFor[E](), func(details []byte) (error, bool) {
		var value E
		err := json.Unmarshal(details, &value)
		return value, err == nil
	})
}
