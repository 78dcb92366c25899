package actors_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// inVirtualTime runs a test in virtual time. The test fails if a goroutine still runs when it
// returns.
func inVirtualTime(t *testing.T, test func(t *testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		// protoactor keeps a goroutine for a second after a dead letter.
		t.Cleanup(func() { time.Sleep(2 * time.Second) })
		test(t)
	})
}

// A node leads the partition of a journal.
type node struct {
	t         testing.TB
	journal   *testJournal
	system    *actors.System
	partition *actors.Partition
	log       *logBuffer

	partitionConfig actors.PartitionConfig
}

// lead opens the partition on a system of its own, in a new epoch.
func lead(t testing.TB, j *testJournal, config actors.Config, definitions ...replay.Definition) *node {
	t.Helper()
	return leadWith(t, j, config, engine.PayloadConverter{}, definitions...)
}

func leadWith(t testing.TB, j *testJournal, config actors.Config, payloads engine.PayloadConverter, definitions ...replay.Definition) *node {
	t.Helper()
	registry, err := engine.NewRegistry(definitions...)
	if err != nil {
		t.Fatal(err)
	}
	registry = registry.WithPayloadConverter(payloads)
	n := &node{t: t, journal: j, log: new(logBuffer)}
	config.Registry = registry
	config.Logger = slog.New(slog.NewTextHandler(n.log, nil))
	n.system = actors.NewSystem(config)
	n.partition = n.system.Lead(t.Context(), j, j.newEpoch(t))
	t.Cleanup(n.close)
	return n
}

// leadAgain opens the partition on the same system, in a new epoch.
func (n *node) leadAgain() *node {
	n.t.Helper()
	next := *n
	next.partition = n.system.LeadPartition(n.t.Context(), n.partitionConfig, n.journal, n.journal.newEpoch(n.t))
	n.t.Cleanup(next.partition.Close)
	return &next
}

func (n *node) close() {
	n.partition.Close()
	n.system.Close()
}

// A logBuffer keeps log lines.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBuffer) contains(text string) bool { return l.count(text) > 0 }

// hasWarnings reports whether anything was logged above info level.
func (l *logBuffer) hasWarnings() bool { return l.contains("level=WARN") || l.contains("level=ERROR") }

func (l *logBuffer) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// A reply is the answer to a message, when it comes.
type reply struct {
	t  testing.TB
	ch chan actors.Answer
}

func (n *node) deliver(id string, m actors.Message) *reply {
	r := &reply{n.t, make(chan actors.Answer, 2)}
	m.Done = func(a actors.Answer) { r.ch <- a }
	n.partition.Deliver(id, m)
	return r
}

func (r *reply) get() actors.Answer {
	r.t.Helper()
	select {
	case a := <-r.ch:
		return a
	case <-time.After(time.Hour):
		r.t.Fatal("no answer for an hour")
		return actors.Answer{}
	}
}

func (r *reply) want(err error) actors.Answer {
	r.t.Helper()
	a := r.get()
	if !isError(a.Err, err) {
		r.t.Fatalf("answered %v, want %v", a.Err, err)
	}
	return a
}

// wantPending fails if there already is an answer.
func (r *reply) wantPending() {
	r.t.Helper()
	select {
	case a := <-r.ch:
		r.t.Fatalf("answered too early: %+v", a)
	default:
	}
}

