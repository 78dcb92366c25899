package replaytest

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// An execution is replayed after appends (see shouldReplay) and repeatedly when it ends, because
// the order of a map is often the same by chance. These constants limit the replays at its end.
const (
	endReplayEvents = 20_000
	endReplaysMax   = 64
	endReplaysTime  = time.Second // real time; a replay in progress is not interrupted
)

// handleCommit records the events of a commit and replays its history if that is due.
func (e *Env) handleCommit(c *commit) {
	e.t.Helper()
	for _, s := range c.segments {
		for _, event := range s.events {
			e.observeEvent(c.instance, event)
		}
	}
	every := e.node.replayEvery
	for _, s := range c.segments {
		last := s.events[len(s.events)-1]
		switch {
		case every == 0:
		case journalpb.IsTerminal(last.TypeNumber()):
			e.replayExecution(c.instance, s.execution, max(1, min(endReplaysMax, endReplayEvents/int(last.EventId))))
		case c.replay:
			e.replayExecution(c.instance, s.execution, 1)
		}
	}
}

// observeEvent records an event, and fails the test if it needs code that is not bound: a
// cluster would wait for a node that has it.
func (e *Env) observeEvent(id string, event *journalpb.Event) {
	e.t.Helper()
	e.updates.observe(id, event)
	switch body := event.Body.(type) {
	case *journalpb.Event_ActivityScheduled:
		name := body.ActivityScheduled.Name
		e.calls[name] = append(e.calls[name], body.ActivityScheduled.Input)
		if _, ok := e.activities[name]; !ok {
			e.t.Fatalf("replaytest: %s calls activity %q (event %d), which is neither bound nor stubbed: pass its Definition to New, or use Stub",
				id, name, event.EventId)
		}
	case *journalpb.Event_OrchestrationStarted:
		name, version := body.OrchestrationStarted.Name, body.OrchestrationStarted.Version
		if !e.registry.HasOrchestration(name, version) {
			e.t.Fatalf("replaytest: %s is orchestration %q, version %q, which is neither bound nor stubbed: pass its Definition to New, or use StubChild",
				id, name, version)
		}
	}
}

// replayExecution replays an execution from its history outside the bubble, so that code which
// reads the clock gets a different time.
func (e *Env) replayExecution(id string, execution uint64, times int) {
	e.t.Helper()
	history, err := e.node.journal.events(id, execution)
	if err != nil {
		e.t.Fatalf("replaytest: history of %s: %v", id, err)
	}
	started := time.Now()
	for range times {
		e.replayHistory(id, execution, history)
		if time.Since(started) > endReplaysTime {
			return
		}
	}
}

// replayHistory replays a history once.
func (e *Env) replayHistory(id string, execution uint64, history []*journalpb.Event) {
	e.t.Helper()
	e.replayedEvents += len(history)
	var err error
	goroutine := make(chan string, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		goroutine <- currentGoroutineID()
		err = replayAll(id, execution, e.registry, history)
	}()
	replayGoroutine := <-goroutine
	stacks, ok := e.bubble.watch(done, func() []stack {
		var coroutines []stack
		for _, s := range stacksOf("") {
			if s.isStartedBy(replayGoroutine) {
				coroutines = append(coroutines, s)
			}
		}
		return coroutines
	})
	switch {
	case !ok:
		e.t.Fatal(stuckMessage(stacks))
	case err != nil:
		e.failMismatch(id, execution, err)
	}
}

// An ExtraOperationError reports code that requests an operation after the end of its history.
type ExtraOperationError struct {
	Instance  string
	Execution uint64
	EventID   uint64 // the last one in the history
	Found     string // the operation that the code requests
}

func (e *ExtraOperationError) Error() string {
	return fmt.Sprintf("operation after the end of the history, at event %d of %s/%d: found %s", e.EventID, e.Instance, e.Execution, e.Found)
}

