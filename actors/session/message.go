package session

import (
	"time"

	"github.com/tenuto-dev/tenuto/actors/internal/operation"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// An AttemptKey is a comparable [clusterpb.AttemptID].
type AttemptKey struct {
	operation operation.Key
	number    uint32
}

// KeyOf returns the key of an attempt. The ID must have an operation.
func KeyOf(id *clusterpb.AttemptID) AttemptKey {
	return AttemptKey{operation.KeyOf(id.Ref), id.Number}
}

// Code identifies an orchestration and its version.
type Code struct{ Name, Version string }

// CodeOf returns the code of an entry of a registration.
func CodeOf(entry *clusterpb.OrchestrationCode) Code {
	return Code{Name: entry.GetName(), Version: entry.GetVersion()}
}

// KnowsCode reports whether a registration lists all orchestrations that the node has code for.
func KnowsCode(registration *clusterpb.RegisterWorker) bool {
	return registration.GetCode() == clusterpb.CodeList_CODE_LIST_COMPLETE
}

// The functions below return messages. Those of the frequent ones, Assignment, Result and Ack, hold
// their protobuf messages in one allocation.

// Register returns the first message of a worker: what it can run.
func Register(registration *clusterpb.RegisterWorker) *clusterpb.FromWorker {
	return &clusterpb.FromWorker{Message: &clusterpb.FromWorker_Register{Register: registration}}
}

// Running returns the message that reports an attempt that has run on the worker since an earlier
// session.
func Running(id *clusterpb.AttemptID, name string, age time.Duration) *clusterpb.FromWorker {
	return &clusterpb.FromWorker{Message: &clusterpb.FromWorker_RunningAttempt{
		RunningAttempt: &clusterpb.RunningAttempt{Attempt: id, Name: name, Age: int64(age)},
	}}
}

// SlotsMax bounds the free slots that a leader counts for a worker.
const SlotsMax = 1 << 20

// FreeSlots returns the message that reports slots that have become free. The first comes after all
// Running messages, so that the leader assigns nothing that the worker already has.
func FreeSlots(slots int) *clusterpb.FromWorker {
	return &clusterpb.FromWorker{Message: &clusterpb.FromWorker_FreeSlots{FreeSlots: uint32(slots)}}
}

// Heartbeat returns the message with a heartbeat of an attempt. details may be nil.
func Heartbeat(id *clusterpb.AttemptID, details *journalpb.Payload) *clusterpb.FromWorker {
	return &clusterpb.FromWorker{Message: &clusterpb.FromWorker_Heartbeat{
		Heartbeat: &clusterpb.Heartbeat{Attempt: id, Details: details},
	}}
}

// A Result is the message with the result of an attempt. The worker keeps it until the leader
// acknowledges it.
type Result struct {
	message clusterpb.FromWorker
	body    clusterpb.FromWorker_Result
	result  clusterpb.AttemptResult
}

// Of prepares r for an attempt. It returns the message, and the result in it, which the caller
// fills in.
func (r *Result) Of(id *clusterpb.AttemptID) (*clusterpb.FromWorker, *clusterpb.AttemptResult) {
	r.message.Message, r.body.Result, r.result.Attempt = &r.body, &r.result, id
	return &r.message, &r.result
}

// Drain returns the last message of a worker: it is stopping, and attempts without a result are to
// begin again on another node. The leader then ends the session.
func Drain() *clusterpb.FromWorker {
	return &clusterpb.FromWorker{Message: &clusterpb.FromWorker_Drain{Drain: true}}
}

// StopAssigning returns the message of a worker that takes no more attempts. returned are attempts
// that were assigned to it and will not begin on it.
func StopAssigning(returned ...*clusterpb.AttemptID) *clusterpb.FromWorker {
	return &clusterpb.FromWorker{Message: &clusterpb.FromWorker_StopAssigning{
		StopAssigning: &clusterpb.StopAssigning{Returned: returned},
	}}
}

// An Assignment is the message that asks a worker to run an attempt. A worker that already has the
// attempt does not run it again.
type Assignment struct {
	message clusterpb.ToWorker
	body    clusterpb.ToWorker_AssignAttempt
	assign  clusterpb.AssignAttempt
	id      clusterpb.AttemptID
}

// Of prepares a for an attempt of an operation. It returns the message, and the assignment in it,
// which the caller fills in.
func (a *Assignment) Of(ref *journalpb.OperationRef, number int) (*clusterpb.ToWorker, *clusterpb.AssignAttempt) {
	a.message.Message, a.body.AssignAttempt, a.assign.Attempt = &a.body, &a.assign, &a.id
	a.id.Ref, a.id.Number = ref, uint32(number)
	return &a.message, &a.assign
}

// Cancel returns the message that cancels the context of an attempt. timeout is the timeout that
// has passed, or "" if the result is no longer wanted.
func Cancel(id *clusterpb.AttemptID, timeout replay.TimeoutKind) *clusterpb.ToWorker {
	return &clusterpb.ToWorker{Message: &clusterpb.ToWorker_CancelAttempt{
		CancelAttempt: &clusterpb.CancelAttempt{Attempt: id, Timeout: string(timeout)},
	}}
}

// Ack returns the message that reports that the result of an attempt is recorded or no longer
// wanted.
func Ack(id *clusterpb.AttemptID) *clusterpb.ToWorker {
	made := &struct {
		message clusterpb.ToWorker
		body    clusterpb.ToWorker_Ack
	}{}
	made.message.Message, made.body.Ack = &made.body, id
	return &made.message
}
