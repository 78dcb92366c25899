package replaytest

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A run of an orchestration is replayed after appends, see isDue, and more often
// when it ends, because the order of a map often happens to be the same: until
// so many events have been replayed, but no more often and no longer than that.
const (
	endReplayEvents = 20_000
	endReplaysMax   = 64
	endReplaysTime  = time.Second // real; the replay that is under way is finished
)

// committed looks at what was appended.
func (e *Env) committed(c *commit) {
	e.t.Helper()
	for _, s := range c.segments {
		for _, event := range s.events {
			e.recorded(c.instance, event)
		}
	}
	every := e.node.replayEvery
	for _, s := range c.segments {
		last := s.events[len(s.events)-1]
		switch {
		case every == 0:
		case journalpb.Terminal(last.Arm()):
			e.replays(c.instance, s.execution, max(1, min(endReplaysMax, endReplayEvents/int(last.EventId))))
		case c.replay:
			e.replays(c.instance, s.execution, 1)
		}
	}
}

// recorded takes note of an event, and fails the test when it asks for code that
// there is not: a cluster would wait for a node that has it.
func (e *Env) recorded(id string, event *journalpb.Event) {
	e.t.Helper()
	e.updates.recorded(id, event)
	switch body := event.Body.(type) {
	case *journalpb.Event_ActivityScheduled:
		name := body.ActivityScheduled.Name
		e.calls[name] = append(e.calls[name], body.ActivityScheduled.Input)
		if _, ok := e.activities[name]; !ok {
			e.t.Fatalf("replaytest: %s calls activity %q (event %d), which is neither bound nor stubbed: give its Definition to New, or use Stub",
				id, name, event.EventId)
		}
	case *journalpb.Event_OrchestrationStarted:
		name, version := body.OrchestrationStarted.Name, body.OrchestrationStarted.Version
		if !e.registry.HasOrchestration(name, version) {
			e.t.Fatalf("replaytest: %s is orchestration %q, version %q, which is neither bound nor stubbed: give its Definition to New, or use StubChild",
				id, name, version)
		}
	}
}

// replays replays an execution from its history, in the test's own time: not in
// the bubble's, so that code which looks at the clock does not see what it saw.
func (e *Env) replays(id string, execution uint64, times int) {
	e.t.Helper()
	history, err := e.events(id, execution)
	if err != nil {
		e.t.Fatalf("replaytest: history of %s: %v", id, err)
	}
	begun := time.Now()
	for range times {
		e.replay(id, execution, history)
		if time.Since(begun) > endReplaysTime {
			return
		}
	}
}

// replay replays a history once.
func (e *Env) replay(id string, execution uint64, history []*journalpb.Event) {
	e.t.Helper()
	e.replayed += len(history)
	var err error
	goroutine := make(chan string, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		goroutine <- ownID()
		err = replayAll(id, execution, e.registry, history)
	}()
	replaying := <-goroutine
	stacks, ok := e.bubble.watch(done, func() []stack {
		var coroutines []stack
		for _, s := range stacksOf("") {
			if s.startedBy(replaying) {
				coroutines = append(coroutines, s)
			}
		}
		return coroutines
	})
	switch {
	case !ok:
		e.t.Fatal(stuckMessage(stacks))
	case err != nil:
		e.disagree(id, execution, err)
	}
}

// A MoreError reports code that asks for more than its history has, where the
// history ends: what it did when the history was recorded ended there.
type MoreError struct {
	Instance  string
	Execution uint64
	EventID   uint64 // the last of the history
	Found     string // what the code asks for
}

func (e *MoreError) Error() string {
	return fmt.Sprintf("goes on where the history ends, at event %d of %s/%d: found %s", e.EventID, e.Instance, e.Execution, e.Found)
}

// replayAll replays a history to its very end. The error is a *replay.Mismatch,
// a *MoreError or a *replay.NoCodeError.
func replayAll(id string, execution uint64, registry *replay.Registry, history []*journalpb.Event) error {
	x := replay.NewExecution(id, execution, registry, slog.New(slog.DiscardHandler))
	defer x.Drop()
	err := x.Replay(func(yield func(*journalpb.Event, error) bool) {
		for _, event := range history {
			if !yield(event, nil) {
				return
			}
		}
	})
	if err != nil || len(history) < 2 {
		return err // the code has not run yet when there is nothing but the start
	}
	more, err := x.Turn(time.Time{}, nil)
	if err != nil || len(more.Events) == 0 {
		return err
	}
	return &MoreError{Instance: id, Execution: execution, EventID: history[len(history)-1].EventId, Found: replay.Describe(more.Events[0])}
}

