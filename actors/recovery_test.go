package actors_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

const letters = "abcdef"

var relayHandle = replay.Orchestration[string, string]("relay")

// wordRelay takes one word in each execution, and leaves an activity, a child and a timer open
// when it continues as new.
func wordRelay() []replay.Definition {
	return []replay.Definition{
		waitingChild(), shout(), bindUpper(),
		work.Bind(func(ctx context.Context, _ int) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		}),
		relayHandle.Bind(func(ctx *replay.Context, text string) (string, error) {
			work.Start(ctx, 0)
			kid.Start(ctx, "")
			ctx.Timer(time.Hour)
			if err := shoutHandle.Chain(ctx, "x", replay.ChildID("chained-by-"+text+".")); err != nil {
				return "", err
			}
			next, err := word.Wait(ctx)
			if err != nil {
				return "", err
			}
			if text += next; text != letters {
				return "", relayHandle.ContinueAsNew(ctx, text)
			}
			return text, nil
		}),
	}
}

// runRelay starts the relay and sends all its words at once, repeatedly, until it has ended or the
// node has crashed.
func runRelay(n *node) {
	for !isCrashed(n.journal) {
		started := n.startMessage("relay", "")
		started.RequestId = "start"
		replies := []*reply{n.deliver("r", message(started))}
		for i := range letters {
			replies = append(replies, n.sendWithRequestID("r", "word", fmt.Sprint("word", i), letters[i:i+1]))
		}
		for _, r := range replies {
			r.get()
		}
		if meta, _ := n.journal.Instance("r"); meta.GetStatus() == journalpb.Status_STATUS_COMPLETED {
			return
		}
		time.Sleep(time.Second)
	}
}

func checkRelay(t *testing.T, n *node) {
	t.Helper()
	n.wantOutput("r", letters)
	time.Sleep(time.Minute)
	if open := slices.Collect(n.journal.OpenOperations()); len(open) != 0 {
		t.Errorf("still open: %v", open)
	}
	meta, _ := n.journal.Instance("r")
	if meta.Execution != uint64(len(letters)) {
		t.Errorf("%d executions", meta.Execution)
	}
	for number := uint64(1); number <= meta.Execution; number++ {
		var types []string
		for event, err := range n.journal.Events("r", number, 1) {
			if err != nil {
				t.Fatal(err)
			}
			types = append(types, event.Type())
		}
		if last := types[len(types)-1]; types[0] != "OrchestrationStarted" || (last == "OrchestrationContinuedAsNew") != (number < meta.Execution) {
			t.Errorf("execution %d: %v", number, types)
		}
	}
	children, chained := 0, 0
	for instance := range n.journal.Instances() {
		switch {
		case instance.Status == journalpb.Status_STATUS_RUNNING:
			t.Errorf("%s runs", instance.Instance)
		case instance.Parent != nil:
			children++
		case strings.HasPrefix(instance.Instance, "chained-by-"):
			chained++
		}
	}
	// A child scheduled and canceled in the same step never exists.
	if children > len(letters) || chained != len(letters) {
		t.Errorf("%d children, %d chained", children, chained)
	}
}

func TestContinueAsNew_CrashAtEveryAppend(t *testing.T) {
	for _, delay := range []time.Duration{0, 10 * time.Millisecond} { // with a delay, words come in batches
		appends := 0
		inVirtualTime(t, func(t *testing.T) {
			j := newTestJournal()
			j.commitDelay = constantDelay(delay)
			n := lead(t, j, actors.Config{}, wordRelay()...)
			runRelay(n)
			checkRelay(t, n)
			appends = len(j.committedAppends())
		})
		if appends < 10 {
			t.Fatalf("the relay has only %d appends", appends)
		}
		for k := range appends + 1 {
			for _, received := range []bool{true, false} {
				t.Run(fmt.Sprintf("%v/%d/%t", delay, k, received), func(t *testing.T) {
					inVirtualTime(t, func(t *testing.T) {
						j := newTestJournal()
						j.commitDelay = constantDelay(delay)
						first := lead(t, j, actors.Config{}, wordRelay()...)
						j.crashAt(k, received)
						runRelay(first)
						first.close()
						j.clearCrash()
						second := lead(t, j, actors.Config{}, wordRelay()...)
						runRelay(second)
						checkRelay(t, second)
					})
				})
			}
		}
	}
}

