package state

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/shorttest"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

func applyProtocol(t testing.TB, m *Machine, protocol uint32) {
	t.Helper()
	change := &journalpb.MetadataChange{Epoch: m.Epoch(), Protocol: protocol}
	if _, err := applyRecord(m, must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_MetadataChange{MetadataChange: change}}))); err != nil {
		t.Fatal(err)
	}
}

// newCopy returns a copy for the present state of its target.
func newCopy(m *Machine, source string, execution, upTo uint64, target string, incarnation uint64) *journalpb.CopyHistory {
	known, _ := m.Instance(target)
	return &journalpb.CopyHistory{
		Epoch: m.Epoch(), Source: source, SourceExecution: execution, UpTo: upTo, Target: target,
		Execution: known.GetExecution(), LastEventId: known.GetLastEventId(), Incarnation: incarnation,
		RequestId: "request-" + target, RequestHorizon: 77, Timestamp: 1_000_000, KeepEvents: true,
		Origin: &journalpb.Origin{Principal: "client ops", Reason: "incident 4711"},
	}
}

func applyCopy(m *Machine, c *journalpb.CopyHistory) error {
	_, err := applyRecord(m, must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_CopyHistory{CopyHistory: c}})))
	return err
}

func encodedEvents(t testing.TB, m *Machine, instance string, execution uint64) (events [][]byte) {
	t.Helper()
	h, err := m.history(instance, execution)
	if err != nil {
		t.Fatal(err)
	}
	for _, encoded := range h.eventsFrom(1, &err) {
		events = append(events, encoded)
	}
	if err != nil {
		t.Fatal(err)
	}
	return events
}

func lastEvent(t testing.TB, m *Machine, instance string) *journalpb.Event {
	t.Helper()
	known, _ := m.Instance(instance)
	return must(m.Event(instance, known.GetExecution(), known.GetLastEventId()))
}

// openAt returns the operations that are open after the first events of a history, by the rules of
// appends alone, and whether a child or a message is among them.
func openAt(t testing.TB, events [][]byte) (open []string, transferable bool) {
	t.Helper()
	m := newMachine(t)
	applyProtocol(t, m, NewestProtocol)
	if err := applyAppend(m, "x", &journalpb.Segment{Execution: 1, FirstEventId: 1, Events: events}); err != nil {
		t.Fatal(err)
	}
	transferable = true
	for op := range m.InstanceOperations("x") {
		open = append(open, fmt.Sprintf("%d %d %d", op.Ref.EventId, op.Kind, op.FireAt))
		transferable = transferable && op.Kind != journalpb.TypeSubOrchestrationScheduled && op.Kind != journalpb.TypeMessageSent
	}
	return open, transferable
}

// A copier makes random copies in the log of a random model.
type copier struct {
	r           *rand.Rand
	m           *Machine
	incarnation uint64
	targets     []string
	copies      int
	rejections  int
}

// step copies a random part of a random instance to a new instance, or to one that was copied
// before, and checks the outcome.
func (c *copier) step(t testing.TB, sources []string) {
	t.Helper()
	source := slices.Concat(sources, c.targets)[c.r.IntN(len(sources)+len(c.targets))]
	known, ok := c.m.Instance(source)
	if !ok {
		return
	}
	events := encodedEvents(t, c.m, source, known.Execution)
	upTo := 1 + c.r.Uint64N(uint64(len(events)))
	target := fmt.Sprintf("copy-%d", len(c.targets))
	if slices.Contains(c.targets, source) && c.r.IntN(2) == 0 {
		target = source
	}
	c.incarnation++
	copied := newCopy(c.m, source, known.Execution, upTo, target, c.incarnation)
	copied.KeepEvents = c.r.IntN(2) == 0
	before := dump(t, c.m)
	wasRunning := known.Status == journalpb.Status_STATUS_RUNNING && target == source
	err := applyCopy(c.m, copied)
	if reason := c.expectedRefusal(t, events, upTo); reason != "" {
		c.rejections++
		if refused, ok := errors.AsType[*CopyError](err); !ok || refused.Reason != reason {
			t.Fatalf("copy of %s up to %d: %v, want %q", source, upTo, err, reason)
		}
		if after := dump(t, c.m); after != before {
			t.Fatalf("a rejected copy has changed the state from\n\t%s\nto\n\t%s", before, after)
		}
		return
	}
	if err != nil {
		t.Fatalf("copy of %s up to %d: %v", source, upTo, err)
	}
	c.copies++
	if target != source {
		c.targets = append(c.targets, target)
	}
	c.check(t, copied, events, wasRunning)
}

