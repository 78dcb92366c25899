package actors_test

import (
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
)

// isError is errors.Is that takes nil for no error.
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

func TestInstanceRunsEndToEnd(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, bindUpper(), shout(), everything())
		answer := n.start("e", "everything", "a").want(nil)
		if answer.Attached || answer.Dropped || answer.FirstExecution != 1 {
			t.Errorf("answer to the start: %+v", answer)
		}
		idle()
		begin := time.Now()
		n.send("e", "word", "b").want(nil)
		n.wantOutput("e", "AbB")
		if passed := time.Since(begin); passed != time.Hour {
			t.Errorf("took %v", passed)
		}
		n.wantHistory("e",
			"OrchestrationStarted", "ActivityScheduled", "ActivityCompleted of 2", "TimerCreated",
			"ExternalEvent", "TimerFired of 4", "ExternalSubscribed",
			"SubOrchestrationScheduled", "SubOrchestrationCompleted of 8", "OrchestrationCompleted")
		n.wantHistory("e::1.8",
			"OrchestrationStarted", "ActivityScheduled", "ActivityCompleted of 2", "OrchestrationCompleted")
	})
}

func TestNothingLeavesBeforeTheCommit(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var ran atomic.Int32
		n := lead(t, newTestJournal(), actors.Config{}, shout(),
			upper.Bind(func(context.Context, string) (string, error) { ran.Add(1); return "", nil }),
			program("all-at-once", func(ctx *replay.Context, _ string) (string, error) {
				upper.Start(ctx, "a")
				ctx.Timer(0)
				shoutHandle.Start(ctx, "b")
				return word.Wait(ctx)
			}))
		n.journal.holdAll()
		started := n.start("i", "all-at-once", "")
		time.Sleep(time.Hour)
		started.pending()
		if held := n.journal.waiting(); len(held) != 1 || ran.Load() != 0 {
			t.Fatalf("%d appends, %d activities before the first commit", len(held), ran.Load())
		}
		n.journal.letGo(nil)
		started.want(nil)
		idle()
		// The parent's next turn and the child's first, and the parent's
		// activity, but not the child's.
		if held := n.journal.waiting(); len(held) != 2 || ran.Load() != 1 {
			t.Fatalf("%d appends, %d activities after the first commit", len(held), ran.Load())
		}
		n.journal.flow()
		idle()
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

func TestMessagesDuringAnAppendAreTheNextTurn(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect())
		n.journal.holdAll()
		started := n.start("c", "collect", strings.Repeat("x", 150))
		idle()
		first := sendWords(n, "c", 0, 100)
		idle()
		if held := n.journal.waiting(); len(held) != 1 || len(wordsIn(t, held[0])) != 0 {
			t.Fatal("messages joined a turn that was being appended")
		}
		n.journal.letGo(nil)
		started.want(nil)
		idle()
		sendWords(n, "c", 100, 150)
		held := n.journal.waiting()
		if len(held) != 1 || !slices.Equal(wordsIn(t, held[0]), numbers(0, 100)) {
			t.Fatalf("%d appends, the first with the words %q", len(held), wordsIn(t, held[0]))
		}
		for _, r := range first {
			r.pending()
		}
		n.journal.flow()
		for _, r := range first {
			r.want(nil)
		}
		n.wantOutput("c", strings.Join(numbers(0, 150), " "))
		if appends := len(n.journal.committed()); appends != 3 {
			t.Errorf("%d appends for three batches", appends)
		}
	})
}

func TestMessagesAreTakenInTheirOrder(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect())
		n.journal.set(func(j *testJournal) { j.pace = steady(time.Millisecond) })
		n.start("c", "collect", strings.Repeat("x", 5000)).want(nil)
		for i := range 50 {
			sendWords(n, "c", 100*i, 100*i+100)
			time.Sleep(700 * time.Microsecond)
		}
		n.wantOutput("c", strings.Join(numbers(0, 5000), " "))
	})
}

func TestBatchesAreBoundedByBytes(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect())
		n.journal.holdAll()
		n.start("c", "collect", strings.Repeat("x", 10))
		idle()
		var replies []*reply
		for range 9 {
			replies = append(replies, n.send("c", "word", strings.Repeat("y", 400<<10)))
		}
		n.journal.flow()
		for _, r := range replies {
			r.want(nil)
		}
		for _, a := range n.journal.committed()[1:] {
			if many := len(wordsIn(t, a)); many != 3 {
				t.Errorf("a turn took %d messages of 400 KiB", many)
			}
		}
	})
}

func TestBatchesAreBoundedByNumber(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect())
		n.journal.holdAll()
		n.start("c", "collect", strings.Repeat("x", 2500))
		idle()
		sendWords(n, "c", 0, 2500)
		n.journal.flow()
		n.wantOutput("c", strings.Join(numbers(0, 2500), " "))
		if appends := len(n.journal.committed()); appends != 4 {
			t.Errorf("%d appends", appends)
		}
	})
}

