package replay

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// An Attempt is one run of an activity's body.
type Attempt struct {
	Name      string
	Input     *journalpb.Payload
	Instance  string
	Execution uint64
	EventID   uint64
	Number    int // 1 for the first
}

// IdempotencyKey returns "instance/execution/event_id": the same for every
// attempt of one call, and for no other call ever.
func (a *Attempt) IdempotencyKey() string {
	return fmt.Sprintf("%s/%d/%d", a.Instance, a.Execution, a.EventID)
}

type attemptKey struct{}

// ActivityInfo returns the attempt that the context of an activity's body
// belongs to, nil for any other context.
func ActivityInfo(ctx context.Context) *Attempt {
	attempt, _ := ctx.Value(attemptKey{}).(*Attempt)
	return attempt
}

// Run runs the body of an activity once. A panic, or a call of runtime.Goexit,
// in it becomes a [*PanicError]; in the second case Run does not return, and
// done is called as the goroutine unwinds. done is called exactly once.
func (r *Registry) Run(ctx context.Context, attempt *Attempt, done func(*journalpb.Payload, error)) {
	body, ok := r.activities[attempt.Name]
	if !ok {
		done(nil, &NoCodeError{Activity: true, Name: attempt.Name})
		return
	}
	var output *journalpb.Payload
	var err error
	returned := false
	defer func() {
		if value := recover(); !returned {
			output, err = nil, (&crash{value: value, stack: string(debug.Stack())}).error()
		}
		done(output, err)
	}()
	output, err = body.run(context.WithValue(ctx, attemptKey{}, attempt), attempt.Input)
	returned = true
}
