package judge

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/slots"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A trial is the evidence, ordered for those who judge it.
type trial struct {
	record    *evidence.Record
	registry  *replay.Registry
	final     *evidence.Replica // the last that is whole and linearizable
	histories []*history        // of final, in its order
	instances map[string]*instance
	effects   map[operation][]evidence.Effect

	invariant string // that is being judged
	found     []Violation
	linear    *linearity
}

// An instance is what all nodes agreed on in the end.
type instance struct {
	id         string
	state      string
	executions []*history
	purge      evidence.Outcome // of its purge; "" if nobody asked for one
	purgedAt   time.Duration    // when that was answered
}

type history struct {
	of     *instance
	number uint64
	events []*journalpb.Event
}

// An operation is named as in idempotency keys.
type operation struct {
	instance  string
	execution uint64
	eventID   uint64
}

// newTrial orders the evidence. The error says what cannot be read.
func newTrial(record *evidence.Record, registry *replay.Registry) (*trial, error) {
	c := &trial{record: record, registry: registry, instances: make(map[string]*instance), effects: make(map[operation][]evidence.Effect)}
	for i := range record.Replicas {
		if r := &record.Replicas[i]; r.Whole && !r.Stale {
			c.final = r
		}
	}
	if c.final == nil {
		return nil, fmt.Errorf("no node has told all that there is")
	}
	for _, told := range c.final.Instances {
		if err := c.add(told); err != nil {
			return nil, err
		}
	}
	for _, call := range record.Calls {
		if call.Kind != evidence.Purge {
			continue
		}
		of := c.instances[call.Instance]
		if of == nil {
			of = &instance{id: call.Instance}
			c.instances[call.Instance] = of
		}
		of.purge, of.purgedAt = call.Outcome, call.End
	}
	for _, effect := range record.Effects {
		key := operation{effect.Instance, effect.Execution, effect.EventID}
		c.effects[key] = append(c.effects[key], effect)
	}
	return c, nil
}

func (c *trial) add(told evidence.Instance) error {
	of := &instance{id: told.ID, state: told.State}
	c.instances[told.ID] = of
	for _, execution := range told.Executions {
		h := &history{of: of, number: execution.Number}
		for i, encoded := range execution.Events {
			event := new(journalpb.Event)
			if err := proto.Unmarshal(encoded, event); err != nil {
				return fmt.Errorf("event %d of %s/%d: %w", i+1, told.ID, execution.Number, err)
			}
			h.events = append(h.events, event)
		}
		if len(h.events) == 0 {
			return fmt.Errorf("%s/%d has no events", told.ID, execution.Number)
		}
		of.executions = append(of.executions, h)
		c.histories = append(c.histories, h)
	}
	return nil
}

// groupOf returns the group of an instance.
func (c *trial) groupOf(instance string) int { return slots.Group(instance, c.record.Groups) }

// exists tells whether an instance is there in the end.
func (of *instance) exists() bool { return of != nil && len(of.executions) > 0 }

// mayBeGone tells whether somebody has asked to purge it.
func (of *instance) mayBeGone() bool {
	return of != nil && (of.purge == evidence.Acked || of.purge == evidence.Unknown)
}

// name returns that of the orchestration.
func (of *instance) name() string {
	return of.executions[0].events[0].GetOrchestrationStarted().GetName()
}

func (of *instance) last() *journalpb.Event {
	return of.executions[len(of.executions)-1].last()
}

func (h *history) last() *journalpb.Event { return h.events[len(h.events)-1] }

// at returns the event of that ID, nil if there is none.
func (h *history) at(eventID uint64) *journalpb.Event {
	if eventID == 0 || eventID > uint64(len(h.events)) {
		return nil
	}
	return h.events[eventID-1]
}

func (h *history) String() string { return fmt.Sprintf("%s/%d", h.of.id, h.number) }

// history returns that of one execution, nil if there is none.
func (c *trial) history(id string, execution uint64) *history {
	of := c.instances[id]
	if of == nil {
		return nil
	}
	i := slices.IndexFunc(of.executions, func(h *history) bool { return h.number == execution })
	if i < 0 {
		return nil
	}
	return of.executions[i]
}

// A Violation is an invariant that does not hold.
type Violation struct {
	Invariant string
	Detail    string
}

// violationsMax bounds how many of one invariant are told.
const violationsMax = 10

func (c *trial) violated(format string, arguments ...any) {
	c.found = append(c.found, Violation{Invariant: c.invariant, Detail: fmt.Sprintf(format, arguments...)})
}

// decode reads a payload into a value; what does not decode is a violation.
func (c *trial) decode(where fmt.Stringer, payload *journalpb.Payload, into any) bool {
	if err := json.Unmarshal(payload.GetData(), into); err != nil {
		c.violated("%v: a payload does not decode: %v", where, err)
		return false
	}
	return true
}
