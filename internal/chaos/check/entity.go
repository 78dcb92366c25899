package check

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/anishathalye/porcupine"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// An entity is the state of the model: what callers of the instance can observe.
type entity struct {
	exists bool
	sum    int
}

// entityModel specifies updates and queries of an entity. A call with an unknown outcome may or may
// not have been executed.
var entityModel = porcupine.Model{
	Init: func() any { return entity{} },
	Step: func(state, input, output any) (bool, any) {
		return stepEntity(state.(entity), input.(evidence.Request), output.(evidence.Answer))
	},
	DescribeOperation: func(input, output any) string {
		in, out := input.(evidence.Request), output.(evidence.Answer)
		return fmt.Sprintf("%s %s %s: %s %s %s", in.Kind, in.RequestID, in.Input, out.Outcome, out.Code, out.Output)
	},
}

func stepEntity(e entity, in evidence.Request, out evidence.Answer) (bool, entity) {
	if out.Outcome == evidence.Rejected && in.Kind != evidence.Start {
		return out.Code == evidence.NotFound && !e.exists, e
	}
	switch in.Kind {
	case evidence.Start:
		if e.exists {
			return out.Outcome == evidence.Unknown || out.Code == evidence.Exists, e
		}
		var begin host.EntityInput
		err := json.Unmarshal(in.Input, &begin)
		return err == nil && out.Outcome != evidence.Rejected, entity{true, begin.Sum}
	case evidence.Update:
		var n int
		if json.Unmarshal(in.Input, &n) != nil {
			return false, e
		}
		if e.exists {
			e.sum += n
		}
		return out.Outcome == evidence.Unknown || e.exists && string(out.Output) == fmt.Sprint(e.sum), e
	case evidence.Query:
		return e.exists && string(out.Output) == fmt.Sprint(e.sum), e
	}
	return false, e
}

// isEntityCall reports whether entityModel covers the call.
func isEntityCall(call evidence.Call) bool {
	switch call.Kind {
	case evidence.Start, evidence.Update, evidence.Query:
		return call.Code != evidence.NoHandler // not executed, nothing observed
	}
	return false
}

// checkEntities compares the output of each completed entity with the sum of its updates and the
// number of its events, over all executions.
func (c *checker) checkEntities() {
	for _, of := range c.instances {
		if !of.exists() || of.name() != host.Entity || of.last().GetOrchestrationCompleted() == nil {
			continue
		}
		var want, got host.EntityInput
		first := of.executions[0]
		if !c.decode(first, first.events[0].GetOrchestrationStarted().GetInput(), &want) ||
			!c.decode(first, of.last().GetOrchestrationCompleted().Output, &got) {
			continue
		}
		inputs, done := make(map[string]*journalpb.Payload), make(map[string]bool)
		for _, h := range of.executions {
			for _, event := range h.events {
				c.applyEvent(h, event, &want, inputs, done)
			}
		}
		if want.Events--; got != want { // the event that ends the entity is not counted
			c.addViolation("%s returned %+v; want %+v", of.id, got, want)
		}
	}
}

// applyEvent adds the contribution of one event to the expected output.
func (c *checker) applyEvent(h *history, event *journalpb.Event, want *host.EntityInput, inputs map[string]*journalpb.Payload, done map[string]bool) {
	if external := event.GetExternalEvent(); external != nil {
		if external.Name == host.Number {
			want.Events++
		}
		inputs[external.RequestId] = external.Data
	}
	record := event.GetSideEffectRecorded()
	id, isUpdate := strings.CutPrefix(record.GetLabel(), engine.UpdatePrefix)
	if !isUpdate {
		return
	}
	if done[id] {
		c.addViolation("%v: update %s was executed again at event %d", h, id, event.EventId)
	}
	done[id] = true
	var n int
	if c.decode(h, inputs[id], &n) {
		want.Sum += n
	}
}
