package replaytest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// RequestID names a start, an event or an update, so that the call can be repeated and has one
// effect, as in a cluster.
func RequestID(id string) replay.Option { return actors.RequestID(id) }

// Attach makes a start return the run of an existing instance with that ID, running or ended,
// instead of an error. With [ReuseWhenEnded] it attaches to a running one only.
func Attach() replay.Option { return actors.Attach() }

// ReuseWhenEnded allows the ID of an instance that has ended.
func ReuseWhenEnded() replay.Option { return actors.ReuseWhenEnded() }

// ReuseWhenFailed allows the ID of an instance that has ended without completing.
func ReuseWhenFailed() replay.Option { return actors.ReuseWhenFailed() }

// TerminateExisting allows the ID of any instance, and terminates a running one. It excludes
// [Attach] and [SendOrStart].
func TerminateExisting() replay.Option { return actors.TerminateExisting() }

// StartAt delays the code until a virtual time. The instance exists at once.
func StartAt(at time.Time) replay.Option { return actors.StartAt(at) }

// Deadline cancels the run at a virtual time, if its body has not ended by then.
func Deadline(at time.Time) replay.Option { return actors.Deadline(at) }

// Tags adds tags to the instance.
func Tags(tags map[string]string) replay.Option { return actors.Tags(tags) }

// Headers makes a start, an event or an update carry the headers of ctx, as a client's call with
// that context does; see [replay.HeaderKey]. Without it, the call carries none, also in the body of
// an activity.
func Headers(ctx context.Context) replay.Option {
	return engine.NewOption("Headers", func(o *callHeaders) { o.headers, o.invalid = engine.HeadersOf(ctx) })
}

// callHeaders are what the option [Headers] sets.
type callHeaders struct {
	headers []*journalpb.Header
	invalid error
}

// applyOptions applies the options of a call to the struct that to points to, except [Headers],
// whose headers it returns.
func applyOptions(options []replay.Option, to any, call string) ([]*journalpb.Header, error) {
	var of callHeaders
	others := slices.DeleteFunc(slices.Clone(options), func(o replay.Option) bool {
		apply := o.Host().Apply
		return apply != nil && apply(&of)
	})
	if err := engine.ApplyOptions(others, to, call); err != nil {
		return nil, err
	}
	return of.headers, of.invalid
}

// startedRun returns the first execution of the earlier run that a start with the same request ID
// has begun, 0 if there is none. The node itself recognizes a repetition of the start of the latest
// run.
func (j *journal) startedRun(id string, requested *journalpb.OrchestrationStarted) (firstExecution uint64, err error) {
	known, exists := j.Instance(id)
	if !exists || requested.RequestId == "" {
		return 0, nil
	}
	for execution := uint64(1); execution < known.FirstExecution; execution++ {
		event, err := j.Event(id, execution, 1)
		if started := event.GetOrchestrationStarted(); err == nil && started.GetRequestId() == requested.RequestId {
			if !(engine.PayloadConverter{}).IsSameStart(requested, started) {
				return 0, ErrRequestIDReused
			}
			return execution, nil
		}
	}
	return 0, nil
}

// isRepeat reports whether an input got [ErrEnded] although it was recorded before.
func (j *journal) isRepeat(id, requestID string, err error) bool {
	return errors.Is(err, ErrEnded) && j.recordedInput(id, 0, requestID) != nil
}

// recordedInput returns the event with that request ID in a run of an instance, nil if there is
// none.
func (j *journal) recordedInput(id string, firstExecution uint64, requestID string) (found *journalpb.Event) {
	if requestID == "" {
		return nil
	}
	known, _ := j.Instance(id)
	j.eachEventFrom(id, cmp.Or(firstExecution, known.GetFirstExecution()), 1, func(event *journalpb.Event) bool {
		found = event.InputWithID(requestID)
		return found == nil
	})
	return found
}

// eachEventFrom passes the events of a run of an instance to visit, from one on, until it returns
// false.
func (j *journal) eachEventFrom(id string, execution, eventID uint64, visit func(*journalpb.Event) bool) {
	known, _ := j.Instance(id)
	for ; execution <= known.GetExecution(); execution, eventID = execution+1, 1 {
		for event, err := range j.Events(id, execution, eventID) {
			ended := journalpb.IsTerminal(event.TypeNumber()) && event.GetOrchestrationContinuedAsNew() == nil
			if err != nil || !visit(event) || ended {
				return
			}
		}
	}
}
