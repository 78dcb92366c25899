package check

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/tenuto-dev/tenuto/internal/chaos/host"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// messagePrefix begins the request IDs of messages between instances.
const messagePrefix = "tenuto.send/"

// A message is what one instance sends to another one.
type message struct {
	from      *history
	eventID   uint64 // of its MessageSent
	sent      *journalpb.MessageSent
	delivered bool
	rejected  bool
}

// messages returns all messages, by the request ID under which the receiver records them.
func (c *checker) messages() map[string]*message {
	all := make(map[string]*message)
	for _, h := range c.histories {
		for _, event := range h.events {
			if sent := event.GetMessageSent(); sent != nil {
				hash := sha256.Sum256([]byte(h.operationRef(event.EventId).Key()))
				all[messagePrefix+hex.EncodeToString(hash[:16])] = h.message(event.EventId, sent)
			}
		}
	}
	return all
}

// message returns a message with its outcome.
func (h *history) message(eventID uint64, sent *journalpb.MessageSent) *message {
	m := &message{from: h, eventID: eventID, sent: sent}
	for _, event := range h.events[eventID:] {
		if event.SourceEventId == eventID {
			m.delivered = m.delivered || event.GetMessageDelivered() != nil
			m.rejected = m.rejected || event.GetMessageRejected() != nil
		}
	}
	return m
}

// checkMessages checks that a delivered message is recorded once, by its receiver, and a rejected
// one never. A cancellation that changes nothing is delivered without a record.
func (c *checker) checkMessages() {
	sent, recorded := c.messages(), make(map[string]int)
	canceled := make(map[string]bool)
	for _, h := range c.histories {
		for _, event := range h.events {
			id := event.InputRequestID()
			if event.GetOrchestrationCancelRequested() != nil {
				canceled[h.instance.id] = true
			}
			if !strings.HasPrefix(id, messagePrefix) {
				continue
			}
			recorded[id]++
			if m := sent[id]; m == nil || m.sent.Instance != h.instance.id {
				c.addViolation("%v: event %d is a message that no instance has sent to it (request %q)", h, event.EventId, id)
			}
		}
	}
	for id, m := range sent {
		n := recorded[id]
		switch {
		case m.rejected && n > 0:
			c.addViolation("%v: message %d was rejected, but %s has recorded it", m.from, m.eventID, m.sent.Instance)
		case n > 1:
			c.addViolation("%v: message %d is recorded %d times by %s", m.from, m.eventID, n, m.sent.Instance)
		case m.delivered && n == 0 && (m.sent.Event != nil || !canceled[m.sent.Instance]):
			c.addViolation("%v: message %d was delivered, but %s has not recorded it", m.from, m.eventID, m.sent.Instance)
		}
	}
	c.checkMessageCounts(sent)
}

// checkMessageCounts compares the outputs of senders with the outcomes in their histories, and the
// messages with those that the input asks for.
func (c *checker) checkMessageCounts(sent map[string]*message) {
	counts := make(map[string]host.SenderOutput)
	for _, m := range sent {
		n := counts[m.from.instance.id]
		if m.delivered {
			n.Delivered++
		}
		if m.rejected {
			n.Rejected++
		}
		counts[m.from.instance.id] = n
	}
	for _, of := range c.instances {
		if !of.exists() || of.name() != host.Sender {
			continue
		}
		first, completed := of.executions[0], of.last().GetOrchestrationCompleted()
		if completed == nil {
			continue // L2 checks that it ends
		}
		var in host.SenderInput
		var out host.SenderOutput
		if !c.decode(first, first.events[0].GetOrchestrationStarted().GetInput(), &in) || !c.decode(first, completed.Output, &out) {
			continue
		}
		want := len(in.Receivers) * (in.Messages + 1)
		if in.Cancel != "" {
			want++
		}
		if out != counts[of.id] || out.Delivered+out.Rejected != want {
			c.addViolation("%s returned %+v; its history has %+v of %d messages", of.id, out, counts[of.id], want)
		}
	}
}

// countMessages counts the outcomes of messages, and those that crossed partitions.
func (c *checker) countMessages(n map[string]int) {
	for _, m := range c.messages() {
		if m.delivered {
			n[countDelivered]++
		}
		if m.rejected {
			n[countRejected]++
		}
		if m.delivered && c.partitionOf(m.from.instance.id) != c.partitionOf(m.sent.Instance) {
			n[countMessagesCrossed]++
		}
	}
}
