package replay

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A sentinel is an error that is identified by its code, also after it was recorded in the journal.
type sentinel struct{ code, message string }

func (s *sentinel) Error() string { return s.message }

// NewError returns a new sentinel that errors.Is finds on both sides of the journal, identified by
// its code: 1 to 128 bytes, unique in the program. Codes that begin with "tenuto." are reserved.
//
//	var ErrOutOfStock = replay.NewError("shop.out_of_stock", "out of stock")
func NewError(code, message string) error { return &sentinel{code, message} }

var (
	// ErrCanceled reports that the operation was canceled or its scope has ended.
	ErrCanceled error = &sentinel{canceledCode, "canceled"}
	// ErrTimeout reports that a timeout passed first.
	ErrTimeout error = &sentinel{timeoutCode, "timeout"}
	// ErrInstanceExists reports that the child's ID belongs to another instance.
	ErrInstanceExists error = &sentinel{"tenuto.instance_exists", "an instance of that ID exists"}
	// ErrTerminated reports that the child was terminated without running its code.
	ErrTerminated error = &sentinel{"tenuto.terminated", "terminated"}
	// ErrEvicting reports that the instance is being evicted from memory and the call did nothing.
	// Only deferred functions receive it. It is never recorded.
	ErrEvicting = errors.New("tenuto: the instance is being evicted from memory")
)

// A CanceledError is [ErrCanceled] with the reason of the request to cancel the instance.
type CanceledError struct {
	Reason string

	legacyText bool // the text is the reason alone, as before protocol 3
}

func (e *CanceledError) Error() string {
	switch {
	case e.Reason == "":
		return ErrCanceled.Error()
	case e.legacyText:
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

// A TimeoutKind names the timeout that has passed, after the [ActivityOption] that sets it.
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

func (c *crash) error() error {
	if c.value == nil {
		return &PanicError{Message: "runtime.Goexit called in user code", Stack: c.stack}
	}
	return &PanicError{Message: fmt.Sprintf("panic: %v", c.value), Stack: c.stack}
}

// A NoCodeError reports that this node has no code for an orchestration or an activity.
type NoCodeError struct {
	Activity bool
	Name     string
	Version  string
}

func (e *NoCodeError) Error() string {
	kind := "orchestration"
	if e.Activity {
		kind = "activity"
	}
	if e.Version == "" {
		return fmt.Sprintf("no code for %s %q on this node", kind, e.Name)
	}
	return fmt.Sprintf("no code for %s %q, version %q, on this node", kind, e.Name, e.Version)
}

// An Error is an error that was read from the journal: its message, code and causes, and its value
// if its type was registered. Without the codec that encoded it, only the code and NonRetryable are
// known.
type Error struct {
	Code         string
	Message      string
	NonRetryable bool
	Cause        error

	typed  error            // value of a type given to RegisterErrorType
	sealed *journalpb.Error // the record, if it is still encoded by a codec
}

func (e *Error) Error() string { return e.Message }
func (e *Error) Unwrap() error { return e.Cause }

// Is makes errors.Is true for another Error with the same code and for sentinels with that code:
// the reserved ones, those of [NewError] and those given to [RegisterError].
func (e *Error) Is(target error) bool {
	if other, ok := target.(*Error); ok {
		return e.Code != "" && e.Code == other.Code
	}
	return e.Code != "" && e.Code == sentinelCode(target)
}

// As makes errors.As find the value of a registered type.
func (e *Error) As(target any) bool {
	if e.typed == nil {
		return false
	}
	into := reflect.ValueOf(target).Elem()
	if !reflect.TypeOf(e.typed).AssignableTo(into.Type()) {
		return false
	}
	into.Set(reflect.ValueOf(e.typed))
	return true
}

// multiError holds the causes of an error that wraps more than one.
type multiError []error

func (s multiError) Error() string   { return errors.Join(s...).Error() }
func (s multiError) Unwrap() []error { return s }

// NonRetryable marks an error so that no retry policy retries it.
func NonRetryable(err error) error {
	if err == nil {
		return nil
	}
	return &annotatedError{err: err, nonRetryable: true}
}

// WithCode gives an error a code that identifies it after it was recorded: as [Error.Code], and in
// [RetryPolicy.NonRetryableCodes]. Codes that begin with "tenuto." are reserved.
func WithCode(code string, err error) error {
	if err == nil {
		return nil
	}
	return &annotatedError{err: err, code: code}
}

// annotatedError adds a code, or that the error is not retryable. Only the record of the error
// shows them.
type annotatedError struct {
	err          error
	code         string
	nonRetryable bool
}

func (m *annotatedError) Error() string { return m.err.Error() }
func (m *annotatedError) Unwrap() error { return m.err }

func isCanceled(err error) bool { return errors.Is(err, ErrCanceled) }
