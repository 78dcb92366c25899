package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"strconv"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// watchedEvent is an event as watch and history show it in JSON.
type watchedEvent struct {
	Instance  string            `json:"instance"`
	Execution uint64            `json:"execution"`
	EventID   uint64            `json:"eventId"`
	Time      time.Time         `json:"time"`
	Type      history.EventType `json:"type"`
	Name      string            `json:"name,omitempty"`
	Source    uint64            `json:"sourceEventId,omitempty"` // the event that scheduled the operation
	Operation uint64            `json:"operation,omitempty"`     // that an operator has acted on
	Child     string            `json:"child,omitempty"`
	Receiver  string            `json:"receiver,omitempty"`
	FireAt    *time.Time        `json:"fireAt,omitempty"`
	Attempts  int               `json:"attempts,omitempty"`
	// Of several attempts: the failed ones, and when the last one began.
	Failures           []failedAttempt `json:"failures,omitempty"`
	LastAttemptStarted *time.Time      `json:"lastAttemptStarted,omitempty"`
	Value              json.RawMessage `json:"value,omitempty"` // the payload
	Error              string          `json:"error,omitempty"`
	Principal          string          `json:"principal,omitempty"`
	Reason             string          `json:"reason,omitempty"`
}

func newWatchedEvent(instance string, e history.Event) *watchedEvent {
	w := &watchedEvent{
		Instance: instance, Execution: e.Execution, EventID: e.EventID, Time: e.Time.UTC(), Type: e.Type, Name: e.Name,
		Source: e.SourceEventID, Operation: e.Operation(), Child: e.Child(), Receiver: e.Receiver(), FireAt: timeOrNil(e.FireAt()),
		Attempts: e.Attempts(), Failures: newFailedAttempts(e.Failures()), LastAttemptStarted: timeOrNil(e.LastAttemptStarted()),
		Error: errorText(e.Err()), Principal: e.Principal, Reason: e.Reason,
	}
	if err := e.Decode(&w.Value); err != nil {
		w.Value = nil
	}
	return w
}

func watch(flags *flag.FlagSet) action {
	var from history.Position
	flags.Func("from", "`position` EXECUTION/EVENT to begin at, such as 1/1 (default: after what is recorded)", parsePosition(&from))
	limit := flags.Duration("for", 0, "the longest `duration` to watch (default until the end of the run)")
	d := displayFlags(flags, output.Table, output.JSON, output.YAML)
	return withSession(flags, func(ctx context.Context, s *session, args []string) error {
		if from == (history.Position{}) {
			next, err := s.nextPosition(ctx, args[0])
			if err != nil {
				return err
			}
			from = next
		}
		table := newHistoryTable(s.streams, d, false)
		write := s.eventWriter(args[0], d, table)
		return s.follow(ctx, args[0], from, *limit, func(e history.Event) error {
			return cmp.Or(write(e), table.rows.Flush())
		})
	})
}

// parsePosition reads EXECUTION/EVENT.
func parsePosition(p *history.Position) func(string) error {
	return func(text string) error {
		execution, event, found := strings.Cut(text, "/")
		var err1, err2 error
		p.Execution, err1 = strconv.ParseUint(execution, 10, 64)
		p.EventID, err2 = strconv.ParseUint(event, 10, 64)
		if !found || err1 != nil || err2 != nil || p.Execution == 0 || p.EventID == 0 {
			return errors.New("must be EXECUTION/EVENT, such as 1/7")
		}
		return nil
	}
}

// nextPosition returns the position after the last event of an instance.
func (s *session) nextPosition(ctx context.Context, id string) (history.Position, error) {
	ctx, cancel := s.limited(ctx)
	defer cancel()
	status, err := s.Get(ctx, id)
	if err != nil {
		return history.Position{}, err
	}
	return history.Position{Execution: status.Execution, EventID: status.LastEventID + 1}, nil
}

// follow passes the events of an instance from a position on to write, until the run ends or the
// limit has passed. A limit of 0 is none.
func (s *session) follow(ctx context.Context, id string, from history.Position, limit time.Duration, write func(history.Event) error) error {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, &limitError{id, limit})
		defer cancel()
	}
	for {
		err := s.watchOnce(ctx, id, &from, write)
		var encoded *replay.CodecError
		var late *limitError
		switch {
		case errors.As(err, &encoded): // an error that only the codec of the cluster can decode
			ended, readErr := s.writeRecorded(ctx, id, &from, write)
			if ended || readErr != nil {
				return readErr
			}
		case err != nil && errors.As(context.Cause(ctx), &late):
			return late
		default:
			return err
		}
	}
}

// watchOnce writes events and moves the position after them, until the run ends or an error.
func (s *session) watchOnce(ctx context.Context, id string, at *history.Position, write func(history.Event) error) error {
	for event, err := range s.Watch(ctx, id, *at) {
		if err == nil {
			err = write(event)
		}
		if err != nil {
			return err
		}
		*at = event.Next()
	}
	return nil
}

// writeRecorded writes the events of an execution from a position on, as they are recorded. It
// reports whether the run has ended.
func (s *session) writeRecorded(ctx context.Context, id string, at *history.Position, write func(history.Event) error) (ended bool, err error) {
	h, err := s.exportHistory(ctx, id, at.Execution, nil)
	if err != nil {
		return false, err
	}
	for _, event := range h.Events[min(len(h.Events), int(at.EventID)-1):] {
		if err := write(event); err != nil {
			return false, err
		}
		*at = event.Next()
		ended = event.Type.EndsExecution() && event.Type != history.OrchestrationContinuedAsNew
	}
	return ended, nil
}