// expectedRefusal says by rules of its own why a copy must be refused, "" if it must not.
func (c *copier) expectedRefusal(t testing.TB, events [][]byte, upTo uint64) CopyReason {
	first, last := new(journalpb.Event), new(journalpb.Event)
	if err := errors.Join(proto.Unmarshal(events[0], first), proto.Unmarshal(events[upTo-1], last)); err != nil {
		t.Fatal(err)
	}
	if first.GetOrchestrationStarted().Incarnation == 0 && upTo > 1 {
		return CopyOldRun
	}
	if journalpb.IsTerminal(last.TypeNumber()) {
		return CopyEnded
	}
	if _, transferable := openAt(t, events[:upTo]); !transferable {
		return CopyOpenChild
	}
	return ""
}

// check compares a copy with its source.
func (c *copier) check(t testing.TB, copied *journalpb.CopyHistory, source [][]byte, wasRunning bool) {
	t.Helper()
	known, _ := c.m.Instance(copied.Target)
	events := encodedEvents(t, c.m, copied.Target, known.Execution)
	if uint64(len(events)) != copied.UpTo+1 || known.Execution != copied.Execution+1 || known.Incarnation != copied.Incarnation ||
		known.RequestId != copied.RequestId || known.Status != journalpb.Status_STATUS_RUNNING || known.Parent != nil || known.FirstExecution != known.Execution {
		t.Fatalf("copy of %d events: %v with %d events", copied.UpTo, known, len(events))
	}
	for i := uint64(1); i < copied.UpTo; i++ {
		if !bytes.Equal(events[i], source[i]) {
			t.Fatalf("event %d of the copy is %x, of the source %x", i+1, events[i], source[i])
		}
	}
	want, _ := openAt(t, source[:copied.UpTo])
	var open []string
	for op := range c.m.InstanceOperations(copied.Target) {
		open = append(open, fmt.Sprintf("%d %d %d", op.Ref.EventId, op.Kind, op.FireAt))
		if op.Ref.Execution != known.Execution || op.Ref.Incarnation != copied.Incarnation || op.Attempt != nil || op.CopiedAt != known.CreatedAt {
			t.Fatalf("open after a copy: %v", op)
		}
	}
	marker := lastEvent(t, c.m, copied.Target)
	if len(marker.GetHistoryCopied().GetInbox()) == 0 && !slices.Equal(open, want) {
		t.Fatalf("open after a copy: %v, in the source at that event: %v", open, want)
	}
	if kept := len(marker.GetHistoryCopied().GetInbox()); kept > 0 != (copied.KeepEvents && countExternal(t, source[copied.UpTo:]) > 0) {
		t.Fatalf("%d events are kept: %v", kept, copied)
	}
	if wasRunning && must(c.m.Event(copied.Target, copied.Execution, copied.LastEventId+1)).GetOrchestrationTerminated().GetReason() != journalpb.CopiedReason {
		t.Fatal("the running execution is not terminated")
	}
	if !slices.ContainsFunc(slices.Collect(c.m.Unbegun()), func(in *journalpb.Instance) bool { return in.Instance == copied.Target }) {
		t.Fatal("a new leader would not find the copy")
	}
}

func countExternal(t testing.TB, events [][]byte) (n int) {
	for _, encoded := range events {
		event := new(journalpb.Event)
		if err := proto.Unmarshal(encoded, event); err != nil {
			t.Fatal(err)
		}
		if event.GetExternalEvent() != nil {
			n++
		}
		n += len(event.GetHistoryCopied().GetInbox())
	}
	return n
}

