package check

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

func (c *checker) checkAcknowledged() {
	recorded := c.recordedEvents()
	for _, call := range c.record.Calls {
		of := c.instances[call.Instance]
		if call.Outcome != evidence.Acked || of.mayBePurged() || call.Stale {
			continue
		}
		if !of.exists() {
			if call.Kind != evidence.Purge {
				c.addViolation("%s: a %s was acknowledged at %v, but the instance does not exist", call.Instance, call.Kind, call.End)
			}
			continue
		}
		switch call.Kind {
		case evidence.Start:
			if got := of.executions[0].events[0].GetOrchestrationStarted().GetRequestId(); got != call.RequestID {
				c.addViolation("%s: start %s was acknowledged, but the instance was started by %s", of.id, call.RequestID, got)
			}
		case evidence.Send, evidence.SendOrStart:
			if recorded[of.id][call.RequestID] == 0 {
				c.addViolation("%s: event %s was acknowledged at %v, but is not recorded", of.id, call.RequestID, call.End)
			}
		case evidence.Update:
			if got, done := c.updateResult(of, call.RequestID); !done || !bytes.Equal(got, call.Output) {
				c.addViolation("%s: update %s returned %s, but %q is recorded", of.id, call.RequestID, call.Output, got)
			}
		case evidence.Wait:
			if of.state != call.State {
				c.addViolation("%s was reported as %s at %v, but is %s", of.id, call.State, call.End, of.state)
			}
		}
	}
}

// recordedEvents counts the external events of each request ID, by instance.
func (c *checker) recordedEvents() map[string]map[string]int {
	all := make(map[string]map[string]int)
	for _, h := range c.histories {
		if all[h.instance.id] == nil {
			all[h.instance.id] = make(map[string]int)
		}
		for _, event := range h.events {
			if external := event.GetExternalEvent(); external != nil {
				all[h.instance.id][external.RequestId]++
			}
		}
	}
	return all
}

func (c *checker) checkRecordedOnce() {
	for id, requests := range c.recordedEvents() {
		for request, n := range requests {
			if n > 1 {
				c.addViolation("%s: event %s is recorded %d times", id, request, n)
			}
		}
	}
}

// checkSenders checks the outputs of cycles: each must have the numbers of each sender in order,
// from 0 without a gap. It also checks tallies and entities.
func (c *checker) checkSenders() {
	c.checkUpdates()
	c.checkEntities()
	for _, of := range c.instances {
		if !of.exists() || of.name() != host.Cycle {
			continue
		}
		completed := of.last().GetOrchestrationCompleted()
		if completed == nil {
			continue
		}
		var got []string
		if !c.decode(of.executions[len(of.executions)-1], completed.Output, &got) {
			continue
		}
		next := make(map[string]int)
		for _, number := range got {
			sender, _, _ := strings.Cut(number, "-")
			if want := fmt.Sprintf("%s-%d", sender, next[sender]); number != want {
				c.addViolation("%s took %s; want %s next: %v", of.id, number, want, got)
				break
			}
			next[sender]++
		}
	}
}

// checkSessions checks that the indexes that one client reads from a partition never decrease. It
// compares linearizable reads from any node, and stale reads from one process of a node.
func (c *checker) checkSessions() {
	type session struct {
		client    int
		partition int
		node      string
		life      int
	}
	shown := make(map[session]uint64)
	for _, call := range c.record.Calls { // the calls of one client are in order
		if call.Kind != evidence.Read && call.Kind != evidence.Get || call.Outcome != evidence.Acked {
			continue
		}
		s := session{client: call.Client, partition: c.partitionOf(call.Instance)}
		if call.Stale {
			s.node, s.life = call.Node, call.Generation
		}
		if call.AppliedIndex < shown[s] {
			c.addViolation("client %d was shown index %d and then, by %s at %v, %d", call.Client, shown[s], call.Node, call.End, call.AppliedIndex)
		}
		shown[s] = max(shown[s], call.AppliedIndex)
	}
}

