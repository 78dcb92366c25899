package actors_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// isError is errors.Is, where nil means no error.
func isError(err, target error) bool {
	if target == nil {
		return err == nil
	}
	return errors.Is(err, target)
}

var (
	upper = replay.Activity[string, string]("upper")
	word  = replay.Event[string]("word")
)

func bindUpper() replay.Definition {
	return upper.Bind(func(_ context.Context, text string) (string, error) { return strings.ToUpper(text), nil })
}

// collect waits for as many words as its input has letters and joins them.
func collect() replay.Definition {
	return program("collect", func(ctx *replay.Context, letters string) (string, error) {
		var words []string
		for range letters {
			text, err := word.Wait(ctx)
			if err != nil {
				return "", err
			}
			words = append(words, text)
		}
		return strings.Join(words, " "), nil
	})
}

func shout() replay.Definition {
	return program("shout", func(ctx *replay.Context, text string) (string, error) { return upper.Call(ctx, text) })
}

var shoutHandle = replay.Orchestration[string, string]("shout")

func everything() replay.Definition {
	return program("everything", func(ctx *replay.Context, text string) (string, error) {
		first, err := upper.Call(ctx, text)
		if err != nil {
			return "", err
		}
		if err := ctx.Sleep(time.Hour); err != nil {
			return "", err
		}
		second, err := word.Wait(ctx)
		if err != nil {
			return "", err
		}
		third, err := shoutHandle.Call(ctx, second)
		return first + second + third, err
	})
}

func TestInstance_EndToEnd(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, bindUpper(), shout(), everything())
		answer := n.start("e", "everything", "a").want(nil)
		if answer.Attached || answer.Dropped || answer.FirstExecution != 1 {
			t.Errorf("answer to the start: %+v", answer)
		}
		waitIdle()
		start := time.Now()
		n.send("e", "word", "b").want(nil)
		n.wantOutput("e", "AbB")
		if elapsed := time.Since(start); elapsed != time.Hour {
			t.Errorf("took %v", elapsed)
		}
		n.wantHistory("e",
			"OrchestrationStarted", "ActivityScheduled", "ActivityCompleted of 2", "TimerCreated",
			"ExternalEvent", "TimerFired of 4", "ExternalSubscribed",
			"SubOrchestrationScheduled", "SubOrchestrationCompleted of 8", "OrchestrationCompleted")
		n.wantHistory("e::1.8",
			"OrchestrationStarted", "ActivityScheduled", "ActivityCompleted of 2", "OrchestrationCompleted")
	})
}

func TestInstance_NoEffectsBeforeCommit(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var ran atomic.Int32
		n := lead(t, newTestJournal(), actors.Config{}, shout(),
			upper.Bind(func(context.Context, string) (string, error) { ran.Add(1); return "", nil }),
			program("all-at-once", func(ctx *replay.Context, _ string) (string, error) {
				upper.Start(ctx, "a")
				ctx.Timer(0)
				shoutHandle.Start(ctx, "b")
				return word.Wait(ctx)
			}))
		n.journal.holdAppends()
		started := n.start("i", "all-at-once", "")
		time.Sleep(time.Hour)
		started.wantPending()
		if pending := n.journal.undecidedAppends(); len(pending) != 1 || ran.Load() != 0 {
			t.Fatalf("%d appends, %d activities before the first commit", len(pending), ran.Load())
		}
		n.journal.decideHeld(nil)
		started.want(nil)
		waitIdle()
		// The parent's next turn, the child's first turn and the parent's activity, but not the
		// child's.
		if pending := n.journal.undecidedAppends(); len(pending) != 2 || ran.Load() != 1 {
			t.Fatalf("%d appends, %d activities after the first commit", len(pending), ran.Load())
		}
		n.journal.releaseAppends()
		waitIdle()
		if ran.Load() != 2 || n.count("i", "TimerFired") != 1 {
			t.Errorf("%d activities, history %v", ran.Load(), n.history("i"))
		}
	})
}