// A turn that continues as new and exceeds an append is split. Messages that it would have
// postponed to the next execution are taken once.
func TestAppendLimit_PostponedMessagesOnce(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var handle = replay.Orchestration[string, string]("heap")
		n := lead(t, newTestJournal(), actors.Config{AppendBytesMax: 3000},
			handle.Bind(func(ctx *replay.Context, text string) (string, error) {
				for range 3 {
					next, err := word.Wait(ctx)
					if err != nil {
						return "", err
					}
					if err := replay.SetStatus(ctx, strings.Repeat(next, 1100)); err != nil {
						return "", err
					}
					text += next
				}
				if len(text) < 12 {
					return "", handle.ContinueAsNew(ctx, text)
				}
				return text, nil
			}))
		n.journal.holdAppends()
		started := n.start("h", "heap", "")
		waitIdle()
		replies := []*reply{}
		for _, letter := range "abcdefghijkl" {
			replies = append(replies, n.send("h", "word", string(letter)))
		}
		n.journal.releaseAppends()
		started.want(nil)
		for _, r := range replies {
			r.want(nil)
		}
		n.wantOutput("h", "abcdefghijkl")
	})
}

func rejectInstance(id string) func(*journalpb.Append) error {
	return func(a *journalpb.Append) error {
		if a.Instance == id {
			return errRejected
		}
		return nil
	}
}

func chainingProgram() replay.Definition {
	return program("chainer", func(ctx *replay.Context, text string) (string, error) {
		return "", shoutHandle.Chain(ctx, text, replay.ChildID("next"))
	})
}

func TestChainedStart_MadeByNextLeader(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		j.check = rejectInstance("next")
		first := lead(t, j, actors.Config{}, chainingProgram(), shout(), bindUpper())
		first.start("c", "chainer", "a").want(nil)
		first.wantOutput("c", "")
		time.Sleep(time.Minute)
		first.close()
		j.clearCrash()
		second := lead(t, j, actors.Config{}, chainingProgram(), shout(), bindUpper())
		second.wantOutput("next", "A")
		if meta, _ := j.Instance("next"); meta.Parent != nil {
			t.Errorf("it is a child of %v", meta.Parent)
		}
	})
}

func TestChainedStart_ExistingInstance(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, chainingProgram(), collect(), shout(), bindUpper())
		n.start("next", "collect", "x").want(nil)
		n.start("c", "chainer", "a").want(nil)
		n.wantOutput("c", "")
		time.Sleep(time.Minute)
		n.send("next", "word", "b").want(nil)
		n.wantOutput("next", "b")
	})
}

// The parent cancels its child, or ends, and the node fails before the child gets the
// cancellation.
func TestOrphans_ClosedByNextLeader(t *testing.T) {
	for policy, want := range map[replay.ClosePolicy]journalpb.Status{
		replay.CancelChild:    journalpb.Status_STATUS_CANCELED,
		replay.TerminateChild: journalpb.Status_STATUS_TERMINATED,
		replay.AbandonChild:   journalpb.Status_STATUS_RUNNING,
	} {
		for _, ends := range []bool{true, false} {
			t.Run(fmt.Sprint(policy, ends), func(t *testing.T) {
				inVirtualTime(t, func(t *testing.T) {
					code := []replay.Definition{waitingChild(), program("parent", func(ctx *replay.Context, _ string) (string, error) {
						child := kid.Start(ctx, "", replay.ChildID("kid"), replay.OnParentClose(policy))
						if _, err := word.Wait(ctx); err != nil || ends {
							return "", err
						}
						child.Cancel(ctx)
						return word.Wait(ctx)
					})}
					j := newTestJournal()
					first := lead(t, j, actors.Config{}, code...)
					first.start("p", "parent", "").want(nil)
					waitIdle()
					j.configure(func(j *testJournal) { j.check = rejectInstance("kid") })
					first.send("p", "word", "").want(nil)
					time.Sleep(time.Minute)
					first.close()
					j.clearCrash()
					second := lead(t, j, actors.Config{}, code...)
					time.Sleep(time.Minute)
					second.awaitStatus("kid", want)
				})
			})
		}
	}
}

// Looking for orphans takes time in proportion to running children. Only orphans wait for it.
func TestOrphans_ScanDoesNotBlockCalls(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		j.orphanScanDelay = time.Hour
		start := time.Now()
		n := lead(t, j, actors.Config{}, waitingChild())
		n.start("k", "kid", "").want(nil)
		if elapsed := time.Since(start); elapsed >= time.Hour {
			t.Errorf("answered after %v", elapsed)
		}
	})
}

