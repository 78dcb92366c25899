package replay

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A sentinel is an error of the system's own that is known by its code, also
// after it has crossed the journal.
type sentinel struct{ code, message string }

func (s *sentinel) Error() string { return s.message }

var (
	// ErrCanceled: the operation was given up, or its scope has ended.
	ErrCanceled error = &sentinel{"tenuto.canceled", "canceled"}
	// ErrTimeout: a limit of time passed first.
	ErrTimeout error = &sentinel{"tenuto.timeout", "timeout"}
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
type CanceledError struct{ Reason string }

func (e *CanceledError) Error() string {
	if e.Reason == "" {
		return ErrCanceled.Error()
	}
	return e.Reason
}

// Is makes errors.Is(err, ErrCanceled) true.
func (e *CanceledError) Is(target error) bool { return target == ErrCanceled }

// An ActivityError is the end of an activity that did not succeed.
type ActivityError struct {
	Name     string
	EventID  uint64 // of its ActivityScheduled
	Attempts int    // how many were made
	Err      error  // of the last attempt
}

func (e *ActivityError) Error() string { return fmt.Sprintf("activity %q: %v", e.Name, e.Err) }
func (e *ActivityError) Unwrap() error { return e.Err }

// A ChildError is the end of a child instance that did not complete.
type ChildError struct {
	Name     string
	Instance string
	EventID  uint64 // of its SubOrchestrationScheduled
	Err      error
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

const panicCode = "tenuto.panic"

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

// An Error is an error that has crossed the journal. Message, code and causes
// are kept; Go types are not.
type Error struct {
	Code         string
	Message      string
	NonRetryable bool
	Cause        error
}

func (e *Error) Error() string { return e.Message }
func (e *Error) Unwrap() error { return e.Cause }

// Is makes errors.Is true for the system's own errors and for another Error
// with the same code.
func (e *Error) Is(target error) bool {
	switch target := target.(type) {
	case *sentinel:
		return e.Code == target.code
	case *Error:
		return e.Code != "" && e.Code == target.Code
	}
	return false
}

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

// classify finds the outermost code and whether any part forbids a retry.
func classify(err error) (code string, final bool) {
	record := encodeError(err)
	for ; record != nil; record = record.Cause {
		if code == "" {
			code = record.Code
		}
		final = final || record.NonRetryable
	}
	return code, final
}

// EncodeError turns an error into its record.
func EncodeError(err error) *journalpb.Error { return encodeError(err) }

// DecodeError turns a record back into an error.
func DecodeError(record *journalpb.Error) error { return decodeError(record) }

func encodeError(err error) *journalpb.Error {
	switch e := err.(type) {
	case nil:
		return nil
	case *marked:
		record := encodeError(e.err)
		if e.code != "" {
			record = recode(record, clean(e.code))
		}
		record.NonRetryable = record.NonRetryable || e.final
		return record
	case *sentinel:
		return &journalpb.Error{Code: e.code, Message: e.message}
	case *CanceledError:
		return &journalpb.Error{Code: ErrCanceled.(*sentinel).code, Message: clean(e.Error())}
	case *PanicError:
		return &journalpb.Error{Code: panicCode, Message: clean(e.Message), Stack: clean(e.Stack)}
	case *Error:
		return &journalpb.Error{Code: clean(e.Code), Message: clean(e.Message), NonRetryable: e.NonRetryable, Cause: encodeError(e.Cause)}
	}
	return &journalpb.Error{Message: clean(err.Error()), Cause: encodeError(cause(err))}
}

// recode gives a record a code. One that has a code already stays whole, as
// the cause: errors.Is goes on finding it.
func recode(record *journalpb.Error, code string) *journalpb.Error {
	if record.Code == "" {
		record.Code = code
		return record
	}
	return &journalpb.Error{Code: code, Message: record.Message, NonRetryable: record.NonRetryable, Cause: record}
}

// clean makes text fit for a record, which holds nothing but UTF-8. Errors of
// commands and of binary protocols often are something else.
func clean(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// cause returns what an error wraps: of several, the first.
func cause(err error) error {
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		if causes := several.Unwrap(); len(causes) > 0 {
			return causes[0]
		}
		return nil
	}
	return errors.Unwrap(err)
}

func decodeError(record *journalpb.Error) error {
	if record == nil {
		return nil
	}
	if record.Code == panicCode {
		return &PanicError{Message: record.Message, Stack: record.Stack}
	}
	return &Error{
		Code:         record.Code,
		Message:      record.Message,
		NonRetryable: record.NonRetryable,
		Cause:        decodeError(record.Cause),
	}
}