// sendWords sends each number as a word.
func sendWords(n *node, id string, from, to int) []*reply {
	var replies []*reply
	for i := from; i < to; i++ {
		replies = append(replies, n.send(id, "word", fmt.Sprint(i)))
	}
	return replies
}

// wordsIn returns the words that an append records.
func wordsIn(t *testing.T, a *journalpb.Append) []string {
	t.Helper()
	var words []string
	for _, event := range eventsIn(t, a) {
		if external := event.GetExternalEvent(); external != nil {
			words = append(words, strings.Trim(string(external.Data.Data), `"`))
		}
	}
	return words
}

func numbers(from, to int) []string {
	var all []string
	for i := from; i < to; i++ {
		all = append(all, fmt.Sprint(i))
	}
	return all
}

func TestTurn_BatchesMessagesDuringAppend(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect())
		n.journal.holdAppends()
		started := n.start("c", "collect", strings.Repeat("x", 150))
		waitIdle()
		first := sendWords(n, "c", 0, 100)
		waitIdle()
		if pending := n.journal.undecidedAppends(); len(pending) != 1 || len(wordsIn(t, pending[0])) != 0 {
			t.Fatal("messages joined a turn that was being appended")
		}
		n.journal.decideHeld(nil)
		started.want(nil)
		waitIdle()
		sendWords(n, "c", 100, 150)
		pending := n.journal.undecidedAppends()
		if len(pending) != 1 || !slices.Equal(wordsIn(t, pending[0]), numbers(0, 100)) {
			t.Fatalf("%d appends, the first with the words %q", len(pending), wordsIn(t, pending[0]))
		}
		for _, r := range first {
			r.wantPending()
		}
		n.journal.releaseAppends()
		for _, r := range first {
			r.want(nil)
		}
		n.wantOutput("c", strings.Join(numbers(0, 150), " "))
		if appends := len(n.journal.committedAppends()); appends != 3 {
			t.Errorf("%d appends for three batches", appends)
		}
	})
}

func TestTurn_MessageOrder(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect())
		n.journal.configure(func(j *testJournal) { j.commitDelay = constantDelay(time.Millisecond) })
		n.start("c", "collect", strings.Repeat("x", 5000)).want(nil)
		for i := range 50 {
			sendWords(n, "c", 100*i, 100*i+100)
			time.Sleep(700 * time.Microsecond)
		}
		n.wantOutput("c", strings.Join(numbers(0, 5000), " "))
	})
}

func TestTurn_BatchLimitBytes(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect())
		n.journal.holdAppends()
		n.start("c", "collect", strings.Repeat("x", 10))
		waitIdle()
		var replies []*reply
		for range 9 {
			replies = append(replies, n.send("c", "word", strings.Repeat("y", 400<<10)))
		}
		n.journal.releaseAppends()
		for _, r := range replies {
			r.want(nil)
		}
		for _, a := range n.journal.committedAppends()[1:] {
			if count := len(wordsIn(t, a)); count != 3 {
				t.Errorf("a turn took %d messages of 400 KiB", count)
			}
		}
	})
}

func TestTurn_BatchLimitMessages(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect())
		n.journal.holdAppends()
		n.start("c", "collect", strings.Repeat("x", 2500))
		waitIdle()
		sendWords(n, "c", 0, 2500)
		n.journal.releaseAppends()
		n.wantOutput("c", strings.Join(numbers(0, 2500), " "))
		if appends := len(n.journal.committedAppends()); appends != 4 {
			t.Errorf("%d appends", appends)
		}
	})
}

// dropCounter is a collect that counts its evictions.
func dropCounter(evictions *atomic.Int32) replay.Definition {
	return program("counted", func(ctx *replay.Context, _ string) (string, error) {
		done := false
		defer func() {
			if !done {
				evictions.Add(1)
			}
		}()
		a, err := word.Wait(ctx)
		if err != nil {
			return "", err
		}
		b, err := word.Wait(ctx)
		done = true
		return a + b, err
	})
}