// newCopyLog is newRandomLog with copies.
func newCopyLog(t testing.TB, seed uint64, entries int) (*randomLog, *copier) {
	w := newModel(t, seed, func(testing.TB) *Machine { return New() })
	var records [][]byte
	recordedLogs[w.m] = &records
	defer delete(recordedLogs, w.m)
	s := &randomLog{dumps: []string{dump(t, w.m)}}
	applyEpoch(t, w.m)
	applyProtocol(t, w.m, NewestProtocol)
	c := &copier{r: w.r, m: w.m, incarnation: 1 << 20}
	var sources []string
	for _, in := range w.instances {
		sources = append(sources, in.instance)
	}
	for range entries {
		for range 1 + w.r.IntN(3) {
			w.step(t)
		}
		c.step(t, sources)
		s.entries = append(s.entries, records)
		s.dumps = append(s.dumps, dump(t, w.m))
		records = nil
	}
	return s, c
}

func TestCopy_RandomHistories(t *testing.T) {
	copies, rejections := 0, 0
	for seed := range uint64(max(shorttest.SequentialRounds(6), 3)) {
		s, c := newCopyLog(t, seed, 60)
		copies, rejections = copies+c.copies, rejections+c.rejections
		stored := openMachine(t, tinyOptions(vfs.NewMem()))
		for i := range s.entries {
			if !s.play(stored, i+1) {
				t.Fatal(stored.Err())
			}
			if !shorttest.Race || i%3 == 2 {
				s.check(t, stored, "in the store")
			}
		}
		// A replica that restores a snapshot in the middle, and applies the rest.
		half := len(s.entries) / 2
		first := New()
		s.play(first, half)
		var snapshot bytes.Buffer
		if _, err := first.Snapshot().WriteTo(&snapshot); err != nil {
			t.Fatal(err)
		}
		restored := New()
		if err := restored.Restore(&snapshot); err != nil {
			t.Fatal(err)
		}
		if err := restored.Advance(uint64(half), 1); err != nil {
			t.Fatal(err)
		}
		s.play(restored, len(s.entries))
		s.check(t, restored, "after a snapshot")
	}
	if copies < 20 || rejections < 20 {
		t.Fatalf("%d copies and %d rejections show too little", copies, rejections)
	}
}

// The bytes of a copy are part of the format: replicas of all builds must write them.
func TestCopy_Bytes(t *testing.T) {
	m := newMachine(t)
	applyProtocol(t, m, NewestProtocol)
	start := startedBy("p", 1, 2)
	start.GetOrchestrationStarted().Incarnation, start.GetOrchestrationStarted().Deadline = 5, 9000
	start.GetOrchestrationStarted().Tags = map[string]string{"k": "v"}
	update := externalEvent(updateNamePrefix + "u")
	if err := applyAppend(m, "a", segmentOf(1, 1, start, activity(), activityDone(2), timer(70), externalEvent("e"), update, completed())); err != nil {
		t.Fatal(err)
	}
	if err := applyCopy(m, newCopy(m, "a", 1, 4, "b", 6)); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"080110e907523e0a056368696c64120276311a090a077b226e223a317d32060a016b1201769801a8463a09726571756573742d62680688014de201090a0161100118052004",
		"080210ea07a201080a06636861726765",
		"080310eb071802aa01021001",
		"080410ec07ba01020846",
		"080510c0843d221b0a0a636c69656e74206f7073120d696e636964656e742034373131c202140a090a016110011805200412030a016518ffc23d",
	}
	for i, encoded := range encodedEvents(t, m, "b", 1) {
		if got := hex.EncodeToString(encoded); got != want[i] {
			t.Errorf("event %d: %s, want %s", i+1, got, want[i])
		}
	}
	copied := lastEvent(t, m, "b")
	if inbox := copied.GetHistoryCopied().GetInbox(); len(inbox) != 1 || inbox[0].Name != "e" {
		t.Errorf("kept: %v, want only the event e: an update is no event", inbox)
	}
	if got, want := copied.GetHistoryCopied().GetDeadline(), int64(1_000_000+9000-1001); got != want {
		t.Errorf("deadline %d, want %d", got, want)
	}
}

