package operate

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// The actions of [Rerun], [Rewind] and [Fork], for Config.Authorize. A fork with an ID needs the
// right for both instances.
const (
	ActionRerun  cluster.Action = "rerun"
	ActionRewind cluster.Action = "rewind"
	ActionFork   cluster.Action = "fork"
)

// A CopyError reports why a history is not copied. Nothing was recorded. Its fields:
//
//	Instance  string // the source; with CopyHasParent, CopyTargetExists and CopyOtherPartition the target
//	Execution uint64
//	EventID   uint64     // the last event to copy; 0 for a call that was not found
//	Reason    CopyReason
//	Operation uint64     // the EventID of the open child or message; 0 for other reasons
type CopyError = state.CopyError

// A CopyReason is the reason in a [CopyError], as a text for people.
type CopyReason = state.CopyReason

// The reasons.
const (
	CopyNoSource       = state.CopyNoSource       // no such execution, for example because it was purged
	CopyBeyondEnd      = state.CopyBeyondEnd      // no such event
	CopyNoCall         = state.CopyNoCall         // no such call of [BeforeCall]
	CopyEnded          = state.CopyEnded          // the event ends the execution
	CopyOpenChild      = state.CopyOpenChild      // a child is running at the event
	CopyOpenMessage    = state.CopyOpenMessage    // an outgoing message or cancellation is not answered at the event
	CopyHasParent      = state.CopyHasParent      // a parent waits for the run, or has not recorded its end
	CopyTooLarge       = state.CopyTooLarge       // more than 64 MiB
	CopyKeptTooLarge   = state.CopyKeptTooLarge   // too many events to keep; see [DropEvents]
	CopyTargetExists   = state.CopyTargetExists   // of a fork
	CopyOtherPartition = state.CopyOtherPartition // of a fork
	CopyReserved       = state.CopyReserved       // of an orchestration of the engine, whose name begins with "tenuto."
	CopySourceChanged  = state.CopySourceChanged  // another run has begun under the ID during the call
	CopyOldRun         = state.CopyOldRun         // the run began before protocol 3
	CopyOtherInput     = state.CopyOtherInput     // another input, and a point after event 1
)

// A Run is a run that begins with a copied history.
type Run struct {
	InstanceID string
	// Execution is the first of the run, and Incarnation distinguishes the run from all others
	// under the ID; see [replay.Attempt].
	Execution, Incarnation uint64
	// EventID is that of the last copied event.
	EventID uint64
}

// A Point is a place in a history: the end of what is copied. The zero value is invalid.
type Point struct {
	event  uint64
	call   string
	number int
}

// ToEvent is the point after an event, from 1.
func ToEvent(id uint64) Point { return Point{event: id} }

// BeforeCall is the point before the n-th call, from 1, of the activity or child with that name.
// The leader finds it in the history of the execution.
func BeforeCall(name string, n int) Point { return Point{call: name, number: n} }

// A CopyOption is an option of [Rerun], [Rewind] and [Fork].
type CopyOption func(*copyCall)

// copyCall is a request that options complete.
type copyCall struct {
	request *clusterpb.CopyRequest
	input   *any // of OtherInput
}

// DropEvents drops the external events that the source has recorded after the point. Without it,
// the new run receives them at its beginning, in their order.
func DropEvents() CopyOption { return func(c *copyCall) { c.request.DropEvents = true } }

// OfExecution selects the execution to copy, from 1. The default is the latest one, and for [Rerun]
// the first one of the latest run.
func OfExecution(number uint64) CopyOption {
	return func(c *copyCall) { c.request.Execution = number }
}

// OtherInput gives a fork another input, which the client's codec encodes. The point must be
// ToEvent(1): after that, the history depends on the recorded input.
func OtherInput(input any) CopyOption { return func(c *copyCall) { c.input = &input } }

// CopyRequestID sets the request ID, 1 to 256 bytes, instead of a random one. A call with the ID of
// an earlier call for the same instance returns the run of that call, as long as it is among the
// latest 1,000 executions.
func CopyRequestID(id string) CopyOption { return func(c *copyCall) { c.request.RequestId = id } }

// Rerun begins a run of the same instance with the input and the options of its latest run. A run
// in progress is terminated.
//
// The errors of Rerun, Rewind and Fork are those of the package, and [*CopyError]. They work on an
// instance that is running, suspended, stalled, hung or ended.
func Rerun(ctx context.Context, client *cluster.Client, id, reason string, options ...CopyOption) (*Run, error) {
	return runCopy(ctx, client, id, &clusterpb.CopyRequest{Kind: clusterpb.CopyRequest_KIND_RERUN, Reason: reason}, options)
}

// Rewind begins a run of the same instance whose history is that of its latest execution up to a
// point, and goes on from there. A run in progress is terminated. replay/docs/again.md says what is
// copied.
func Rewind(ctx context.Context, client *cluster.Client, id string, to Point, reason string, options ...CopyOption) (*Run, error) {
	request := &clusterpb.CopyRequest{Kind: clusterpb.CopyRequest_KIND_REWIND, Reason: reason}
	to.set(request)
	return runCopy(ctx, client, id, request, options)
}

// Fork begins a new instance whose history is that of the latest execution of an instance up to a
// point. The source is not changed. newID must be in the partition of the source; if it is "", the
// cluster makes one.
func Fork(ctx context.Context, client *cluster.Client, id, newID string, at Point, reason string, options ...CopyOption) (*Run, error) {
	request := &clusterpb.CopyRequest{Kind: clusterpb.CopyRequest_KIND_FORK, Target: newID, Reason: reason}
	at.set(request)
	return runCopy(ctx, client, id, request, options)
}

func (p Point) set(request *clusterpb.CopyRequest) {
	request.EventId, request.Call, request.CallNumber = p.event, p.call, uint32(max(p.number, 0))
}

// runCopy sends a request for a run with a copied history.
func runCopy(ctx context.Context, client *cluster.Client, id string, request *clusterpb.CopyRequest, options []CopyOption) (*Run, error) {
	verb := copyVerbs[request.Kind]
	internals, err := client.Internal(access.Key{})
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", verb, id, err)
	}
	call := &copyCall{request: request}
	request.RequestId = rand.Text()
	for _, option := range options {
		option(call)
	}
	if call.input != nil {
		if request.Input, err = internals.Encode(replay.PayloadInfo{Kind: "orchestration", Part: "input"}, *call.input); err != nil {
			return nil, fmt.Errorf("%s %s: %w", verb, id, err)
		}
	}
	sent := &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Copy{Copy: request}}
	if err := internals.Check(sent); err != nil {
		return nil, fmt.Errorf("%s: %w", verb, err)
	}
	response, err := internals.Call(ctx, sent)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", verb, id, err)
	}
	result := response.GetCopy()
	return &Run{result.GetInstance(), result.GetFirstExecution(), result.GetIncarnation(), result.GetEventId()}, nil
}

var copyVerbs = map[clusterpb.CopyRequest_Kind]cluster.Action{
	clusterpb.CopyRequest_KIND_RERUN:  ActionRerun,
	clusterpb.CopyRequest_KIND_REWIND: ActionRewind,
	clusterpb.CopyRequest_KIND_FORK:   ActionFork,
}
