package engine

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// An identity is what never changes in an execution after its first event.
type identity struct {
	host.ID
	name, version string // of the orchestration
	requestID     string
	parent        *journalpb.OperationRef
	incarnation   uint64
	startedAt     int64  // timestamp of OrchestrationStarted
	protocol3     bool   // the execution began under protocol 3 or later
	payloadMax    uint32 // in bytes of JSON; 0: not recorded
	options       *runOptions
}

// runOptions are what only some runs have. They are apart, because every execution in memory has
// an identity.
type runOptions struct {
	tags           map[string]string
	headers        []*journalpb.Header
	summary, trace string
	startAt        int64                  // when the body begins, Unix nanoseconds; 0: at once
	deadline       int64                  // in Unix nanoseconds; 0: none
	retry          *journalpb.RetryPolicy // nil: a failure is not retried
	retryInput     *journalpb.Payload     // for the next attempt; nil without retry
	failedAttempts uint32                 // before this execution
	deadlineTimer  *promise               // that cancels the run at the deadline; nil if it is not started
	copied         copiedParts
}

// copiedParts are the parts of a history that other executions have recorded first, in order.
type copiedParts struct {
	parts  []*journalpb.CopiedPart
	left   int       // how many of them the code has left
	leftAt time.Time // of the last event of the last of these
	kept   int       // bytes of the external events that the copies have kept
}

// next returns the part that the code is in; nil if it is not in a copied part.
func (c *copiedParts) next() *journalpb.CopiedPart {
	if c.left == len(c.parts) {
		return nil
	}
	return c.parts[c.left]
}

// of returns the part that an event belongs to; nil if it is not copied.
func (c *copiedParts) of(eventID uint64) *journalpb.CopiedPart {
	for _, part := range c.parts {
		if eventID <= part.UpTo {
			return part
		}
	}
	return nil
}

// cuts reports whether a call of the code is the first that is not copied, although the step that
// makes it was begun by a copied event. eventID is that of the call, and end the last event of the
// history.
func (c *copiedParts) cuts(eventID, end uint64) bool {
	n := len(c.parts)
	return n > 0 && eventID > c.parts[n-1].UpTo && end <= c.parts[n-1].UpTo+1
}

// noOptions is shared by the runs without options. It is never changed.
var noOptions runOptions

// optionsOf returns the options that the first event of an execution holds.
func optionsOf(started *journalpb.OrchestrationStarted) *runOptions {
	if len(started.Tags)+len(started.Headers)+len(started.Summary)+len(started.Trace) == 0 &&
		started.StartAt == 0 && started.Deadline == 0 && started.Retry == nil && started.Attempt == 0 && len(started.Copied) == 0 {
		return &noOptions
	}
	o := &runOptions{
		tags: started.Tags, headers: started.Headers, summary: started.Summary, trace: started.Trace,
		startAt: started.StartAt, deadline: started.Deadline, retry: started.Retry, failedAttempts: started.Attempt,
		copied: copiedParts{parts: started.Copied},
	}
	if o.retry != nil {
		o.retryInput = started.Input
	}
	return o
}

// start takes what the first event holds.
func (id *identity) start(started *journalpb.OrchestrationStarted, timestamp int64) {
	id.name, id.version = started.Name, started.Version
	id.requestID, id.parent, id.incarnation = started.RequestId, started.Parent, started.Incarnation
	id.protocol3 = started.Incarnation != 0 || started.CountsAllPayloads
	id.payloadMax = uint32(min(started.PayloadMax, math.MaxUint32))
	id.startedAt, id.options = timestamp, optionsOf(started)
}

// attempt returns the number of the attempt that the execution is or belongs to, from 1.
func (id *identity) attempt() int { return int(id.options.failedAttempts) + 1 }

// recorder returns which run has recorded an event of that ID first: this one, unless the event is
// copied.
func (id *identity) recorder(eventID uint64) (of host.ID, incarnation uint64) {
	if part := id.options.copied.of(eventID); part != nil {
		return host.ID{Instance: part.Instance, Number: part.Execution}, part.Incarnation
	}
	return id.ID, id.incarnation
}