func TestEviction_MessageReloadsInstance(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var evictions atomic.Int32
		n := lead(t, newTestJournal(), actors.Config{ResidentMax: 1}, dropCounter(&evictions))
		for i := range 5 {
			n.start(fmt.Sprint(i), "counted", "").want(nil)
			waitIdle()
			if evicted := int(evictions.Load()); evicted != i {
				t.Fatalf("%d evicted after %d starts", evicted, i+1)
			}
		}
		for _, text := range []string{"a", "b"} {
			for i := range 5 {
				n.send(fmt.Sprint(i), "word", text).want(nil)
			}
		}
		for i := range 5 {
			n.wantOutput(fmt.Sprint(i), "ab")
		}
		if evictions.Load() < 8 {
			t.Errorf("only %d evicted", evictions.Load())
		}
	})
}

func TestEviction_LeastRecentlyUsed(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var evictions atomic.Int32
		n := lead(t, newTestJournal(), actors.Config{ResidentMax: 2}, dropCounter(&evictions), collect())
		n.start("counted", "counted", "").want(nil)
		waitIdle()
		for i := range 5 {
			n.start(fmt.Sprint(i), "collect", "xx").want(nil)
			waitIdle()
			n.send("counted", "other", "").want(nil) // used, so not the oldest
			waitIdle()
		}
		if evictions.Load() != 0 {
			t.Error("an instance in use was evicted")
		}
	})
}

func TestInstance_LoadedOnNewLeader(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, collect())
		first.start("c", "collect", "xx").want(nil)
		first.send("c", "word", "a").want(nil)
		first.close()
		second := lead(t, j, actors.Config{}, collect())
		second.send("c", "word", "b").want(nil)
		second.wantOutput("c", "a b")
	})
}

func TestFencing_OutdatedLeaderRejected(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, collect())
		first.start("c", "collect", "xx").want(nil)
		second := lead(t, j, actors.Config{}, collect())
		if a := first.send("c", "word", "a").get(); a.Err == nil {
			t.Error("a leader of an older epoch has recorded something")
		}
		sendWords(second, "c", 1, 3)
		second.wantOutput("c", "1 2")
	})
}

// greedy schedules, for each word, an activity with an input of that many letters.
func greedy() replay.Definition {
	return program("greedy", func(ctx *replay.Context, letters string) (string, error) {
		var futures []*replay.Future[string]
		for range letters {
			text, err := word.Wait(ctx)
			if err != nil {
				return "", err
			}
			futures = append(futures, upper.Start(ctx, strings.Repeat(text, 300)))
		}
		results, err := replay.All(ctx, futures...)
		return fmt.Sprint(len(results)), err
	})
}

func TestAppendLimit_SplitsBatch(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		const limit = 2000
		n := lead(t, newTestJournal(), actors.Config{AppendBytesMax: limit}, bindUpper(), greedy())
		n.journal.holdAppends()
		n.start("g", "greedy", strings.Repeat("x", 40))
		waitIdle()
		replies := sendWords(n, "g", 0, 9)
		replies = append(replies, sendWords(n, "g", 0, 9)...)
		replies = append(replies, sendWords(n, "g", 0, 9)...)
		replies = append(replies, sendWords(n, "g", 0, 9)...)
		replies = append(replies, sendWords(n, "g", 0, 4)...)
		n.journal.releaseAppends()
		for _, r := range replies {
			r.want(nil)
		}
		n.wantOutput("g", "40")
		for _, a := range n.journal.committedAppends() {
			bytes := 0
			for _, encoded := range a.Segments[0].Events {
				bytes += len(encoded)
			}
			if bytes > limit {
				t.Errorf("append of %d bytes", bytes)
			}
		}
	})
}

