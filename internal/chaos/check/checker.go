package check

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/slots"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A checker holds the evidence, indexed for the checks.
type checker struct {
	record    *evidence.Record
	registry  *engine.Registry
	final     *evidence.Replica // the last complete and linearizable replica
	histories []*history        // of final, in its order
	instances map[string]*instance
	effects   map[operation][]evidence.Effect

	invariant     string // being checked
	violations    []Violation
	linearFailure *linearizabilityFailure
}

// An instance is the final state of one instance, as read through the leader.
type instance struct {
	id           string
	state        string
	executions   []*history
	purgeOutcome evidence.Outcome // of its purge; "" if no purge was called
	purgedAt     time.Duration    // when the purge returned
}

type history struct {
	instance *instance
	number   uint64
	events   []*journalpb.Event
}

// An operation identifies a scheduled operation, like an idempotency key without the incarnation.
type operation struct {
	instance  string
	execution uint64
	eventID   uint64
}

// newChecker indexes the evidence. It returns an error if some of it cannot be read.
func newChecker(record *evidence.Record, registry *engine.Registry) (*checker, error) {
	c := &checker{record: record, registry: registry, instances: make(map[string]*instance), effects: make(map[operation][]evidence.Effect)}
	for i := range record.Replicas {
		if r := &record.Replicas[i]; r.Complete && !r.Stale {
			c.final = r
		}
	}
	if c.final == nil {
		return nil, fmt.Errorf("no node returned a complete linearizable report")
	}
	for _, reported := range c.final.Instances {
		if err := c.add(reported); err != nil {
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
		of.purgeOutcome, of.purgedAt = call.Outcome, call.End
	}
	for _, effect := range record.Effects {
		key := operation{effect.Instance, effect.Execution, effect.EventID}
		c.effects[key] = append(c.effects[key], effect)
	}
	return c, nil
}

func (c *checker) add(reported evidence.Instance) error {
	of := &instance{id: reported.ID, state: reported.State}
	c.instances[reported.ID] = of
	for _, execution := range reported.Executions {
		h := &history{instance: of, number: execution.Number}
		for i, encoded := range execution.Events {
			event := new(journalpb.Event)
			if err := proto.Unmarshal(encoded, event); err != nil {
				return fmt.Errorf("event %d of %s/%d: %w", i+1, reported.ID, execution.Number, err)
			}
			h.events = append(h.events, event)
		}
		if len(h.events) == 0 {
			return fmt.Errorf("%s/%d has no events", reported.ID, execution.Number)
		}
		of.executions = append(of.executions, h)
		c.histories = append(c.histories, h)
	}
	return nil
}

// partitionOf returns the partition of an instance.
func (c *checker) partitionOf(instance string) int {
	return slots.Partition(instance, c.record.Partitions)
}

// exists reports whether the instance is there at the end of the run.
func (i *instance) exists() bool { return i != nil && len(i.executions) > 0 }

// mayBePurged reports whether a purge of the instance was acknowledged or has an unknown outcome.
func (i *instance) mayBePurged() bool {
	return i != nil && (i.purgeOutcome == evidence.Acked || i.purgeOutcome == evidence.Unknown)
}

// name returns the name of the orchestration.
func (i *instance) name() string {
	return i.executions[0].events[0].GetOrchestrationStarted().GetName()
}

func (i *instance) last() *journalpb.Event {
	return i.executions[len(i.executions)-1].last()
}

func (h *history) last() *journalpb.Event { return h.events[len(h.events)-1] }

// event returns the event with that ID, or nil.
func (h *history) event(eventID uint64) *journalpb.Event {
	if eventID == 0 || eventID > uint64(len(h.events)) {
		return nil
	}
	return h.events[eventID-1]
}

func (h *history) String() string { return fmt.Sprintf("%s/%d", h.instance.id, h.number) }

// history returns the history of one execution, or nil.
func (c *checker) history(id string, execution uint64) *history {
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

// A Violation is one breach of an invariant.
type Violation struct {
	Invariant string
	Detail    string
}

// violationsMax bounds how many violations of one invariant are printed.
const violationsMax = 10

func (c *checker) addViolation(format string, arguments ...any) {
	c.violations = append(c.violations, Violation{Invariant: c.invariant, Detail: fmt.Sprintf(format, arguments...)})
}

// decode decodes a payload. It adds a violation if that fails.
func (c *checker) decode(where fmt.Stringer, payload *journalpb.Payload, into any) bool {
	if err := json.Unmarshal(payload.GetData(), into); err != nil {
		c.addViolation("%v: cannot decode payload: %v", where, err)
		return false
	}
	return true
}
