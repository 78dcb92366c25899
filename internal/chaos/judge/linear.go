package judge

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

// linearityLimit bounds the search for one instance.
const linearityLimit = 20 * time.Second

// A linearity is what is known of one instance whose calls are not linearizable.
type linearity struct {
	id    string
	model porcupine.Model
	info  porcupine.LinearizationInfo
}

// A register is the state of the model: an instance that takes events until it
// is terminated.
type register struct {
	state    string // "" while it is not there, running, terminated
	accepted string // request IDs, each with a comma behind it
}

// model is what an instance is to those who call it. An outcome that is not
// known fits whatever happened, or nothing.
var model = porcupine.Model{
	Init: func() any { return register{} },
	Step: func(state, input, output any) (bool, any) {
		return step(state.(register), input.(evidence.Request), output.(evidence.Answer))
	},
	DescribeOperation: func(input, output any) string {
		in, out := input.(evidence.Request), output.(evidence.Answer)
		return fmt.Sprintf("%s %s: %s %s %s %d", in.Kind, in.RequestID, out.Outcome, out.Code, out.State, len(out.Accepted))
	},
}

func step(r register, in evidence.Request, out evidence.Answer) (bool, register) {
	switch in.Kind {
	case evidence.Read:
		if out.Outcome == evidence.Refused {
			return out.Code == evidence.NotFound && r.state == "", r
		}
		accepted := ""
		for _, id := range out.Accepted {
			accepted += id + ","
		}
		return out.Outcome == evidence.Acked && out.State == r.state && accepted == r.accepted, r
	case evidence.Start:
		if r.state == "" {
			return out.Outcome != evidence.Refused, register{state: "running"}
		}
		return out.Outcome == evidence.Unknown || out.Code == evidence.Exists, r
	case evidence.Send:
		if r.state == "running" {
			return out.Outcome != evidence.Refused, register{r.state, r.accepted + in.RequestID + ","}
		}
		return out.Outcome == evidence.Unknown || out.Code == refusal(r), r
	case evidence.SendOrStart:
		if r.state == "terminated" {
			return out.Outcome == evidence.Unknown || out.Code == evidence.Exists || out.Code == evidence.Ended, r
		}
		return out.Outcome != evidence.Refused, register{"running", r.accepted + in.RequestID + ","}
	case evidence.Terminate:
		if r.state == "running" {
			return out.Outcome != evidence.Refused, register{"terminated", r.accepted}
		}
		return out.Outcome == evidence.Unknown || out.Code == refusal(r), r
	}
	return false, r
}

// refusal returns why a register that does not run takes no input.
func refusal(r register) string {
	if r.state == "" {
		return evidence.NotFound
	}
	return evidence.Ended
}

// linearizable judges the instances that several clients have called at once.
func (c *trial) linearizable() {
	c.linearizableBy(model, c.operations(host.Register, nil))
	c.linearizableBy(entityModel, c.operations(host.Entity, ofEntity))
}

func (c *trial) linearizableBy(model porcupine.Model, instances map[string][]porcupine.Operation) {
	for id, operations := range instances {
		result, info := porcupine.CheckOperationsVerbose(model, operations, linearityLimit)
		if result == porcupine.Ok {
			continue
		}
		if c.linear == nil {
			c.linear = &linearity{id, model, info}
		}
		c.violated("%s: %d calls are not linearizable (%s)", id, len(operations), result)
	}
}

// operations returns the calls on the instances of an orchestration, by instance: those that are
// modeled, all if that is nil.
func (c *trial) operations(orchestration string, modeled func(evidence.Call) bool) map[string][]porcupine.Operation {
	registers := make(map[string]bool)
	for _, call := range c.record.Calls {
		if call.Kind == evidence.Start && call.Name == orchestration && !strings.HasPrefix(call.Instance, "probe-") {
			registers[call.Instance] = true
		}
	}
	operations := make(map[string][]porcupine.Operation)
	recorded, shown := c.recorded(), c.shown()
	var clients []int
	for _, call := range c.record.Calls {
		if !registers[call.Instance] || call.Stale || call.Outcome == evidence.NotExecuted ||
			call.Kind.Looks() && call.Outcome == evidence.Unknown || modeled != nil && !modeled(call) {
			continue // it has done and shown nothing
		}
		client := slices.Index(clients, call.Client)
		if client < 0 {
			client = len(clients)
			clients = append(clients, call.Client)
		}
		operation := porcupine.Operation{
			ClientId: client, Input: call.Request, Output: call.Answer,
			Call: int64(call.Begin), Return: int64(call.End),
		}
		if call.Outcome == evidence.Unknown {
			operation.Return = math.MaxInt64
			if call.Kind == evidence.Send || call.Kind == evidence.SendOrStart || call.Kind == evidence.Update {
				if recorded[call.Instance][call.RequestID] == 0 {
					continue // it was never carried out
				}
			}
			// It was carried out before a read that shows it has ended: without this bound the
			// search is too large where many outcomes are unknown.
			if at, ok := shown[call.RequestID]; ok {
				operation.Return = max(int64(at), operation.Call)
			}
		}
		operations[call.Instance] = append(operations[call.Instance], operation)
	}
	return operations
}

// shown tells, for the request IDs of events, when the first linearizable read ended that shows
// them.
func (c *trial) shown() map[string]time.Duration {
	first := make(map[string]time.Duration)
	for _, call := range c.record.Calls {
		if call.Kind != evidence.Read || call.Outcome != evidence.Acked || call.Stale {
			continue
		}
		for _, id := range call.Accepted {
			if at, ok := first[id]; !ok || call.End < at {
				first[id] = call.End
			}
		}
	}
	return first
}

// Draw writes a picture of the first calls that are not linearizable, if there
// are any, into a directory.
func (v *Verdict) Draw(dir string) error {
	if v.linear == nil {
		return nil
	}
	return porcupine.VisualizePath(v.linear.model, v.linear.info, filepath.Join(dir, "history.html"))
}