// dropCounter is a collect that counts how often it is dropped from memory.
func dropCounter(drops *atomic.Int32) replay.Definition {
	return program("counted", func(ctx *replay.Context, _ string) (string, error) {
		done := false
		defer func() {
			if !done {
				drops.Add(1)
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

func TestMessageWakesAnInstanceThatWasEvicted(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var drops atomic.Int32
		n := lead(t, newTestJournal(), actors.Config{ResidentMax: 1}, dropCounter(&drops))
		for i := range 5 {
			n.start(fmt.Sprint(i), "counted", "").want(nil)
			idle()
			if evicted := int(drops.Load()); evicted != i {
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
		if drops.Load() < 8 {
			t.Errorf("only %d evicted", drops.Load())
		}
	})
}

func TestTheOneThatIsIdleLongestIsEvicted(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var drops atomic.Int32
		n := lead(t, newTestJournal(), actors.Config{ResidentMax: 2}, dropCounter(&drops), collect())
		n.start("counted", "counted", "").want(nil)
		idle()
		for i := range 5 {
			n.start(fmt.Sprint(i), "collect", "xx").want(nil)
			idle()
			n.send("counted", "other", "").want(nil) // touched, so not the oldest
			idle()
		}
		if drops.Load() != 0 {
			t.Error("an instance in use was evicted")
		}
	})
}

func TestMessageWakesAnInstanceOnANewLeader(t *testing.T) {
	virtually(t, func(t *testing.T) {
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

func TestOutdatedLeaderIsRefused(t *testing.T) {
	virtually(t, func(t *testing.T) {
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

// greedy schedules, for each word, an activity with an input of that many
// letters.
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

func TestBatchThatAsksForTooMuchIsTakenInParts(t *testing.T) {
	virtually(t, func(t *testing.T) {
		const most = 2000
		n := lead(t, newTestJournal(), actors.Config{AppendBytesMax: most}, bindUpper(), greedy())
		n.journal.holdAll()
		n.start("g", "greedy", strings.Repeat("x", 40))
		idle()
		replies := sendWords(n, "g", 0, 9)
		replies = append(replies, sendWords(n, "g", 0, 9)...)
		replies = append(replies, sendWords(n, "g", 0, 9)...)
		replies = append(replies, sendWords(n, "g", 0, 9)...)
		replies = append(replies, sendWords(n, "g", 0, 4)...)
		n.journal.flow()
		for _, r := range replies {
			r.want(nil)
		}
		n.wantOutput("g", "40")
		for _, a := range n.journal.committed() {
			bytes := 0
			for _, encoded := range a.Segments[0].Events {
				bytes += len(encoded)
			}
			if bytes > most {
				t.Errorf("an append of %d bytes", bytes)
			}
		}
	})
}

func TestStepThatAsksForTooMuchEndsTheInstance(t *testing.T) {
	virtually(t, func(t *testing.T) {
		given := make(chan error, 1)
		n := lead(t, newTestJournal(), actors.Config{AppendBytesMax: 2000}, collect(),
			upper.Bind(func(ctx context.Context, _ string) (string, error) {
				<-ctx.Done()
				given <- context.Cause(ctx)
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
		idle()
		n.send("h", "word", "y").want(actors.ErrEnded)
		n.awaitStatus("h", journalpb.Status_STATUS_TERMINATED)
		reason := n.last("h").GetOrchestrationTerminated().Reason
		if !strings.Contains(reason, "the limit is 2000") {
			t.Errorf("reason: %q", reason)
		}
		// What was open has nobody left who wants it.
		if cause := <-given; cause == nil {
			t.Error("the activity's context ended without a cause")
		}
		n.awaitStatus("h::1.3", journalpb.Status_STATUS_CANCELLED)
		n.send("h", "word", "y").want(actors.ErrEnded)
	})
}

func TestFirstStepThatAsksForTooMuchEndsTheInstance(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{AppendBytesMax: 2000}, bindUpper(),
			program("huge", func(ctx *replay.Context, _ string) (string, error) {
				return upper.Call(ctx, strings.Repeat("y", 3000))
			}))
		n.start("h", "huge", "").want(nil)
		n.wantHistory("h", "OrchestrationStarted", "OrchestrationTerminated")
		// A start that does not fit by itself is for the journal to refuse.
		n.journal.set(func(j *testJournal) {
			j.judge = func(a *journalpb.Append) error { return fmt.Errorf("of %q: %w", a.Instance, errRefused) }
		})
		n.start("h2", "huge", strings.Repeat("y", 3000)).want(errRefused)
	})
}

var errRefused = errors.New("refused by the test")