func TestCopy_Refused(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		begin := func(incarnation uint64) *journalpb.Event {
			start := started("a")
			start.GetOrchestrationStarted().Incarnation = incarnation
			return start
		}
		sent := &journalpb.Event{Body: &journalpb.Event_MessageSent{MessageSent: &journalpb.MessageSent{Instance: "z", Event: &journalpb.ExternalEvent{Name: "e"}}}}
		childStart := startedBy("p", 1, 2)
		childStart.GetOrchestrationStarted().Incarnation = 9
		old := applyCopy(m, newCopy(m, "a", 1, 1, "b", 6))
		var invalid *InvalidAppendError
		if !errors.As(old, &invalid) || !errors.Is(old, ErrProtocol) {
			t.Errorf("before protocol %d: %v", CopyProtocol, old)
		}
		applyProtocol(t, m, NewestProtocol)
		if err := errors.Join(
			applyAppend(m, "a", segmentOf(1, 1, begin(5), sent)),
			applyAppend(m, "child", segmentOf(1, 1, childStart, activity())),
			applyAppend(m, "parent", segmentOf(1, 1, begin(7), child("parent-child"))),
			applyAppend(m, "purged", segmentOf(1, 1, begin(8), completed())),
		); err != nil {
			t.Fatal(err)
		}
		must(purge(m, "purged"))
		otherInput := newCopy(m, "a", 1, 2, "b", 6)
		otherInput.Input = &journalpb.Payload{Data: []byte("1")}
		otherTarget := newCopy(m, "a", 1, 1, "a", 6)
		otherTarget.TargetIncarnation = 4
		otherSource := newCopy(m, "a", 1, 1, "b", 6)
		otherSource.SourceIncarnation = 4
		if refused, ok := errors.AsType[*CopyError](applyCopy(m, otherTarget)); !ok || refused.Reason != CopySourceChanged {
			t.Errorf("another target: %v, want %q", refused, CopySourceChanged)
		}
		for want, c := range map[CopyReason]*journalpb.CopyHistory{
			CopySourceChanged: otherSource,
			CopyNoSource:      newCopy(m, "purged", 1, 1, "b", 6),
			CopyBeyondEnd:     newCopy(m, "a", 1, 3, "b", 6),
			CopyOpenMessage:   newCopy(m, "a", 1, 2, "b", 6),
			CopyOpenChild:     newCopy(m, "parent", 1, 2, "b", 6),
			CopyHasParent:     newCopy(m, "child", 1, 2, "child", 10),
			CopyTargetExists:  newCopy(m, "a", 1, 1, "child", 10),
			CopyOtherInput:    otherInput,
		} {
			before := dumpIndex(m)
			if refused, ok := errors.AsType[*CopyError](applyCopy(m, c)); !ok || refused.Reason != want {
				t.Errorf("%v: %v, want %q", c, refused, want)
			}
			if after := dumpIndex(m); before != after {
				t.Errorf("%s: the state has changed from\n%s\nto\n%s", want, before, after)
			}
		}
		outdated := newCopy(m, "a", 1, 1, "a", 6)
		outdated.LastEventId--
		if conflict, ok := errors.AsType[*ConflictError](applyCopy(m, outdated)); !ok {
			t.Errorf("a copy made from an outdated view: %v", conflict)
		}
		for _, c := range []*journalpb.CopyHistory{outdated, otherTarget, newCopy(m, "a", 1, 1, "child", 10), newCopy(m, "a", 1, 1, "b", 6)} {
			var cmd command
			if err := cmd.parse(must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_CopyHistory{CopyHistory: c}}))); err != nil {
				t.Fatal(err)
			}
			if err := m.loadAndLock(&cmd); err != nil {
				t.Fatal(err)
			}
			m.mu.Unlock()
			if read, want := len(cmd.copy.events) > 0, c.Target == "b"; read != want {
				t.Errorf("%v: the source was read: %v, want %v", c, read, want)
			}
		}
		if err := applyCopy(m, newCopy(m, "a", 1, 1, "a", 4)); err == nil {
			t.Error("a smaller incarnation was accepted")
		}
		if err := applyCopy(m, newCopy(m, "child", 1, 2, "fork", 10)); err != nil {
			t.Errorf("a fork of a running child: %v", err)
		}
	})
}

