package actors

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/tenuto-dev/tenuto/actors/worker"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// runBody runs the body of an attempt and resolves the attempt with what the body returns.
func (s *System) runBody(attempt *worker.Attempt) {
	ctx, ended := s.traceAttempt(attempt)
	attempt.BodyStartedAt = time.Now()
	s.config.Registry.RunActivity(ctx, &attempt.Info, func(output *journalpb.Payload, err error) {
		failure, pending := readError(err)
		outcome := outcomeOf(failure, pending)
		ended(outcome)
		s.observeAttempt(attempt, outcome)
		attempt.Resolve(output, failure, pending)
	})
}

// traceAttempt returns the context for the body, and a function to call after the body has
// returned.
func (s *System) traceAttempt(attempt *worker.Attempt) (ctx context.Context, ended func(AttemptOutcome)) {
	if s.config.Tracer == nil {
		return attempt.Context, func(AttemptOutcome) {}
	}
	return s.config.Tracer.Attempt(attempt.Context, &attempt.Info.Attempt, attempt.TraceContext)
}

func (s *System) observeAttempt(attempt *worker.Attempt, outcome AttemptOutcome) {
	if s.config.Observer != nil {
		s.config.Observer.Attempted(&attempt.Info.Attempt, attempt.QueuedFor, time.Since(attempt.BodyStartedAt), outcome)
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

// readError returns an error as it will be read from its record, and whether it says that the
// attempt is pending. Reading an error runs user code. That code may panic, for example for a nil
// pointer in a non-nil error.
func readError(err error) (decoded error, pending bool) {
	defer func() {
		if value := recover(); value != nil {
			decoded = &replay.PanicError{
				Message: fmt.Sprintf("panic in the activity's error of type %T: %v", err, value),
				Stack:   string(debug.Stack()),
			}
		}
	}()
	pending = errors.Is(err, replay.ErrResultPending)
	return engine.DecodeError(engine.EncodeError(err)), pending
}
