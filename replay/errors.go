package replay

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A sentinel is an error that is known by its code, also after it has crossed
// the journal.
type sentinel struct{ code, message string }

func (s *sentinel) Error() string { return s.message }

// NewError returns a new sentinel that errors.Is finds on both sides of the
// journal, because it has a code: 1 to 128 bytes, unique in the program. Codes
// that begin with "tenuto." are the system's own.
//
//	var ErrOutOfStock = replay.NewError("shop.out_of_stock", "out of stock")
func NewError(code, message string) error { return &sentinel{code, message} }

var (
	// ErrCanceled: the operation was given up, or its scope has ended.
	ErrCanceled error = &sentinel{canceledCode, "canceled"}
	// ErrTimeout: a limit of time passed first.
	ErrTimeout error = &sentinel{timeoutCode, "timeout"}
	// ErrInstanceExists: the child's ID belongs to another instance.
	ErrInstanceExists error = &sentinel{"tenuto.instance_exists", "an instance of that ID exists"}
	// ErrTerminated: the child was ended from outside, without running its code.
	ErrTerminated error = &sentinel{"tenuto.terminated", "terminated"}
	// ErrDehydrating: the instance is being dropped from memory; the call did
	// nothing. Only deferred functions can meet it. It never crosses the journal.
	ErrDehydrating = errors.New("tenuto: the instance is being dropped from memory")
)

// A CanceledError is [ErrCanceled] with the reason that was given when the
// instance was asked to cancel.
type CanceledError struct {
	Reason string

	earlier bool // the text is that of before protocol 3: the reason alone
}

func (e *CanceledError) Error() string {
	switch {
	case e.Reason == "":
		return ErrCanceled.Error()
	case e.earlier:
		return e.Reason
	}
	return ErrCanceled.Error() + ": " + e.Reason
}

// Is makes errors.Is(err, ErrCanceled) true.
func (e *CanceledError) Is(target error) bool { return target == ErrCanceled }

// An ActivityError is the end of an activity that did not succeed.
type ActivityError struct {
	Name     string
	EventID  uint64 // of its ActivityScheduled
	Attempts int    // how many were made
	Err      error  `json:"-"` // of the last attempt
}

func (e *ActivityError) Error() string { return fmt.Sprintf("activity %q: %v", e.Name, e.Err) }
func (e *ActivityError) Unwrap() error { return e.Err }

// A TimeoutKind names the limit of time that has passed: the one that the
// [ActivityOption] of the same name sets.
type TimeoutKind string

// The kinds of a [TimeoutError].
const (
	TimeoutScheduleToStart TimeoutKind = "schedule-to-start"
	TimeoutStartToClose    TimeoutKind = "start-to-close"
	TimeoutScheduleToClose TimeoutKind = "schedule-to-close"
	TimeoutHeartbeat       TimeoutKind = "heartbeat"
)

// A TimeoutError reports that an activity, or an attempt of it, was given up
// because a limit of time has passed.
type TimeoutError struct {
	Kind TimeoutKind
	// Of schedule-to-close: what the last failed attempt has failed with, nil if
	// none had. Nil for every other kind.
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

// A ChildError is the end of a child instance that did not complete.
type ChildError struct {
	Name     string
	Instance string
	EventID  uint64 // of its SubOrchestrationScheduled
	Err      error  `json:"-"`
}

func (e *ChildError) Error() string {
	return fmt.Sprintf("orchestration %q (%s): %v", e.Name, e.Instance, e.Err)
}
func (e *ChildError) Unwrap() error { return e.Err }

// A PanicError is the end of user code by a panic or by runtime.Goexit.
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

// A NoCodeError reports that no code is registered for an orchestration or an
// activity on this node.
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

// An Error is an error that has crossed the journal: its message, code and
// causes, and its value if its type was registered. Where nobody has had the
// codec read it, there are only the code and whether to retry.
type Error struct {
	Code         string
	Message      string
	NonRetryable bool
	Cause        error

	typed  error            // by RegisterErrorType
	sealed *journalpb.Error // the record, if only a codec can read it
}

func (e *Error) Error() string { return e.Message }
func (e *Error) Unwrap() error { return e.Cause }

// Is makes errors.Is true for another Error with the same code, and for
// sentinels: the system's own, those of [NewError] and those given to
// [RegisterError].
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

// several are the causes of an error that wraps more than one.
type several []error

func (s several) Error() string   { return errors.Join(s...).Error() }
func (s several) Unwrap() []error { return s }

// NonRetryable marks an error so that no retry policy tries again.
func NonRetryable(err error) error {
	if err == nil {
		return nil
	}
	return &marked{err: err, final: true}
}

// WithCode gives an error a code by which it is known after it has crossed the
// journal: as [Error.Code], and to [RetryPolicy.NonRetryableCodes]. Codes that
// begin with "tenuto." are the system's own.
func WithCode(code string, err error) error {
	if err == nil {
		return nil
	}
	return &marked{err: err, code: code}
}

// marked adds to an error what only its record shows.
type marked struct {
	err   error
	code  string
	final bool
}

func (m *marked) Error() string { return m.err.Error() }
func (m *marked) Unwrap() error { return m.err }

func isCanceled(err error) bool { return errors.Is(err, ErrCanceled) }