func (c *checker) checkPayloads() {
	sent := make(map[string]json.RawMessage)
	for _, call := range c.record.Calls {
		if call.RequestID != "" {
			sent[call.RequestID] = call.Input
		}
	}
	for id, m := range c.messages() {
		sent[id] = m.sent.Event.GetData().GetData()
	}
	for _, h := range c.histories {
		for _, event := range h.events {
			external, started := event.GetExternalEvent(), event.GetOrchestrationStarted()
			switch {
			case external != nil:
				c.checkPayload(h, sent[external.RequestId], external.GetData().GetData())
			case started != nil && h.isStartedByCall():
				c.checkPayload(h, sent[started.RequestId], started.GetInput().GetData())
			}
		}
	}
	for _, call := range c.record.Calls {
		if of := c.instances[call.Instance]; call.Kind == evidence.Wait && call.State == "completed" && of.exists() {
			c.checkOutput(of, call)
		}
	}
}

func (c *checker) checkPayload(h *history, want, got []byte) {
	if !bytes.Equal(want, got) {
		c.addViolation("%v: %.100q was sent, but %.100q is recorded", h, want, got)
	}
}

// checkOutput computes the expected output from the input.
func (c *checker) checkOutput(of *instance, call evidence.Call) {
	input := of.executions[0].events[0].GetOrchestrationStarted().GetInput()
	want, ok := any(nil), false
	switch first := of.executions[0]; of.name() {
	case host.Chain:
		var in host.ChainInput
		ok = c.decode(first, input, &in)
		want = host.ChainOutput{Blob: in.Blob, Value: in.Value + host.ChainLength}
	case host.Fan:
		var in host.FanInput
		ok = c.decode(first, input, &in)
		want = host.FanWidth*(in.Value+1) + host.FanWidth*(host.FanWidth-1)/2
	case host.Tree:
		var in host.TreeInput
		ok = c.decode(first, input, &in)
		leaves := 1
		for range in.Depth {
			leaves *= host.TreeWidth
		}
		want = leaves * (in.Value + 1)
	case host.Relay:
		var in host.RelayInput
		ok = c.decode(first, input, &in)
		want = in.Value + 1
	}
	if !ok {
		return // S15 checks cycles and tallies
	}
	if encoded, err := json.Marshal(want); err != nil || !bytes.Equal(encoded, call.Output) {
		c.addViolation("%s returned %.100s; want %.100s", of.id, call.Output, encoded)
	}
}

func (c *checker) checkPurged() {
	for i := range c.record.Replicas {
		r := &c.record.Replicas[i]
		if r.Stale && !r.Complete {
			continue // the read may predate the purge
		}
		for _, reported := range r.Instances {
			if of := c.instances[reported.ID]; of != nil && of.purgeOutcome == evidence.Acked && of.purgedAt < r.Begin {
				c.addViolation("%s was purged at %v, but %s still had it at %v", reported.ID, of.purgedAt, r.Node, r.End)
			}
		}
	}
	for _, call := range c.record.Calls {
		of := c.instances[call.Instance]
		if of != nil && of.purgeOutcome == evidence.Acked && call.Begin > of.purgedAt && !call.Stale && call.Outcome == evidence.Acked {
			c.addViolation("%s was purged at %v, but a later %s was acknowledged at %v", call.Instance, of.purgedAt, call.Kind, call.End)
		}
	}
}

func (c *checker) checkProcesses() {
	for _, exit := range c.record.Exits {
		if exit.Killed {
			c.addViolation("process %d of %s did not stop when asked; it was killed at %v", exit.Generation, exit.Node, exit.At)
		}
		if !exit.Expected {
			c.addViolation("process %d of %s ended unexpectedly at %v: %s", exit.Generation, exit.Node, exit.At, exit.Status)
		}
	}
}