func TestAppendLimit_TerminatesOnLargeStep(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		result := make(chan error, 1)
		n := lead(t, newTestJournal(), actors.Config{AppendBytesMax: 2000}, collect(),
			upper.Bind(func(ctx context.Context, _ string) (string, error) {
				<-ctx.Done()
				result <- context.Cause(ctx)
				return "", ctx.Err()
			}),
			program("huge", func(ctx *replay.Context, _ string) (string, error) {
				upper.Start(ctx, "a")
				replay.Orchestration[string, string]("collect").Start(ctx, "x")
				text, err := word.Wait(ctx)
				if err != nil {
					return "", err
				}
				return upper.Call(ctx, strings.Repeat(text, 3000))
			}))
		n.start("h", "huge", "").want(nil)
		waitIdle()
		n.send("h", "word", "y").want(actors.ErrEnded)
		n.awaitStatus("h", journalpb.Status_STATUS_TERMINATED)
		reason := n.last("h").GetOrchestrationTerminated().Reason
		if !strings.Contains(reason, "the limit is 2000") {
			t.Errorf("reason: %q", reason)
		}
		// Nothing waits for the open activity any more.
		if cause := <-result; cause == nil {
			t.Error("the activity's context ended without a cause")
		}
		n.awaitStatus("h::1.3", journalpb.Status_STATUS_CANCELED)
		n.send("h", "word", "y").want(actors.ErrEnded)
	})
}

func TestAppendLimit_TerminatesOnLargeFirstStep(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{AppendBytesMax: 2000}, bindUpper(),
			program("huge", func(ctx *replay.Context, _ string) (string, error) {
				return upper.Call(ctx, strings.Repeat("y", 3000))
			}))
		n.start("h", "huge", "").want(nil)
		n.wantHistory("h", "OrchestrationStarted", "OrchestrationTerminated")
		// The journal rejects a start that does not fit by itself.
		n.journal.configure(func(j *testJournal) {
			j.check = func(a *journalpb.Append) error { return fmt.Errorf("of %q: %w", a.Instance, errRejected) }
		})
		n.start("h2", "huge", strings.Repeat("y", 3000)).want(errRejected)
	})
}

// The start of the next execution is in the same record. A failure is then not retried, and an
// instance that continues as new is terminated.
func TestAppendLimit_CountsNextExecution(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		again := replay.Orchestration[string, string]("again")
		n := lead(t, newTestJournal(), actors.Config{AppendBytesMax: 2000}, again.Bind(func(ctx *replay.Context, input string) (string, error) {
			if err := replay.KV[string]("m").Set(ctx, "k", strings.Repeat("v", 500)); err != nil {
				return "", err
			}
			text, err := word.Wait(ctx)
			if err == nil && text == "fail" {
				err = errors.New("the real failure")
			}
			return input, cmp.Or(err, again.ContinueAsNew(ctx, input))
		}))
		for _, id := range []string{"fail", "continue"} {
			n.deliver(id, actors.Message{Message: engine.Message{Event: &journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{
				OrchestrationStarted: &journalpb.OrchestrationStarted{
					Name: "again", Input: payload(t, strings.Repeat("x", 800)), Retry: &journalpb.RetryPolicy{MaxAttempts: 2},
				},
			}}}}).want(nil)
		}
		n.send("fail", "word", "fail").want(nil)
		n.awaitStatus("fail", journalpb.Status_STATUS_FAILED)
		if got := n.last("fail").GetOrchestrationFailed().GetError().GetMessage(); got != "the real failure" {
			t.Errorf("failed with %q", got)
		}
		n.send("continue", "word", "continue").want(actors.ErrEnded)
		n.awaitStatus("continue", journalpb.Status_STATUS_TERMINATED)
		if got := n.last("continue").GetOrchestrationTerminated().GetReason(); !strings.Contains(got, "the limit is 2000: continue as new with less") {
			t.Errorf("terminated with %q", got)
		}
	})
}

var errRejected = errors.New("rejected by the test")
