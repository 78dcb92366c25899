package actors

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/actors/worker"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// runBody runs the body of an attempt and resolves the attempt with what the body returns.
func (s *System) runBody(attempt *worker.Attempt) {
	traced := false
	defer func() {
		if !traced {
			attempt.Resolve(nil, engine.EncodeError(&replay.PanicError{Message: "panic in the tracer of attempts"}), false)
		}
	}()
	ctx, ended := s.traceAttempt(attempt)
	traced = true
	started := time.Now() // by the local clock
	s.config.Registry.RunActivity(ctx, &attempt.Info, func(output *journalpb.Payload, err error) {
		record, pending, failure := readError(err)
		defer attempt.Resolve(output, record, pending) // even if the tracer or the observer panics
		outcome := outcomeOf(failure, pending)
		ended(outcome)
		s.observeAttempt(attempt, time.Since(started), outcome)
	})
}

// traceAttempt returns the context for the body, and a function to call after the body has
// returned.
func (s *System) traceAttempt(attempt *worker.Attempt) (ctx context.Context, ended func(AttemptOutcome)) {
	if s.config.Tracer == nil {
		return attempt.Context, func(AttemptOutcome) {}
	}
	ctx, end := s.config.Tracer.Attempt(attempt.Context, &attempt.Info.Attempt, attempt.TraceContext())
	if attempt.CancelGrace() == 0 {
		return ctx, end
	}
	var once sync.Once
	ended = func(outcome AttemptOutcome) { once.Do(func() { end(outcome) }) }
	attempt.OnAbandon(func() { ended(AttemptAbandoned) })
	return ctx, ended
}

func (s *System) observeAttempt(attempt *worker.Attempt, took time.Duration, outcome AttemptOutcome) {
	if s.config.Observer != nil {
		s.config.Observer.Attempted(&attempt.Info.Attempt, attempt.QueuedFor, took, outcome)
	}
}

func outcomeOf(err error, pending bool) AttemptOutcome {
	switch {
	case pending:
		return AttemptPending
	case err != nil:
		return AttemptFailed
	}
	return AttemptCompleted
}

// readError returns the record of an error, whether the error says that the attempt is pending, and
// the error as it will be read from the record. Reading and encoding an error runs user code, which
// may panic, for example for a nil pointer in a non-nil error.
func readError(err error) (record *journalpb.Error, pending bool, decoded error) {
	defer func() {
		if value := recover(); value != nil {
			decoded = &replay.PanicError{
				Message: fmt.Sprintf("panic in the activity's error of type %T: %v", err, value),
				Stack:   string(debug.Stack()),
			}
			record = engine.EncodeError(decoded)
		}
	}()
	pending = errors.Is(err, replay.ErrResultPending)
	decoded = engine.DecodeError(engine.EncodeError(err))
	return engine.EncodeError(decoded), pending, decoded
}
