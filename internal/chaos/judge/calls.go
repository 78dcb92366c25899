package judge

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

func (c *trial) acknowledged() {
	recorded := c.recorded()
	for _, call := range c.record.Calls {
		of := c.instances[call.Instance]
		if call.Outcome != evidence.Acked || of.mayBeGone() || call.Stale {
			continue
		}
		if !of.exists() {
			if call.Kind != evidence.Purge {
				c.violated("%s: a %s was acknowledged at %v, and it is not there", call.Instance, call.Kind, call.End)
			}
			continue
		}
		switch call.Kind {
		case evidence.Start:
			if got := of.executions[0].events[0].GetOrchestrationStarted().GetRequestId(); got != call.RequestID {
				c.violated("%s: start %s was acknowledged, and %s began it", of.id, call.RequestID, got)
			}
		case evidence.Send, evidence.SendOrStart:
			if recorded[of.id][call.RequestID] == 0 {
				c.violated("%s: event %s was acknowledged at %v and is not there", of.id, call.RequestID, call.End)
			}
		case evidence.Update:
			if got, done := c.updated(of, call.RequestID); !done || !bytes.Equal(got, call.Output) {
				c.violated("%s: update %s was answered with %s, and it came to %q", of.id, call.RequestID, call.Output, got)
			}
		case evidence.Wait:
			if of.state != call.State {
				c.violated("%s had ended %s at %v and is %s", of.id, call.State, call.End, of.state)
			}
		}
	}
}

// recorded counts, for each instance, the external events of each request ID.
func (c *trial) recorded() map[string]map[string]int {
	all := make(map[string]map[string]int)
	for _, h := range c.histories {
		if all[h.of.id] == nil {
			all[h.of.id] = make(map[string]int)
		}
		for _, event := range h.events {
			if external := event.GetExternalEvent(); external != nil {
				all[h.of.id][external.RequestId]++
			}
		}
	}
	return all
}

func (c *trial) once() {
	for id, requests := range c.recorded() {
		for request, n := range requests {
			if n > 1 {
				c.violated("%s: event %s is recorded %d times", id, request, n)
			}
		}
	}
}

// senders checks what cycles have come to: the numbers of each sender, from 0
// and without a gap.
func (c *trial) senders() {
	c.updates()
	c.entities()
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
				c.violated("%s took %s, and %s was next: %v", of.id, number, want, got)
				break
			}
			next[sender]++
		}
	}
}

// sessions checks the indexes that one client was shown: of stale reads from one
// process of a node, and of linearizable reads from whatever node.
func (c *trial) sessions() {
	type session struct {
		client int
		group  int
		node   string
		life   int
	}
	shown := make(map[session]uint64)
	for _, call := range c.record.Calls { // those of one client are in order
		if call.Kind != evidence.Read && call.Kind != evidence.Get || call.Outcome != evidence.Acked {
			continue
		}
		s := session{client: call.Client, group: c.groupOf(call.Instance)}
		if call.Stale {
			s.node, s.life = call.Node, call.Life
		}
		if call.AppliedIndex < shown[s] {
			c.violated("client %d was shown index %d and then, by %s at %v, %d", call.Client, shown[s], call.Node, call.End, call.AppliedIndex)
		}
		shown[s] = max(shown[s], call.AppliedIndex)
	}
}

func (c *trial) payloads() {
	sent := make(map[string]json.RawMessage)
	for _, call := range c.record.Calls {
		if call.RequestID != "" {
			sent[call.RequestID] = call.Input
		}
	}
	for _, h := range c.histories {
		for _, event := range h.events {
			external, started := event.GetExternalEvent(), event.GetOrchestrationStarted()
			switch {
			case external != nil:
				c.expectPayload(h, sent[external.RequestId], external.GetData().GetData())
			case started != nil && h.isBegunByCall():
				c.expectPayload(h, sent[started.RequestId], started.GetInput().GetData())
			}
		}
	}
	for _, call := range c.record.Calls {
		if of := c.instances[call.Instance]; call.Kind == evidence.Wait && call.State == "completed" && of.exists() {
			c.checkOutput(of, call)
		}
	}
}

func (c *trial) expectPayload(h *history, want, got []byte) {
	if !bytes.Equal(want, got) {
		c.violated("%v: %.100q was sent, %.100q is recorded", h, want, got)
	}
}

// checkOutput works out what an instance must come to from what went in.
func (c *trial) checkOutput(of *instance, call evidence.Call) {
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
		return // those of cycles and tallies are judged by S15
	}
	if encoded, err := json.Marshal(want); err != nil || !bytes.Equal(encoded, call.Output) {
		c.violated("%s came to %.100s; want %.100s", of.id, call.Output, encoded)
	}
}

func (c *trial) purged() {
	for i := range c.record.Replicas {
		r := &c.record.Replicas[i]
		if r.Stale && !r.Whole {
			continue // it may be of before
		}
		for _, told := range r.Instances {
			if of := c.instances[told.ID]; of != nil && of.purge == evidence.Acked && of.purgedAt < r.Begin {
				c.violated("%s was purged at %v, and %s has it at %v", told.ID, of.purgedAt, r.Node, r.End)
			}
		}
	}
	for _, call := range c.record.Calls {
		of := c.instances[call.Instance]
		if of != nil && of.purge == evidence.Acked && call.Begin > of.purgedAt && !call.Stale && call.Outcome == evidence.Acked {
			c.violated("%s was purged at %v, and a %s was acknowledged at %v", call.Instance, of.purgedAt, call.Kind, call.End)
		}
	}
}

func (c *trial) hostsSurvive() {
	for _, exit := range c.record.Exits {
		if exit.Forced {
			c.violated("process %d of %s was asked to stop and did not; it was killed at %v", exit.Life, exit.Node, exit.At)
		}
		if !exit.Wanted {
			c.violated("process %d of %s ended by itself at %v: %s", exit.Life, exit.Node, exit.At, exit.Status)
		}
	}
}
