package host

import (
	"strconv"
	"strings"
	"time"
)

// An Option changes the options of one call.
type Option struct {
	// Name is the name of the function that returned the option.
	Name string
	// Apply changes the options of a call, to which it gets a pointer. It returns false if the
	// option does not apply to such a call.
	Apply func(options any) bool
}

// NewOption returns an option that applies to calls whose options are a T: a pointer to a struct,
// or an interface that such pointers implement.
func NewOption[T any](name string, apply func(T)) Option {
	return Option{Name: name, Apply: func(options any) bool {
		to, ok := options.(T)
		if ok {
			apply(to)
		}
		return ok
	}}
}

// ApplyTo applies the option that is at an index of the arguments. call names the kind of call, for
// example "a child". The result is nil if the option applies.
func (o Option) ApplyTo(options any, call string, index int) *InvalidOption {
	switch {
	case o.Apply == nil:
		return &InvalidOption{strconv.Itoa(index + 1), "is empty: call a function that returns an option"}
	case !o.Apply(options):
		// A copy, because o must not escape: callers keep options on the stack.
		return &InvalidOption{strings.Clone(o.Name), "does not apply to " + call}
	}
	return nil
}

// An InvalidOption says why an option of a call is invalid. The call must fail with it.
type InvalidOption struct{ Name, Reason string }

// Versioned are the options of a call that selects a version.
type Versioned interface{ SetVersion(version string) }

// ActivityOptions are the options of one call of an activity. The zero value sets none.
type ActivityOptions struct {
	ScheduleToStart time.Duration
	StartToClose    time.Duration
	ScheduleToClose time.Duration
	Heartbeat       time.Duration
	CancelGrace     time.Duration
	Tag             string
	Retry           *RetryPolicy
	Invalid         *InvalidOption
}

// SetRetry implements [Retried].
func (o *ActivityOptions) SetRetry(policy *RetryPolicy) { o.Retry = policy }

// Retried are the options of a call whose failure may be retried.
type Retried interface{ SetRetry(policy *RetryPolicy) }

// A RetryPolicy has the fields of replay.RetryPolicy, where they are described.
type RetryPolicy struct {
	InitialInterval   time.Duration
	Backoff           float64
	MaxInterval       time.Duration
	MaxAttempts       int
	NonRetryableCodes []string
	PanicsAreFinal    bool
}

// ChainOptions are the options of the start of a chained instance. The zero value sets none.
type ChainOptions struct {
	ID      string
	Version string
	Summary string
	Invalid *InvalidOption
}

// SetSummary sets the summary of the run.
func (o *ChainOptions) SetSummary(text string) { o.Summary = text }

// SetVersion implements [Versioned].
func (o *ChainOptions) SetVersion(version string) { o.Version = version }

// SetID sets the ID of the instance.
func (o *ChainOptions) SetID(id string) { o.ID = id }

// ChildOptions are the options of the start of a child. The zero value sets none.
type ChildOptions struct {
	ChainOptions
	ClosePolicy int32 // the number in journalpb.ClosePolicy
	Retry       *RetryPolicy
}

// SetRetry implements [Retried].
func (o *ChildOptions) SetRetry(policy *RetryPolicy) { o.Retry = policy }

// ContinueOptions are the options of a continue-as-new. The zero value sets none.
type ContinueOptions struct {
	Version string
	Invalid *InvalidOption
}

// SetVersion implements [Versioned].
func (o *ContinueOptions) SetVersion(version string) { o.Version = version }
