package state

import (
	"maps"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/journal/state/index"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// runState returns the state by which an instance is found.
func (in *instance) runState() index.State {
	return RunState(in.status, in.conditionKind(), in.suspended)
}

// RunState returns the state of a run from what is recorded of it. A condition counts before a
// suspension.
func RunState(status journalpb.Status, condition journalpb.ConditionKind, suspended bool) index.State {
	switch status {
	case journalpb.Status_STATUS_COMPLETED:
		return index.Completed
	case journalpb.Status_STATUS_FAILED:
		return index.Failed
	case journalpb.Status_STATUS_CANCELED:
		return index.Canceled
	case journalpb.Status_STATUS_TERMINATED:
		return index.Terminated
	}
	switch condition {
	case journalpb.ConditionKind_CONDITION_KIND_HUNG:
		return index.Hung
	case journalpb.ConditionKind_CONDITION_KIND_STALLED:
		return index.Stalled
	case journalpb.ConditionKind_CONDITION_KIND_WAITING_FOR_CODE:
		return index.WaitingForCode
	}
	if suspended {
		return index.Suspended
	}
	return index.Running
}

// conditionKind returns the kind of the condition, 0 if there is none.
func (in *instance) conditionKind() journalpb.ConditionKind {
	if in.condition == nil {
		return 0
	}
	kind, _ := intField(in.condition, 1)
	return journalpb.ConditionKind(kind)
}

// row returns what can be queried of an instance. The caller owns it.
func (in *instance) row() *index.Row {
	r := &index.Row{
		ID: strings.Clone(in.id), Name: in.name, Version: in.version, State: in.runState(),
		Created: in.created, Updated: in.updated, ErrorCode: in.errorCode, Tags: maps.Clone(in.tags), Waits: in.waits(),
	}
	if !in.isRunning() {
		r.Ended = in.updated
	}
	if in.parent != nil {
		r.ParentID = in.parent.instance
	}
	if len(in.attributes) > 0 {
		r.Attributes = make(map[string]string, len(in.attributes))
		for name, encoded := range in.attributes {
			r.Attributes[name] = attributeText(encoded)
		}
	}
	return r
}

// waits returns what an instance waits for, in order of event_ids.
func (in *instance) waits() []index.Wait {
	if len(in.open) == 0 {
		return nil
	}
	waits := make([]index.Wait, 0, len(in.open))
	for i := range in.open {
		if w, ok := in.wait(&in.open[i]); ok {
			waits = append(waits, w)
		}
	}
	return waits
}

// wait returns an open operation; false if it is an outgoing message.
func (in *instance) wait(op *operation) (w index.Wait, ok bool) {
	w = index.Wait{Since: op.since, FireAt: op.fireAt}
	switch op.eventType {
	case journalpb.TypeActivityScheduled:
		w.Kind, w.Name = index.Activity, in.operationName(op)
		if a, ok := in.attempts[op.id]; ok {
			w.Failed, w.ErrorCode = a.failed, errorCodeIn(a.encoded, fieldLastError)
		}
	case journalpb.TypeTimerCreated:
		w.Kind = index.Timer
	case journalpb.TypeExternalSubscribed:
		w.Kind, w.Name = index.Event, op.target
	case journalpb.TypeSubOrchestrationScheduled:
		w.Kind, w.Name = index.Child, in.operationName(op)
	default:
		return w, false
	}
	return w, true
}

// nextTimer returns when the earliest open timer is due; false if none is open.
func (o operations) nextTimer() (at int64, ok bool) {
	for i := range o {
		if op := &o[i]; op.isTimer() && (!ok || op.fireAt < at) {
			at, ok = op.fireAt, true
		}
	}
	return at, ok
}

// hasWaits reports whether the open operations of an instance are what a query selects.
func hasWaits(in *instance, q *index.Query) bool {
	if q.RequiresTimer() {
		if _, ok := in.open.nextTimer(); !ok {
			return false
		}
	}
	return (q.Waiting == nil || anyWait(in, q.Waiting.Matches)) && (q.Failing == nil || anyWait(in, q.Failing.Matches))
}

func anyWait(in *instance, matches func(index.Wait) bool) bool {
	for i := range in.open {
		if w, ok := in.wait(&in.open[i]); ok && matches(w) {
			return true
		}
	}
	return false
}

// hasAttributes reports whether the attributes of an instance are what a query selects.
func hasAttributes(in *instance, q *index.Query) bool {
	for name, text := range q.Attributes {
		if encoded, ok := in.attributes[name]; !ok || attributeText(encoded) != text {
			return false
		}
	}
	return true
}

// operationName returns the name of an open activity or of a child's orchestration. While the
// event that schedules it is in memory, the name is read there: appends are many, queries are few.
func (in *instance) operationName(op *operation) string {
	if op.name != "" || !op.needsName() {
		return op.name
	}
	x := in.executionInMemory(in.execution)
	if x == nil || op.id < x.first || op.id > x.lastEventID() {
		return ""
	}
	return scheduledName(x.events[op.id-x.first])
}

// scheduledName returns the name in the encoded event that schedules an activity or a child.
func scheduledName(encoded []byte) string {
	e, _ := parseEventFields(encoded) // fold has decoded it
	name, _ := stringField(e.body, fieldScheduledName)
	return strings.ToValidUTF8(name, "\uFFFD")
}

// keepOperationNames stores the names of the open operations, because their events leave memory.
func (in *instance) keepOperationNames() {
	for i := range in.open {
		in.open[i].name = in.operationName(&in.open[i])
	}
}

// errorCodeIn returns the code of the Error in a field of an encoded message; empty if there is
// none.
func errorCodeIn(message []byte, field protowire.Number) string {
	var encoded []byte
	eachField(message, func(number protowire.Number, wire protowire.Type, value []byte) {
		if number == field && wire == protowire.BytesType {
			encoded, _ = protowire.ConsumeBytes(value)
		}
	})
	code, _ := stringField(encoded, fieldErrorCode)
	return strings.ToValidUTF8(code, "\uFFFD")
}

// attributeText returns the text of an encoded AttributeValue, as replay.AttributeHandle.Text does.
func attributeText(encoded string) string {
	var value journalpb.AttributeValue
	if proto.Unmarshal([]byte(encoded), &value) != nil {
		return "" // impossible: setAttribute encoded it
	}
	switch kind := value.Kind.(type) {
	case *journalpb.AttributeValue_Text:
		return kind.Text
	case *journalpb.AttributeValue_Flag:
		return strconv.FormatBool(kind.Flag)
	case *journalpb.AttributeValue_Integer:
		return strconv.FormatInt(kind.Integer, 10)
	case *journalpb.AttributeValue_Number:
		return strconv.FormatFloat(kind.Number, 'g', -1, 64)
	case *journalpb.AttributeValue_Time:
		return time.Unix(0, kind.Time).UTC().Format(time.RFC3339Nano)
	}
	return ""
}