// replayAll replays a history to its end. The error is a *replay.Mismatch, an
// *ExtraOperationError or a *replay.NotRegisteredError.
func replayAll(id string, execution uint64, registry *engine.Registry, history []*journalpb.Event) error {
	x := engine.NewExecution(id, execution, registry, slog.New(slog.DiscardHandler))
	defer x.Evict()
	err := x.Replay(func(yield func(*journalpb.Event, error) bool) {
		for _, event := range history {
			if !yield(event, nil) {
				return
			}
		}
	})
	if err != nil || len(history) < 2 {
		return err // with only the start event the code has not run
	}
	more, err := x.Turn(time.Time{}, nil)
	if err != nil || len(more.Events) == 0 {
		return err
	}
	return &ExtraOperationError{Instance: id, Execution: execution, EventID: history[len(history)-1].EventId, Found: engine.Describe(more.Events[0])}
}

// failMismatch fails the test because code and history of an instance disagree.
func (e *Env) failMismatch(id string, execution uint64, reason error) {
	e.t.Helper()
	e.t.Fatalf("replaytest: replaying %s from its history gives a different result.\n%s\nhistory:\n%s",
		id, explainMismatch(reason), e.HistoryOf(id, execution))
}

// explainMismatch describes how code and history disagree, and what to do.
func explainMismatch(reason error) string {
	var m *replay.Mismatch
	var more *ExtraOperationError
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
		if m.Strict {
			return b.String() + "\n" + advice + "\n" + strictAdvice
		}
		return b.String() + "\n" + advice
	case errors.As(reason, &more):
		return fmt.Sprintf("\toperation after the end of the history, at event %d of %s/%d\n\tfound     %s\n%s",
			more.EventID, more.Instance, more.Execution, more.Found, advice)
	}
	return "\t" + reason.Error()
}

const strictAdvice = `A cluster without Config.Strict accepts this difference and keeps what the history has. If it is intended, replay the
histories with ReplayCompatible, or export them again.`

const advice = `Orchestration code runs from the beginning whenever its instance is loaded, and must request the same operations each
time. Use ctx.Now for the clock, ctx.Random or replay.SideEffect for random values, the sorted keys of a map, and
replay.Go for goroutines. Read from the input, activities and events, not from outer variables, files or the
environment. Code that changed under running instances needs replay.Patched or a new version.`

// stuckMessage reports where code is blocked that must not be.
func stuckMessage(stacks []stack) string {
	if code := blockedCode(stacks); len(code) > 0 {
		s := code[0]
		return fmt.Sprintf("replaytest: orchestration code is blocked outside durable calls, at %s [%s]:\n%s\n"+
			"It may wait only for futures, timers, events and children. Use ctx.Sleep instead of time.Sleep, replay.Go and futures\n"+
			"instead of goroutines and channels, no locks, and activities for I/O.", s.source(), s.state, s.trimmed())
	}
	for _, s := range stacks {
		if s.runsOrchestrationCode() && s.isRunning() {
			return fmt.Sprintf("replaytest: orchestration code has been computing for too long, at %s:\n%s\n"+
				"It runs again whenever its instance is loaded: move long computations to activities.\n"+
				"If it needs that long, raise RealTimeMax.", s.source(), s.trimmed())
		}
	}
	text := "replaytest: the test is blocked outside virtual time. The body of an activity must not wait for a channel that was\n" +
		"created outside a body. Let it sleep, or return replay.ErrResultPending and use CompleteActivity. If the test needs\n" +
		"that long, raise RealTimeMax."
	for _, s := range stacks {
		if !s.isDurablyBlocked() && !s.belongsToBubble() {
			text += fmt.Sprintf("\n\n[%s]\n%s", s.state, s.trimmed())
		}
	}
	return text
}

// leakMessage lists the goroutines that remain at the end.
func leakMessage(stacks []stack) string {
	text := "replaytest: goroutines leaked. Orchestration code must use replay.Go, and an activity must wait for its goroutines or\n" +
		"end them with its context."
	for _, s := range stacks {
		text += fmt.Sprintf("\n\n[%s]\n%s", s.state, s.trimmed())
	}
	return text
}

// leakedGoroutines returns the goroutines that are not the bubble's own.
func leakedGoroutines(stacks []stack) []stack {
	var leaked []stack
	for _, s := range stacks {
		if !s.belongsToBubble() {
			leaked = append(leaked, s)
		}
	}
	return leaked
}