// The parent cancels its child, or ends, before the child's start is recorded, and the node fails.
func TestRecovery_StartsAbandonedChild(t *testing.T) {
	for _, ends := range []bool{true, false} {
		t.Run(fmt.Sprint(ends), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				code := []replay.Definition{waitingChild(), program("parent", func(ctx *replay.Context, _ string) (string, error) {
					child := kid.Start(ctx, "", replay.ChildID("kid"), replay.OnParentClose(replay.AbandonChild))
					if _, err := word.Wait(ctx); err != nil || ends {
						return "", err
					}
					child.Cancel(ctx)
					return word.Wait(ctx)
				})}
				j := newTestJournal()
				j.check = rejectInstance("kid")
				first := lead(t, j, actors.Config{}, code...)
				first.start("p", "parent", "").want(nil)
				waitIdle()
				first.send("p", "word", "").want(nil)
				time.Sleep(time.Minute)
				first.close()
				j.clearCrash()
				second := lead(t, j, actors.Config{}, code...)
				time.Sleep(time.Minute)
				second.awaitStatus("kid", journalpb.Status_STATUS_RUNNING)
				if meta, _ := j.Instance("kid"); !proto.Equal(meta.Parent, &journalpb.OperationRef{Instance: "p", Execution: 1, EventId: 2}) {
					t.Errorf("its parent is %v", meta.Parent)
				}
			})
		})
	}
}

func TestReuse_InstanceID(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect(),
			program("fails", func(*replay.Context, string) (string, error) { return "", errFull }))
		start := func(name string, reuse actors.Reuse) *reply {
			m := message(n.startMessage(name, "x"))
			m.Reuse = reuse
			return n.deliver("c", m)
		}
		started := func(reuse actors.Reuse, execution uint64) {
			t.Helper()
			if a := start("collect", reuse).want(nil); a.Attached || a.Dropped || a.FirstExecution != execution {
				t.Errorf("%+v, want execution %d", a, execution)
			}
		}
		started(actors.ReuseNever, 1)
		for _, reuse := range []actors.Reuse{actors.ReuseNever, actors.ReuseEnded, actors.ReuseFailed} {
			start("collect", reuse).want(actors.ErrInstanceExists) // it runs
		}
		n.send("c", "word", "a").want(nil)
		n.wantOutput("c", "a")
		start("collect", actors.ReuseNever).want(actors.ErrInstanceExists)
		start("collect", actors.ReuseFailed).want(actors.ErrInstanceExists)
		started(actors.ReuseEnded, 2)
		n.send("c", "word", "b").want(nil)
		n.wantOutput("c", "b")
		start("fails", actors.ReuseEnded).want(nil)
		n.awaitStatus("c", journalpb.Status_STATUS_FAILED)
		start("collect", actors.ReuseNever).want(actors.ErrInstanceExists)
		started(actors.ReuseFailed, 4)
		n.wantHistory("c", "OrchestrationStarted", "ExternalSubscribed")
	})
}

var progress = replay.Query[string, string]("progress")

func queryable() replay.Definition {
	return program("questioned", func(ctx *replay.Context, text string) (string, error) {
		err := progress.Handle(ctx, func(suffix string) (string, error) { return text + suffix, nil })
		for err == nil && len(text) < 3 {
			var next string
			next, err = word.Wait(ctx)
			text += next
		}
		return text, err
	})
}

func (n *node) ask(id, query string) actors.Answer {
	n.t.Helper()
	q := &actors.Query{Name: query, Input: payload(n.t, "!")}
	a := n.deliver(id, actors.Message{Query: q}).get()
	if errors.Is(a.Err, actors.ErrEnded) {
		a, _ = n.partition.QueryEnded(context.Background(), id, q)
	}
	return a
}

func (n *node) wantAnswer(id, want string) {
	n.t.Helper()
	a := n.ask(id, "progress")
	var got string
	if err := engine.Decode(a.Output, &got); a.Err != nil || err != nil || got != want {
		n.t.Errorf("answered %q, %v, %v, want %q", got, a.Err, err, want)
	}
}

