package judge

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/anishathalye/porcupine"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// An entity is the state of the model of one: what its callers may be told.
type entity struct {
	there bool
	sum   int
}

// entityModel is what an entity is to those who update and query it. An outcome that is not known
// fits whatever happened, or nothing.
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
	if out.Outcome == evidence.Refused && in.Kind != evidence.Start {
		return out.Code == evidence.NotFound && !e.there, e
	}
	switch in.Kind {
	case evidence.Start:
		if e.there {
			return out.Outcome == evidence.Unknown || out.Code == evidence.Exists, e
		}
		var begin host.EntityInput
		err := json.Unmarshal(in.Input, &begin)
		return err == nil && out.Outcome != evidence.Refused, entity{true, begin.Sum}
	case evidence.Update:
		var n int
		if json.Unmarshal(in.Input, &n) != nil {
			return false, e
		}
		if e.there {
			e.sum += n
		}
		return out.Outcome == evidence.Unknown || e.there && string(out.Output) == fmt.Sprint(e.sum), e
	case evidence.Query:
		return e.there && string(out.Output) == fmt.Sprint(e.sum), e
	}
	return false, e
}

// ofEntity tells whether a call is one that the model of entities has.
func ofEntity(call evidence.Call) bool {
	switch call.Kind {
	case evidence.Start, evidence.Update, evidence.Query:
		return call.Code != evidence.Early // nothing was done, and nothing shown
	}
	return false
}

// entities checks what those that have completed came to: the sum of their updates, and the
// number of events, over all executions.
func (c *trial) entities() {
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
		brought, done := make(map[string]*journalpb.Payload), make(map[string]bool)
		for _, h := range of.executions {
			for _, event := range h.events {
				c.tally(h, event, &want, brought, done)
			}
		}
		if want.Events--; got != want { // without the one that ended it
			c.violated("%s came to %+v; want %+v", of.id, got, want)
		}
	}
}

// tally adds to what an entity must come to what an event of it brings.
func (c *trial) tally(h *history, event *journalpb.Event, want *host.EntityInput, brought map[string]*journalpb.Payload, done map[string]bool) {
	if external := event.GetExternalEvent(); external != nil {
		if external.Name == host.Number {
			want.Events++
		}
		brought[external.RequestId] = external.Data
	}
	record := event.GetSideEffectRecorded()
	id, isUpdate := strings.CutPrefix(record.GetLabel(), replay.UpdatePrefix)
	if !isUpdate {
		return
	}
	if done[id] {
		c.violated("%v: update %s was carried out again at event %d", h, id, event.EventId)
	}
	done[id] = true
	var n int
	if c.decode(h, brought[id], &n) {
		want.Sum += n
	}
}