// codeRecorder returns which run has recorded first what the code does now.
func (id *identity) codeRecorder() (of host.ID, incarnation uint64) {
	if part := id.options.copied.next(); part != nil {
		return id.recorder(part.UpTo)
	}
	return id.ID, id.incarnation
}

// isReceiver reports whether a message is for this execution. Messages for purged incarnations and
// earlier executions may still arrive.
func (id *identity) isReceiver(message Message) bool {
	if message.Execution == 0 {
		return message.Incarnation == 0 || message.Incarnation == id.incarnation
	}
	return message.Execution == id.Number && message.Incarnation == id.incarnation
}

// assignChildID derives the ID of a child or chained instance that has none from the event_id of
// the event that schedules it.
func (id *identity) assignChildID(event *journalpb.Event, eventID uint64) {
	switch body := event.Body.(type) {
	case *journalpb.Event_SubOrchestrationScheduled:
		body.SubOrchestrationScheduled.Instance = id.childID(body.SubOrchestrationScheduled.Instance, eventID)
	case *journalpb.Event_OrchestrationChained:
		body.OrchestrationChained.Instance = id.childID(body.OrchestrationChained.Instance, eventID)
	}
}

// childID returns the given ID, or the ID derived from the event that schedules the instance. A
// derived ID that is too long is shortened to a prefix and a hash, except in instances that began
// before protocol 3.
func (id *identity) childID(given string, eventID uint64) string {
	if given != "" {
		return given
	}
	derived := id.derivedID(eventID)
	if len(derived) <= idMax || id.incarnation == 0 {
		return derived
	}
	hash := sha256.Sum256([]byte(derived))
	short := "::" + hex.EncodeToString(hash[:16])
	return derived[:idMax-len(short)] + short
}

// derivedID returns the derived ID without shortening it.
func (id *identity) derivedID(eventID uint64) string {
	of, incarnation := id.recorder(eventID)
	if incarnation == 0 {
		return fmt.Sprintf("%s::%d.%d", of.Instance, of.Number, eventID)
	}
	return fmt.Sprintf("%s::%s.%d.%d", of.Instance, journalpb.IncarnationText(incarnation), of.Number, eventID)
}

// isChildID accepts a derived ID as recorded, shortened or not.
func (id *identity) isChildID(recorded, given string, eventID uint64) bool {
	return recorded == id.childID(given, eventID) || given == "" && recorded == id.derivedID(eventID)
}

// checkChildID checks an ID from orchestration code. Executions that began before protocol 3 only
// require UTF-8.
func (id *identity) checkChildID(given string) error {
	switch {
	case given == "" || ValidInstanceID(given) || !id.protocol3 && utf8.ValidString(given):
		return nil
	case !id.protocol3:
		return fmt.Errorf("tenuto: child ID %q is not UTF-8", truncate(given))
	}
	return invalidID("option ChildID", given)
}

// invalidID says that an instance ID is not valid; see [ValidInstanceID].
func invalidID(field, given string) error {
	return &replay.InvalidError{Field: field, Reason: fmt.Sprintf("%q is not 1 to %d of A-Z a-z 0-9 . _ : @ / + -", truncate(given), idMax)}
}

// canceledError returns the cause for a request to cancel the instance.
func (id *identity) canceledError(reason string) error {
	canceled := &replay.CanceledError{Reason: reason}
	canceled.Host().Legacy = !id.protocol3
	return canceled
}

// codecError adds the event's ID and type to an error of the codec.
func (id *identity) codecError(event *journalpb.Event, err error) error {
	return fmt.Errorf("event %d of %s/%d, %s: %w", event.EventId, id.Instance, id.Number, event.Type(), err)
}

// newRandom returns the source of random numbers that is the same on every replay.
func (id *identity) newRandom() *rand.Rand {
	of, incarnation := id.codeRecorder()
	hash := sha256.New()
	fmt.Fprintf(hash, "%s\x00%d\x00%d", of.Instance, of.Number, id.startedAt)
	if incarnation != 0 {
		fmt.Fprintf(hash, "\x00%d", incarnation)
	}
	seed := hash.Sum(nil)
	return rand.New(rand.NewPCG(binary.LittleEndian.Uint64(seed), binary.LittleEndian.Uint64(seed[8:])))
}