// disagree fails the test because code and history of an instance disagree.
func (e *Env) disagree(id string, execution uint64, reason error) {
	e.t.Helper()
	history, err := e.events(id, execution)
	if err != nil {
		e.t.Fatalf("replaytest: history of %s: %v", id, err)
	}
	e.t.Fatalf("replaytest: %s does not do the same again when it is brought back from its history.\n%s\nthe history:\n%s",
		id, explain(reason), table(history))
}

// explain says how code and history disagree, and what to do.
func explain(reason error) string {
	var m *replay.Mismatch
	var more *MoreError
	switch {
	case errors.As(reason, &m):
		var b strings.Builder
		fmt.Fprintf(&b, "\t%s, at event %d of %s/%d", m.Kind, m.EventID, m.Instance, m.Execution)
		for _, line := range []struct{ name, value string }{
			{"expected", m.Expected}, {"found", m.Found}, {"source", m.Source},
		} {
			if line.value != "" {
				fmt.Fprintf(&b, "\n\t%-9s %s", line.name, line.value)
			}
		}
		return b.String() + "\n" + advice
	case errors.As(reason, &more):
		return fmt.Sprintf("\tmore than the history has, after event %d of %s/%d\n\tfound     %s\n%s",
			more.EventID, more.Instance, more.Execution, more.Found, advice)
	}
	return "\t" + reason.Error()
}

const advice = `Orchestration code runs again from the beginning whenever its instance is brought back to memory, and must ask for
the same each time: the clock is ctx.Now, chance is ctx.Random or replay.Once, a map is ranged over by its sorted keys,
goroutines are replay.Go, and what it reads comes from its input, from activities and from events: not from variables
outside of it, from files or the environment. Code that was changed under running instances needs replay.Patched or a
new version.`

// stuckMessage says where code is blocked that must not be.
func stuckMessage(stacks []stack) string {
	if code := blockedCode(stacks); len(code) > 0 {
		s := code[0]
		return fmt.Sprintf("replaytest: orchestration code is blocked outside of its durable calls, at %s [%s]:\n%s\n"+
			"It may wait for futures, timers, events and children alone: ctx.Sleep instead of time.Sleep, replay.Go and futures\n"+
			"instead of goroutines and channels, no locks, and I/O in activities.", s.source(), s.state, s.trimmed())
	}
	for _, s := range stacks {
		if s.inCode() && s.working() {
			return fmt.Sprintf("replaytest: orchestration code has been computing for too long, at %s:\n%s\n"+
				"It runs again whenever its instance is brought back to memory: long computations belong in activities.\n"+
				"If it really takes that long, see RealTimeMax.", s.source(), s.trimmed())
		}
	}
	text := "replaytest: the test does not go on: something in it is blocked by what is outside of virtual time. The body of an\n" +
		"activity must not wait for a channel that was made outside of one; let it sleep, or return replay.ErrPending and use\n" +
		"CompleteActivity. If it really takes that long, see RealTimeMax."
	for _, s := range stacks {
		if !s.durable() && !s.ours() {
			text += fmt.Sprintf("\n\n[%s]\n%s", s.state, s.trimmed())
		}
	}
	return text
}

// leftMessage says which goroutines are still there when everything has ended.
func leftMessage(stacks []stack) string {
	text := "replaytest: goroutines are left behind. Orchestration code starts none (replay.Go is for that), and an activity waits\n" +
		"for those that it starts, or ends them with its context."
	for _, s := range stacks {
		text += fmt.Sprintf("\n\n[%s]\n%s", s.state, s.trimmed())
	}
	return text
}

// leftBehind returns the goroutines of a bubble that do not belong to it.
func leftBehind(stacks []stack) []stack {
	var left []stack
	for _, s := range stacks {
		if !s.ours() {
			left = append(left, s)
		}
	}
	return left
}

// events returns the history of an execution, 0 for the latest.
func (e *Env) events(id string, execution uint64) ([]*journalpb.Event, error) {
	var events []*journalpb.Event
	for event, err := range e.node.journal.Events(id, execution, 1) {
		if err != nil {
			return nil, err
		}
		events = append(events, event)
	}
	return events, nil
}

// table is a history for people, one event a line: event_id, time since the
// first, type and fields.
func table(events []*journalpb.Event) string {
	var b strings.Builder
	for _, event := range events {
		since := time.Duration(event.Timestamp - events[0].Timestamp)
		fmt.Fprintf(&b, "%5d  %10s  %s\n", event.EventId, "+"+since.String(), replay.Describe(event))
	}
	return b.String()
}