// Kept events complete subscriptions, or are buffered, as if they had just arrived.
func TestCopy_KeptEventsArrive(t *testing.T) {
	m := newMachine(t)
	applyProtocol(t, m, NewestProtocol)
	start := started("a")
	start.GetOrchestrationStarted().Incarnation = 5
	if err := applyAppend(m, "a", segmentOf(1, 1, start, subscribed("e"), subscribed("e"), externalEvent("e"), externalEvent("f"))); err != nil {
		t.Fatal(err)
	}
	if err := applyCopy(m, newCopy(m, "a", 1, 3, "b", 6)); err != nil {
		t.Fatal(err)
	}
	if buffered := m.BufferedEvents("b"); len(buffered) != 1 || buffered["f"] != 1 {
		t.Errorf("buffered: %v", buffered)
	}
	var open []uint64
	for op := range m.InstanceOperations("b") {
		open = append(open, op.Ref.EventId)
	}
	if !slices.Equal(open, []uint64{3}) {
		t.Errorf("open: %v, want only the second subscription", open)
	}
}

func TestCopy_TooLarge(t *testing.T) {
	for _, c := range []struct {
		bytes int
		want  CopyReason
	}{{CopyBytesMax - 1000, ""}, {CopyBytesMax, CopyTooLarge}} {
		copied := copyCommand{message: &journalpb.CopyHistory{UpTo: 3}, bytes: c.bytes}
		encoded := must(proto.Marshal(activity()))
		if copied.add(2, encoded, new(int)) != (c.want == "") || copied.refused != c.want {
			t.Errorf("with %d bytes before: refused %q", c.bytes, copied.refused)
		}
	}
}

// Kept events arrive at once: they must fit into the buffer, and into an append that continues the
// run as new.
func TestCopy_KeptTooLarge(t *testing.T) {
	event := func(size int) *journalpb.Event {
		e := externalEvent("e")
		e.GetExternalEvent().Data = &journalpb.Payload{Data: bytes.Repeat([]byte("x"), size)}
		return e
	}
	for _, c := range []struct {
		name         string
		events, size int
		refused      bool
	}{{"many", CopyKeptEventsMax, 1, false}, {"too many", CopyKeptEventsMax + 1, 1, true}, {"large", 2, CopyKeptBytesMax/2 - 20, false}, {"too large", 2, CopyKeptBytesMax / 2, true}} {
		m := newMachine(t)
		applyProtocol(t, m, NewestProtocol)
		start := started("a")
		start.GetOrchestrationStarted().Incarnation = 5
		events := []*journalpb.Event{start}
		for range c.events {
			events = append(events, event(c.size))
		}
		if err := applyAppend(m, "a", segmentOf(1, 1, events...)); err != nil {
			t.Fatal(err)
		}
		refused, _ := errors.AsType[*CopyError](applyCopy(m, newCopy(m, "a", 1, 1, "b", 6)))
		if (refused != nil) != c.refused || refused != nil && refused.Reason != CopyKeptTooLarge {
			t.Errorf("%s: %v", c.name, refused)
		}
		dropped := newCopy(m, "a", 1, 1, "c", 7)
		dropped.KeepEvents = false
		if err := applyCopy(m, dropped); err != nil {
			t.Errorf("%s, dropped: %v", c.name, err)
		}
	}
}

// What one record makes every replica read is bounded.
func TestCopy_SearchIsBounded(t *testing.T) {
	encoded := must(proto.Marshal(activity()))
	for _, c := range []struct {
		before int
		want   CopyReason
	}{{CopyLaterBytesMax - len(encoded), ""}, {CopyLaterBytesMax, CopyKeptTooLarge}} {
		copied := copyCommand{message: &journalpb.CopyHistory{UpTo: 1, KeepEvents: true}, later: c.before}
		if copied.add(2, encoded, new(int)) != (c.want == "") || copied.refused != c.want {
			t.Errorf("after %d bytes: refused %q", c.before, copied.refused)
		}
	}
}

