package state

import (
	"errors"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// CopyBytesMax is the maximum size in bytes of a copied history.
const CopyBytesMax = 64 << 20

// The maxima of the external events that a copy keeps, in events and in bytes. They arrive at once,
// and a turn that continues the run as new repeats them twice in an append, which is at most 4 MiB.
// They are constants, because all replicas must refuse the same copies.
const (
	CopyKeptEventsMax = 10_000
	CopyKeptBytesMax  = 1 << 20
	// CopyLaterBytesMax is the maximum of the events that are searched for them.
	CopyLaterBytesMax = 128 << 20
)

// updateNamePrefix begins the names of the external events that are updates; see
// engine.UpdatePrefix.
const updateNamePrefix = "tenuto.update/"

// The field numbers that a copy reads and writes.
const (
	fieldEventOrigin = 4

	fieldStartedInput       = 3
	fieldStartedParent      = 4
	fieldStartedRequestID   = 7
	fieldStartedIncarnation = 13
	fieldStartedByParent    = 14
	fieldStartedHorizon     = 17
	fieldStartedDeadline    = 19
	fieldStartedCopied      = 28

	fieldPartInstance    = 1
	fieldPartExecution   = 2
	fieldPartIncarnation = 3
	fieldPartUpTo        = 4

	fieldCopiedSource   = 1
	fieldCopiedInbox    = 2
	fieldCopiedDeadline = 3

	fieldCopyOrigin = 13
	fieldCopyInput  = 14

	fieldTerminatedReason = 1
)

// copyCommand is a decoded CopyHistory. read adds what it copies. All events are encoded by hand,
// because replicas of different builds must write the same bytes.
type copyCommand struct {
	message       *journalpb.CopyHistory
	origin, input []byte // encoded; nil if absent

	events  [][]byte // those up to the last one to copy; the first is that of the new run
	inbox   [][]byte // bodies of the external events to keep
	bytes   int      // of events
	kept    int      // bytes of inbox
	later   int      // bytes of the events that were read for inbox
	refused CopyReason
	isRead  bool // unless it is refused whatever the source is
	// Of the last event to copy.
	timestamp int64
	// Of the source.
	incarnation uint64
	clock       int64 // how long the run had until its deadline when the execution began; 0: no deadline
}

func (c *copyCommand) parse(b []byte) bool {
	*c = copyCommand{message: &journalpb.CopyHistory{}}
	return proto.Unmarshal(b, c.message) == nil && eachField(b, func(number protowire.Number, wire protowire.Type, value []byte) {
		switch {
		case wire != protowire.BytesType:
		case number == fieldCopyOrigin:
			c.origin, _ = protowire.ConsumeBytes(value)
		case number == fieldCopyInput:
			c.input, _ = protowire.ConsumeBytes(value)
		}
	}) && c.message.Target != "" && c.message.Source != "" && c.message.UpTo > 0 && c.message.SourceExecution > 0
}

// read reads the source. Only the goroutine that applies changes histories, so what is read stays
// valid until the command is applied. The error is a *StoreError.
func (c *copyCommand) read(from *reads) error {
	s := c.message
	h, err := from.history(s.Source, s.SourceExecution)
	switch {
	case errors.Is(err, ErrNotFound):
		c.refused = CopyNoSource
		return nil
	case err != nil:
		return err
	case h.last < s.UpTo:
		c.refused = CopyBeyondEnd
		return nil
	}
	last := 0 // type of the last event
	for id, encoded := range h.eventsFrom(1, &err) {
		if id > s.UpTo && !s.KeepEvents || !c.add(id, encoded, &last) {
			return err
		}
	}
	for number := s.SourceExecution + 1; err == nil && last == journalpb.TypeOrchestrationContinuedAsNew; number++ {
		last, err = c.readLater(from, number)
	}
	return err
}

// readLater reads the events to keep of a later execution of the source's run. Those that it has
// taken over from the execution before are in that one. It returns the type of the last event, 0 if
// the copy is refused.
func (c *copyCommand) readLater(from *reads, number uint64) (last int, err error) {
	h, err := from.history(c.message.Source, number)
	if errors.Is(err, ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for _, encoded := range h.eventsFrom(1, &err) {
		if !c.addLater(encoded, &last) {
			return 0, err
		}
	}
	return last, err
}

// addLater keeps what an event after the last one to copy holds. It reports false if the copy is
// refused.
func (c *copyCommand) addLater(encoded []byte, last *int) bool {
	e, _ := parseEventFields(encoded) // fold has decoded it
	*last = e.eventType
	if c.later += len(encoded); c.later > CopyLaterBytesMax {
		c.refused = CopyKeptTooLarge
	}
	c.keep(&e)
	return c.refused == ""
}

// add adds the next event of the source, and sets last to its type. It reports false if the copy is
// refused.
func (c *copyCommand) add(id uint64, encoded []byte, last *int) bool {
	if id > c.message.UpTo {
		return c.addLater(encoded, last)
	}
	e, _ := parseEventFields(encoded) // fold has decoded it
	switch {
	case id == 1:
		c.addStart(encoded, &e)
	case journalpb.IsTerminal(e.eventType):
		c.refused = CopyEnded
	default:
		c.events, c.bytes = append(c.events, encoded), c.bytes+len(encoded)
	}
	c.timestamp = e.timestamp
	if c.refused == "" && c.bytes > CopyBytesMax {
		c.refused = CopyTooLarge
	}
	return c.refused == ""
}

// keep keeps the external events in an event after the last one to copy. Updates are calls: their
// callers have the answers of the old run.
func (c *copyCommand) keep(e *eventFields) {
	keepBody := func(body []byte) {
		name, _ := stringField(body, fieldExternalName)
		if len(name) < len(updateNamePrefix) || name[:len(updateNamePrefix)] != updateNamePrefix {
			c.inbox, c.kept = append(c.inbox, body), c.kept+len(body)
		}
		if len(c.inbox) > CopyKeptEventsMax || c.kept > CopyKeptBytesMax {
			c.refused = CopyKeptTooLarge
		}
	}
	switch e.eventType {
	case journalpb.TypeExternalEvent:
		keepBody(e.body)
	case journalpb.TypeHistoryCopied:
		eachInboxEvent(e.body, keepBody)
	}
}

// eachInboxEvent visits the bodies of the external events in an encoded HistoryCopied.
func eachInboxEvent(copied []byte, visit func(body []byte)) bool {
	return eachField(copied, func(number protowire.Number, wire protowire.Type, value []byte) {
		if number == fieldCopiedInbox && wire == protowire.BytesType {
			body, _ := protowire.ConsumeBytes(value)
			visit(body)
		}
	})
}

// addStart adds OrchestrationStarted with the identity of the new run, without a parent, and with
// the parts that are copied.
func (c *copyCommand) addStart(encoded []byte, e *eventFields) {
	var body []byte
	var parts [][]byte
	deadline := int64(0)
	eachField(e.body, func(number protowire.Number, wire protowire.Type, value []byte) {
		switch number {
		case fieldStartedParent, fieldStartedRequestID, fieldStartedByParent, fieldStartedHorizon:
			return
		case fieldStartedIncarnation:
			c.incarnation, _ = protowire.ConsumeVarint(value)
			return
		case fieldStartedCopied:
			part, _ := protowire.ConsumeBytes(value)
			parts = append(parts, part)
			return
		case fieldStartedInput:
			if c.input != nil {
				return
			}
		case fieldStartedDeadline:
			v, _ := protowire.ConsumeVarint(value)
			deadline = int64(v)
		}
		body = append(protowire.AppendTag(body, number, wire), value...)
	})
	switch {
	case c.message.SourceIncarnation != 0 && c.incarnation != c.message.SourceIncarnation:
		c.refused = CopySourceChanged
	case c.incarnation == 0 && c.message.UpTo > 1:
		c.refused = CopyOldRun
	case c.input != nil && c.message.UpTo > 1:
		c.refused = CopyOtherInput
	}
	if deadline != 0 {
		c.clock = max(deadline-e.timestamp, 1)
	}
	if c.input != nil {
		body = protowire.AppendBytes(protowire.AppendTag(body, fieldStartedInput, protowire.BytesType), c.input)
	}
	body = appendText(body, fieldStartedRequestID, c.message.RequestId)
	body = appendUint(body, fieldStartedIncarnation, c.message.Incarnation)
	body = appendUint(body, fieldStartedHorizon, c.message.RequestHorizon)
	for _, part := range c.parts(parts) {
		body = protowire.AppendBytes(protowire.AppendTag(body, fieldStartedCopied, protowire.BytesType), part)
	}
	origin, _ := bytesField(encoded, fieldEventOrigin)
	started := encodeEvent(1, e.timestamp, origin, journalpb.TypeOrchestrationStarted, body)
	c.events, c.bytes = append(c.events, started), c.bytes+len(started)
}

// parts returns the encoded parts of the copy, given those of the source.
func (c *copyCommand) parts(ofSource [][]byte) (parts [][]byte) {
	upTo := c.message.UpTo
	for _, encoded := range ofSource {
		var part journalpb.CopiedPart
		_ = proto.Unmarshal(encoded, &part) // fold has decoded it
		if part.UpTo >= upTo {
			return append(parts, appendPart(nil, part.Instance, part.Execution, part.Incarnation, upTo))
		}
		parts = append(parts, encoded)
	}
	return append(parts, appendPart(nil, c.message.Source, c.message.SourceExecution, c.incarnation, upTo))
}

func appendPart(b []byte, instance string, execution, incarnation, upTo uint64) []byte {
	b = appendText(b, fieldPartInstance, instance)
	b = appendUint(b, fieldPartExecution, execution)
	b = appendUint(b, fieldPartIncarnation, incarnation)
	return appendUint(b, fieldPartUpTo, upTo)
}

// encodeEvent encodes an event. origin is encoded, nil for none.
func encodeEvent(id uint64, timestamp int64, origin []byte, eventType int, body []byte) []byte {
	b := appendUint(make([]byte, 0, len(body)+len(origin)+32), fieldEventID, id)
	b = appendUint(b, fieldTimestamp, uint64(timestamp))
	if origin != nil {
		b = protowire.AppendBytes(protowire.AppendTag(b, fieldEventOrigin, protowire.BytesType), origin)
	}
	return protowire.AppendBytes(protowire.AppendTag(b, protowire.Number(eventType), protowire.BytesType), body)
}

// bytesField returns the last value of a field of an encoded message.
func bytesField(message []byte, field protowire.Number) (value []byte, ok bool) {
	eachField(message, func(number protowire.Number, wire protowire.Type, b []byte) {
		if number == field && wire == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(b)
			ok = true
		}
	})
	return value, ok
}

// check returns why the copy is refused. in is the target, and known says that it exists.
func (c *copyCommand) check(in *instance, known bool) error {
	s := c.message
	switch {
	case s.TargetIncarnation != 0 && in.incarnation != s.TargetIncarnation:
		return c.refusal(CopySourceChanged, 0)
	case known && s.Target != s.Source:
		return &CopyError{Instance: s.Target, Execution: in.execution, EventID: s.UpTo, Reason: CopyTargetExists}
	case in.isRunning() && in.parent != nil:
		return &CopyError{Instance: s.Target, Execution: in.execution, EventID: s.UpTo, Reason: CopyHasParent}
	case c.refused != "":
		return c.refusal(c.refused, 0)
	}
	return nil
}

// checkOpen returns why the operations that are open at the end of the copy do not permit it.
func (c *copyCommand) checkOpen(open operations) error {
	for i := range open {
		switch open[i].eventType {
		case journalpb.TypeSubOrchestrationScheduled:
			return c.refusal(CopyOpenChild, open[i].id)
		case journalpb.TypeMessageSent:
			return c.refusal(CopyOpenMessage, open[i].id)
		}
	}
	return nil
}

func (c *copyCommand) refusal(reason CopyReason, operation uint64) error {
	return &CopyError{Instance: c.message.Source, Execution: c.message.SourceExecution, EventID: c.message.UpTo, Reason: reason, Operation: operation}
}

// segments returns what is appended to the target: its termination, if it runs, and the copy.
func (c *copyCommand) segments(in *instance) (segments []segment) {
	if in.isRunning() {
		reason := appendText(nil, fieldTerminatedReason, journalpb.CopiedReason)
		ended := encodeEvent(in.last+1, max(c.message.Timestamp, in.updated), c.origin, journalpb.TypeOrchestrationTerminated, reason)
		segments = append(segments, segment{execution: in.execution, first: in.last + 1, events: [][]byte{ended}, copied: c})
	}
	var body []byte
	body = protowire.AppendTag(body, fieldCopiedSource, protowire.BytesType)
	body = protowire.AppendBytes(body, appendPart(nil, c.message.Source, c.message.SourceExecution, c.incarnation, c.message.UpTo))
	for _, event := range c.inbox {
		body = protowire.AppendBytes(protowire.AppendTag(body, fieldCopiedInbox, protowire.BytesType), event)
	}
	timestamp := max(c.message.Timestamp, c.timestamp)
	if c.clock != 0 {
		body = appendUint(body, fieldCopiedDeadline, uint64(timestamp+c.clock))
	}
	copied := encodeEvent(c.message.UpTo+1, timestamp, c.origin, journalpb.TypeHistoryCopied, body)
	return append(segments, segment{execution: in.execution + 1, first: 1, events: append(slices.Clip(c.events), copied), copied: c})
}

// applyHistoryCopied delivers the kept events, sets the creation time and begins the timeouts of
// open operations again.
func (i *indexEntry) applyHistoryCopied(e eventFields) (reason string) {
	var copied journalpb.HistoryCopied
	if proto.Unmarshal(e.body, &copied) != nil {
		return "HistoryCopied cannot be decoded"
	}
	for _, event := range copied.Inbox {
		i.deliver(event.Name)
	}
	i.copiedEvent, i.created = e.id, e.timestamp
	for n := range i.open {
		i.open[n].since = e.timestamp
	}
	return ""
}