func payload(t testing.TB, value any) *journalpb.Payload {
	t.Helper()
	p, err := engine.Encode(value)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (n *node) startMessage(name string, input any) *journalpb.OrchestrationStarted {
	return &journalpb.OrchestrationStarted{Name: name, Input: payload(n.t, input)}
}

func message(started *journalpb.OrchestrationStarted) actors.Message {
	return actors.Message{Message: engine.Message{Event: &journalpb.Event{
		Body: &journalpb.Event_OrchestrationStarted{OrchestrationStarted: started},
	}}}
}

func (n *node) start(id, name string, input any) *reply {
	n.t.Helper()
	return n.deliver(id, message(n.startMessage(name, input)))
}

func (n *node) send(id, event string, value any) *reply {
	return n.sendWithRequestID(id, event, "", value)
}

func (n *node) sendWithRequestID(id, event, request string, value any) *reply {
	n.t.Helper()
	return n.deliver(id, actors.Message{Message: engine.Message{Event: &journalpb.Event{
		Body: &journalpb.Event_ExternalEvent{ExternalEvent: &journalpb.ExternalEvent{
			Name: event, Data: payload(n.t, value), RequestId: request,
		}},
	}}})
}

// awaitStatus waits until an instance has that status.
func (n *node) awaitStatus(id string, status journalpb.Status) {
	n.t.Helper()
	limit := time.After(1000 * time.Hour)
	for {
		changed := n.journal.changes()
		meta, _ := n.journal.Instance(id)
		if meta.GetStatus() == status {
			return
		}
		select {
		case <-changed:
		case <-limit:
			n.t.Fatalf("instance %q is %v, not %v: %v\n%s", id, meta.GetStatus(), status, n.history(id), &n.log.text)
		}
	}
}

// output waits until an instance has completed and returns its output.
func (n *node) output(id string) string {
	n.t.Helper()
	n.awaitStatus(id, journalpb.Status_STATUS_COMPLETED)
	last := n.last(id)
	var text string
	if err := engine.Decode(last.GetOrchestrationCompleted().GetOutput(), &text); err != nil {
		n.t.Fatal(err)
	}
	return text
}

// failure waits until an instance has failed and returns its error.
func (n *node) failure(id string) error {
	n.t.Helper()
	n.awaitStatus(id, journalpb.Status_STATUS_FAILED)
	return engine.DecodeError(n.last(id).GetOrchestrationFailed().GetError())
}

func (n *node) wantOutput(id, want string) {
	n.t.Helper()
	if got := n.output(id); got != want {
		n.t.Fatalf("instance %q returned %q, want %q", id, got, want)
	}
}

func (n *node) events(id string) []*journalpb.Event {
	n.t.Helper()
	var events []*journalpb.Event
	for event, err := range n.journal.Machine.Events(id, 0, 1) {
		if err != nil {
			n.t.Fatal(err)
		}
		events = append(events, event)
	}
	return events
}

func (n *node) last(id string) *journalpb.Event {
	n.t.Helper()
	events := n.events(id)
	return events[len(events)-1]
}

// history names the events of an instance, with what they complete.
func (n *node) history(id string) []string {
	n.t.Helper()
	if _, ok := n.journal.Instance(id); !ok {
		return nil
	}
	var names []string
	for _, event := range n.events(id) {
		name := event.Type()
		if event.SourceEventId != 0 {
			name += fmt.Sprintf(" of %d", event.SourceEventId)
		}
		names = append(names, name)
	}
	return names
}

func (n *node) wantHistory(id string, want ...string) {
	n.t.Helper()
	if got := n.history(id); !slices.Equal(got, want) {
		n.t.Fatalf("history of %q:\n\t%s\nwant:\n\t%s", id, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// count returns how many events of a type an instance has.
func (n *node) count(id, kind string) int {
	n.t.Helper()
	count := 0
	for _, event := range n.events(id) {
		if event.Type() == kind {
			count++
		}
	}
	return count
}

// waitIdle waits until nothing can happen before time passes.
func waitIdle() { synctest.Wait() }

// program binds a body that takes and returns a string.
func program(name string, body func(*replay.Context, string) (string, error)) replay.Definition {
	return replay.Orchestration[string, string](name).Bind(body)
}

// wantAs waits for the answer, whose error must have the type of target.
func (r *reply) wantAs(target any) {
	r.t.Helper()
	if a := r.get(); !errors.As(a.Err, target) {
		r.t.Fatalf("answered %v, want a %T", a.Err, target)
	}
}
