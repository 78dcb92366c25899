package check

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

// linearizabilityTimeout bounds the search for one instance.
const linearizabilityTimeout = 20 * time.Second

// A linearizabilityFailure describes the calls of one instance that are not linearizable.
type linearizabilityFailure struct {
	id    string
	model porcupine.Model
	info  porcupine.LinearizationInfo
}

// A register is the state of the model: an instance that takes events until it is terminated.
type register struct {
	state    string // "" before the start, then running, terminated
	accepted string // request IDs, each followed by a comma
}

// registerModel specifies calls on a register, of which longest is the longest list of accepted
// events that a read has shown. A call with an unknown outcome may or may not have been executed.
//
// Events are only added: before that read the register has a beginning of the list, and after it
// all of the list. To discard other orders at once does not change the result. Without that the
// search takes too long if clients send concurrently for a while and none reads.
func registerModel(longest string) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return register{} },
		Step: func(state, input, output any) (bool, any) {
			ok, next := stepRegister(state.(register), input.(evidence.Request), output.(evidence.Answer))
			return ok && (strings.HasPrefix(longest, next.accepted) || strings.HasPrefix(next.accepted, longest)), next
		},
		DescribeOperation: func(input, output any) string {
			in, out := input.(evidence.Request), output.(evidence.Answer)
			return fmt.Sprintf("%s %s: %s %s %s %d", in.Kind, in.RequestID, out.Outcome, out.Code, out.State, len(out.AcceptedIDs))
		},
	}
}

// longestAccepted returns the longest list of accepted events that a read among operations shows.
func longestAccepted(operations []porcupine.Operation) (longest string) {
	for _, o := range operations {
		if accepted := acceptedBy(o.Output.(evidence.Answer)); len(accepted) > len(longest) {
			longest = accepted
		}
	}
	return longest
}

// acceptedBy returns the events that a register has accepted according to a read.
func acceptedBy(out evidence.Answer) (accepted string) {
	for _, id := range out.AcceptedIDs {
		accepted += id + ","
	}
	return accepted
}

func stepRegister(r register, in evidence.Request, out evidence.Answer) (bool, register) {
	switch in.Kind {
	case evidence.Read:
		if out.Outcome == evidence.Rejected {
			return out.Code == evidence.NotFound && r.state == "", r
		}
		return out.Outcome == evidence.Acked && out.State == r.state && acceptedBy(out) == r.accepted, r
	case evidence.Start:
		if r.state == "" {
			return out.Outcome != evidence.Rejected, register{state: "running"}
		}
		return out.Outcome == evidence.Unknown || out.Code == evidence.Exists, r
	case evidence.Send:
		if r.state == "running" {
			return out.Outcome != evidence.Rejected, register{r.state, r.accepted + in.RequestID + ","}
		}
		return out.Outcome == evidence.Unknown || out.Code == rejection(r), r
	case evidence.SendOrStart:
		if r.state == "terminated" {
			return out.Outcome == evidence.Unknown || out.Code == evidence.Exists || out.Code == evidence.Ended, r
		}
		return out.Outcome != evidence.Rejected, register{"running", r.accepted + in.RequestID + ","}
	case evidence.Terminate:
		if r.state == "running" {
			return out.Outcome != evidence.Rejected, register{"terminated", r.accepted}
		}
		return out.Outcome == evidence.Unknown || out.Code == rejection(r), r
	}
	return false, r
}

// rejection returns the code with which a register that is not running rejects input.
func rejection(r register) string {
	if r.state == "" {
		return evidence.NotFound
	}
	return evidence.Ended
}

// checkLinearizable checks the instances that several clients called concurrently.
func (c *checker) checkLinearizable() {
	for id, operations := range c.operations(host.Register, nil) {
		c.checkModel(id, registerModel(longestAccepted(operations)), operations)
	}
	for id, operations := range c.operations(host.Entity, isEntityCall) {
		c.checkModel(id, entityModel, operations)
	}
}

func (c *checker) checkModel(id string, model porcupine.Model, operations []porcupine.Operation) {
	result, info := porcupine.CheckOperationsVerbose(model, operations, linearizabilityTimeout)
	if result == porcupine.Ok {
		return
	}
	if c.linearFailure == nil {
		c.linearFailure = &linearizabilityFailure{id, model, info}
	}
	problem := "are not linearizable"
	if result == porcupine.Unknown {
		problem = fmt.Sprintf("could not be checked within %v", linearizabilityTimeout)
	}
	c.addViolation("%s: %d calls %s", id, len(operations), problem)
}

// operations returns the calls on all instances of an orchestration, by instance. If modeled is not
// nil, only the calls for which it returns true.
func (c *checker) operations(orchestration string, modeled func(evidence.Call) bool) map[string][]porcupine.Operation {
	registers := make(map[string]bool)
	for _, call := range c.record.Calls {
		if call.Kind == evidence.Start && call.Name == orchestration && !strings.HasPrefix(call.Instance, "probe-") {
			registers[call.Instance] = true
		}
	}
	operations := make(map[string][]porcupine.Operation)
	recorded, shown := c.recordedEvents(), c.firstShown()
	var clients []int
	for _, call := range c.record.Calls {
		if !registers[call.Instance] || call.Stale || call.Outcome == evidence.NotExecuted ||
			call.Kind.IsReadOnly() && call.Outcome == evidence.Unknown || modeled != nil && !modeled(call) {
			continue // no effect, and nothing observed
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
					continue // never executed
				}
			}
			// The call took effect before the first read that shows it returned. Without this bound
			// the search takes too long if many outcomes are unknown.
			if at, ok := shown[call.RequestID]; ok {
				operation.Return = max(int64(at), operation.Call)
			}
		}
		operations[call.Instance] = append(operations[call.Instance], operation)
	}
	return operations
}

// firstShown returns, for each request ID of an event, when the first linearizable read that shows
// it returned.
func (c *checker) firstShown() map[string]time.Duration {
	first := make(map[string]time.Duration)
	for _, call := range c.record.Calls {
		if call.Kind != evidence.Read || call.Outcome != evidence.Acked || call.Stale {
			continue
		}
		for _, id := range call.AcceptedIDs {
			if at, ok := first[id]; !ok || call.End < at {
				first[id] = call.End
			}
		}
	}
	return first
}

// Visualize writes an HTML page of the first calls that are not linearizable, if any, to a
// directory.
func (r *Result) Visualize(dir string) error {
	if r.linearFailure == nil {
		return nil
	}
	return porcupine.VisualizePath(r.linearFailure.model, r.linearFailure.info, filepath.Join(dir, "history.html"))
}