func TestQuery_NotRecorded(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		first := lead(t, j, actors.Config{ResidentMax: 1}, queryable(), collect())
		first.start("q", "questioned", "").want(nil)
		first.wantAnswer("q", "!")
		first.send("q", "word", "a").want(nil)
		first.wantAnswer("q", "a!")
		first.start("c", "collect", "x").want(nil) // evicts the other
		waitIdle()
		first.wantAnswer("q", "a!")
		first.close()
		second := lead(t, j, actors.Config{}, queryable(), collect())
		second.wantAnswer("q", "a!")
		if a := second.ask("q", "other"); a.Err == nil {
			t.Error("an unknown query was answered")
		}
		second.wantHistory("q", "OrchestrationStarted", "ExternalSubscribed", "ExternalEvent", "ExternalSubscribed")
		second.send("q", "word", "bc").want(nil)
		second.wantOutput("q", "abc")
		second.wantAnswer("q", "abc!")
		if a := second.ask("q", "other"); a.Err == nil {
			t.Error("an unknown query was answered after the end")
		}
		second.close()
		third := lead(t, j, actors.Config{}, collect())
		var missing *replay.NotRegisteredError
		if a := third.ask("q", "progress"); !errors.As(a.Err, &missing) || missing.Kind != "orchestration" {
			t.Errorf("without the code: %v", a.Err)
		}
		third.close()
		fourth := lead(t, j, actors.Config{}, program("questioned", func(ctx *replay.Context, _ string) (string, error) {
			return upper.Call(ctx, "a")
		}))
		if a := fourth.ask("q", "progress"); a.Err == nil || !strings.Contains(a.Err.Error(), "does not fit the history of the ended instance") {
			t.Errorf("with other code: %v", a.Err)
		}
		second = fourth
		if a := second.ask("unknown", "progress"); !isError(a.Err, actors.ErrNotFound) {
			t.Errorf("of nobody: %v", a.Err)
		}
	})
}

// stalledInstance makes an instance "o", a child of "p", stall because code and history disagree.
// It returns the node and a message that waits.
func stalledInstance(t *testing.T, j *testJournal) (*node, *reply) {
	t.Helper()
	return stalledInstanceWith(t, j, actors.Config{})
}

func stalledInstanceWith(t *testing.T, j *testJournal, config actors.Config) (*node, *reply) {
	t.Helper()
	code := []replay.Definition{bindUpper(), twoActivities(false), program("parent", func(ctx *replay.Context, _ string) (string, error) {
		return replay.Orchestration[string, string]("ordered").Call(ctx, "", replay.ChildID("o"))
	})}
	first := lead(t, j, actors.Config{}, code...)
	first.start("p", "parent", "").want(nil)
	waitIdle()
	first.close()
	j.corruptEvents = func(id string) iter.Seq2[*journalpb.Event, error] {
		if id != "o" {
			return nil
		}
		return func(yield func(*journalpb.Event, error) bool) {
			for event, err := range j.Machine.Events(id, 0, 1) {
				if scheduled := event.GetActivityScheduled(); scheduled != nil {
					scheduled.Name = "another"
				}
				if !yield(event, err) {
					return
				}
			}
		}
	}
	second := lead(t, j, config, code...)
	sent := second.send("o", "word", "x")
	waitIdle()
	if second.partition.StallReason("o") == nil {
		t.Fatal("it is not stalled")
	}
	return second, sent
}

func TestStall_Terminate(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n, sent := stalledInstance(t, newTestJournal())
		n.deliver("o", actors.Message{Message: engine.Message{Event: &journalpb.Event{Body: &journalpb.Event_OrchestrationTerminated{
			OrchestrationTerminated: &journalpb.OrchestrationTerminated{Reason: "enough"},
		}}}}).want(nil)
		n.awaitStatus("o", journalpb.Status_STATUS_TERMINATED)
		sent.want(actors.ErrEnded)
		if err := n.failure("p"); !isError(err, replay.ErrTerminated) {
			t.Errorf("the parent failed with %v", err)
		}
		if err := n.partition.StallReason("o"); err != nil {
			t.Errorf("still stalled: %v", err)
		}
	})
}

func TestStall_Retry(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		n, sent := stalledInstance(t, j)
		n.partition.Retry("o") // nothing has changed
		waitIdle()
		if n.partition.StallReason("o") == nil {
			t.Fatal("the instance is no longer stalled")
		}
		sent.wantPending()
		j.configure(func(j *testJournal) { j.corruptEvents = nil })
		n.partition.Retry("o")
		sent.want(nil)
		n.wantOutput("o", "x[A B]")
		n.wantOutput("p", "x[A B]")
	})
}

// Retry is called before the instance has stalled.
func TestStall_RetryWhileStalling(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		n, sent := stalledInstance(t, j)
		for range 200 {
			n.partition.Retry("o")
			runtime.Gosched()
		}
		waitIdle()
		sent.wantPending()
		j.configure(func(j *testJournal) { j.corruptEvents = nil })
		n.partition.Retry("o")
		sent.want(nil)
		n.wantOutput("o", "x[A B]")
	})
}