// Events of later executions of the run are kept, too, each once, and those of the next run are
// not.
func TestCopy_KeepsEventsOfLaterExecutions(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		applyProtocol(t, m, NewestProtocol)
		begin := func(incarnation uint64, inbox ...string) *journalpb.Event {
			start := started("a")
			start.GetOrchestrationStarted().Incarnation = incarnation
			for _, name := range inbox {
				start.GetOrchestrationStarted().Inbox = append(start.GetOrchestrationStarted().Inbox, &journalpb.ExternalEvent{Name: name})
			}
			return start
		}
		if err := errors.Join(
			applyAppend(m, "a", segmentOf(1, 1, begin(5), externalEvent("copied"), activity(), externalEvent("one"), continued()),
				segmentOf(2, 1, begin(5, "copied", "one"))),
			applyAppend(m, "a", segmentOf(2, 2, externalEvent("two"), externalEvent(updateNamePrefix+"u"), continued()),
				segmentOf(3, 1, begin(5, "copied", "one", "two"), externalEvent("three"), completed())),
			applyAppend(m, "a", segmentOf(4, 1, begin(6), externalEvent("four"), completed())),
		); err != nil {
			t.Fatal(err)
		}
		for execution, want := range [][]string{1: {"one", "two", "three"}, 2: {"two", "three"}, 3: {"three"}, 4: {"four"}} {
			if execution == 0 {
				continue
			}
			target, upTo := fmt.Sprint("b", execution), uint64(1)
			if execution == 1 {
				upTo = 2
			}
			if err := applyCopy(m, newCopy(m, "a", uint64(execution), upTo, target, 10)); err != nil {
				t.Fatal(err)
			}
			var kept []string
			for _, event := range lastEvent(t, m, target).GetHistoryCopied().GetInbox() {
				kept = append(kept, event.Name)
			}
			if !slices.Equal(kept, want) {
				t.Errorf("of execution %d: %q, want %q", execution, kept, want)
			}
		}
	})
}

// Those who wait for the end of a run learn that a copy has ended it.
func TestCopy_EndsWatchedRun(t *testing.T) {
	m := newMachine(t)
	applyProtocol(t, m, NewestProtocol)
	start := started("a")
	start.GetOrchestrationStarted().Incarnation = 5
	if err := applyAppend(m, "a", segmentOf(1, 1, start)); err != nil {
		t.Fatal(err)
	}
	ended, cancel := m.WatchEnd("a")
	defer cancel()
	if err := applyCopy(m, newCopy(m, "a", 1, 1, "a", 6)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	default:
		t.Error("not signaled")
	}
}

// The record has the same size whatever it copies.
func TestCopy_RecordIsSmall(t *testing.T) {
	m := newStoredMachine(t)
	applyProtocol(t, m, NewestProtocol)
	start := started("a")
	start.GetOrchestrationStarted().Incarnation = 5
	events := []*journalpb.Event{start}
	for len(events) < 10_000 {
		events = append(events, activity(), activityDone(uint64(len(events)+1)))
	}
	for first := 0; first < len(events); first += 1000 {
		if err := applyAppend(m, "order-17", segmentOf(1, uint64(first+1), events[first:min(first+1000, len(events))]...)); err != nil {
			t.Fatal(err)
		}
	}
	c := newCopy(m, "order-17", 1, 9_999, "order-17", 0x7fff_ffff)
	c.RequestId = "ABCDEFGHIJKLMNOPQRSTUVWXYZ" // as of rand.Text
	known, _ := m.Instance("order-17")
	c.SourceIncarnation, c.TargetIncarnation = known.Incarnation, known.Incarnation
	record := must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_CopyHistory{CopyHistory: c}}))
	t.Logf("%d bytes for %d events", len(record), c.UpTo)
	if len(record) > 130 {
		t.Errorf("a record of %d bytes", len(record))
	}
	if err := applyCopy(m, c); err != nil {
		t.Fatal(err)
	}
	if known, _ := m.Instance("order-17"); known.Execution != 2 || known.LastEventId != 10_000 {
		t.Errorf("after the copy: %v", known)
	}
}
