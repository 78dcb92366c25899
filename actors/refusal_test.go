package actors_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// checkedWord is an event of the name that collect waits for, whose data is checked.
func checkedWord(t testing.TB, value any, requestID string) actors.Message {
	return actors.Message{Message: engine.Message{CheckData: true, Event: &journalpb.Event{Body: &journalpb.Event_ExternalEvent{
		ExternalEvent: &journalpb.ExternalEvent{Name: "word", Data: payload(t, value), RequestId: requestID},
	}}}}
}

// wantRefused waits for the answer, which must refuse the data as not being of a type.
func (r *reply) wantRefused(typeName string) {
	r.t.Helper()
	var refused *replay.PayloadError
	if a := r.get(); !errors.As(a.Err, &refused) || refused.Name != "word" || refused.Type != typeName || refused.Sent == "" {
		r.t.Fatalf("answered %+v, want a refusal as %s", a, typeName)
	}
}

// bindCounted binds a collect that counts how often its code begins.
func bindCounted(begun *atomic.Int32, options ...replay.Option) replay.Definition {
	return replay.Orchestration[string, string]("counted").Bind(func(ctx *replay.Context, letters string) (string, error) {
		begun.Add(1)
		var words []string
		for range letters {
			text, err := word.Wait(ctx)
			if err != nil {
				return "", err
			}
			words = append(words, text)
		}
		return strings.Join(words, " "), nil
	}, options...)
}

func TestRefusal_BySubscriptionOfResidentAndReloaded(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		n := lead(t, j, actors.Config{}, collect())
		n.start("c", "collect", "xx").want(nil)
		n.deliver("c", checkedWord(t, 1, "r1")).wantRefused("string")
		n.deliver("c", checkedWord(t, "a", "r1")).want(nil)
		n.close()
		next := lead(t, j, actors.Config{}, collect())
		next.deliver("c", checkedWord(t, []int{2}, "r2")).wantRefused("string")
		next.deliver("c", checkedWord(t, 1, "r1")).want(nil) // its request ID was recorded
		next.deliver("c", checkedWord(t, "b", "r2")).want(nil)
		next.wantOutput("c", "a b")
		next.wantHistory("c", "OrchestrationStarted", "ExternalSubscribed", "ExternalEvent", "ExternalSubscribed", "ExternalEvent", "OrchestrationCompleted")
		next.deliver("c", checkedWord(t, 3, "r3")).want(actors.ErrEnded)
		next.deliver("unknown", checkedWord(t, 3, "")).want(actors.ErrNotFound)
	})
}

// An evicted instance refuses by the declaration of its code, which does not run.
func TestRefusal_ByDeclarationWithoutReplay(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var begun atomic.Int32
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, bindCounted(&begun))
		first.start("c", "counted", "xx").want(nil)
		first.sendWithRequestID("c", "word", "r1", "a").want(nil)
		first.close()
		n := lead(t, j, actors.Config{}, bindCounted(&begun, replay.Receives(word)))
		waitIdle()
		before := begun.Load()
		for i := range 3 {
			n.deliver("c", checkedWord(t, i, fmt.Sprint("w", i))).wantRefused("string")
		}
		n.deliver("c", checkedWord(t, 4, "")).wantRefused("string")
		waitIdle()
		if begun.Load() != before {
			t.Errorf("the code began %d times for the refusals", begun.Load()-before)
		}
		n.deliver("c", checkedWord(t, 1, "r1")).want(nil) // recorded before, so it is not refused
		retried := checkedWord(t, 1, "r1")
		retried.Retried = true
		n.deliver("c", retried).want(nil)
		n.deliver("c", checkedWord(t, "b", "w0")).want(nil)
		n.wantOutput("c", "a b")
		if events := len(n.events("c")); events != 6 {
			t.Errorf("history %v", n.history("c"))
		}
	})
}

// The declaration decides alike for an instance in memory and for an evicted one, whatever types
// the code has subscribed with.
func TestRefusal_SameInMemoryAndEvicted(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, replay.Orchestration[string, string]("mixed").Bind(func(ctx *replay.Context, _ string) (string, error) {
			text, number := word.Subscribe(ctx), replay.Event[int]("word").Subscribe(ctx)
			if _, err := lateEvent.Wait(ctx); err != nil {
				return "", err
			}
			first, err := text.Await(ctx)
			if err != nil {
				return "", err
			}
			second, err := number.Await(ctx)
			return fmt.Sprint(first, second), err
		}, replay.Receives(word, replay.Event[[]bool]("word"))))
		n.start("c", "mixed", "").want(nil)
		for _, evicted := range []bool{false, true} {
			waitIdle()
			if evicted {
				n.partition.EvictIdle("c")
				waitIdle()
			}
			n.deliver("c", checkedWord(t, 1, "")).wantRefused("string or []bool")
		}
		n.deliver("c", checkedWord(t, "a", "")).want(nil)
		n.deliver("c", checkedWord(t, []bool{true}, "")).want(nil)
		if events := n.history("c"); len(events) != 6 {
			t.Errorf("history %v", events)
		}
	})
}

// deliverTogether delivers messages to an instance while another instance has the only turn, so
// that they are in one batch. The node needs TurnsMax 1 and the code of collect.
func (n *node) deliverTogether(id string, messages ...actors.Message) (replies []*reply) {
	n.t.Helper()
	n.journal.holdAppends()
	before := n.start("before "+id, "collect", "")
	waitIdle()
	for _, m := range messages {
		replies = append(replies, n.deliver(id, m))
	}
	n.journal.releaseAppends()
	before.want(nil)
	return replies
}

// An event that was not sent with the start is checked, also if neither has a request ID and both
// are in one batch.
func TestRefusal_InBatchOfStart(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{TurnsMax: 1}, collect())
		start, sent := startWith(n, "collect", "xx", 4, "")
		replies := n.deliverTogether("c", start, sent, checkedWord(t, 5, ""))
		replies[1].want(nil) // one commit with the start
		replies[2].want(actors.ErrEnded)
		start, _ = startWith(n, "collect", "xx", 4, "")
		start.Sent = nil
		n.deliverTogether("d", start, checkedWord(t, 5, ""))[1].wantRefused("string")
	})
}

// A refusal of an event with a fresh request ID does not search the history for it. The test sends
// an ID that is recorded, as no caller does, to see that.
func TestRefusal_FreshIDIsNotSearched(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var begun atomic.Int32
		n := lead(t, newTestJournal(), actors.Config{}, bindCounted(&begun, replay.Receives(word)))
		n.start("c", "counted", "xx").want(nil)
		n.sendWithRequestID("c", "word", "r1", "a").want(nil)
		waitIdle()
		n.partition.EvictIdle("c")
		waitIdle()
		fresh := checkedWord(t, 1, "r1")
		fresh.FreshID = true
		n.deliver("c", fresh).wantRefused("string")
		n.deliver("c", checkedWord(t, 1, "r1")).want(nil)
	})
}

// A batch may mix events that are refused with others.
func TestRefusal_InBatchOfEvictedInstance(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var begun atomic.Int32
		j := newTestJournal()
		code := bindCounted(&begun, replay.Receives(word))
		first := lead(t, j, actors.Config{}, code)
		first.start("c", "counted", "xx").want(nil)
		first.close()
		n := lead(t, j, actors.Config{TurnsMax: 1}, code, collect())
		replies := n.deliverTogether("c", checkedWord(t, 1, ""), checkedWord(t, "a", ""), checkedWord(t, true, ""),
			checkedWord(t, "b", ""), checkedWord(t, 2, ""))
		for i, r := range replies {
			if i%2 == 0 {
				r.wantRefused("string")
			} else {
				r.want(nil)
			}
		}
		n.wantOutput("c", "a b")
	})
}

// An event that an earlier execution has recorded is not refused.
func TestRefusal_KnowsCarriedRequests(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		handle := replay.Orchestration[int, string]("carries")
		bind := func(options ...replay.Option) replay.Definition {
			return handle.Bind(func(ctx *replay.Context, round int) (string, error) {
				if _, err := lateEvent.Wait(ctx); err != nil {
					return "", err
				}
				if round == 0 {
					return "", handle.ContinueAsNew(ctx, 1)
				}
				return "done", nil
			}, options...)
		}
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, bind())
		first.start("c", "carries", 0).want(nil)
		first.sendWithRequestID("c", "word", "r1", 17).want(nil)
		first.sendWithRequestID("c", "late", "r2", "x").want(nil)
		waitIdle()
		first.close()
		n := lead(t, j, actors.Config{}, bind(replay.Receives(word)))
		n.deliver("c", checkedWord(t, 17, "r1")).want(nil)
		n.deliver("c", checkedWord(t, 17, "r3")).wantRefused("string")
	})
}

// startWith returns a start with an event, as SendOrStart delivers it.
func startWith(n *node, name string, input, value any, requestID string) (start, event actors.Message) {
	started := n.startMessage(name, input)
	started.RequestId = requestID
	start, event = message(started), checkedWord(n.t, value, requestID)
	start.Attach, start.Sent = true, event.Event.GetExternalEvent()
	return start, event
}

func TestRefusal_OfStartWithEvent(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var begun atomic.Int32
		n := lead(t, newTestJournal(), actors.Config{}, bindCounted(&begun, replay.Receives(word)), collect())
		start, event := startWith(n, "counted", "x", 1, "r1")
		n.deliver("c", start).wantRefused("string")
		n.deliver("c", event).want(actors.ErrNotFound)
		if _, exists := n.journal.Instance("c"); exists || begun.Load() != 0 {
			t.Error("the instance was started")
		}
		start, event = startWith(n, "counted", "xx", "a", "r2")
		n.deliver("c", start).want(nil)
		n.deliver("c", event).want(nil)
		start, event = startWith(n, "counted", "xx", 2, "r3") // it attaches
		n.deliver("c", start).want(nil)
		n.deliver("c", event).wantRefused("string")
		start, event = startWith(n, "counted", "xx", "b", "r4")
		n.deliver("c", start).want(nil)
		n.deliver("c", event).want(nil)
		n.wantOutput("c", "a b")
		start, event = startWith(n, "counted", "xx", 3, "r5")
		start.Attach, start.Reuse = false, actors.ReuseEnded
		n.deliver("c", start).wantRefused("string")
		n.deliver("c", event).want(actors.ErrEnded)
		// Without a declaration the type is not known at the start: start and event are one commit.
		start, event = startWith(n, "collect", "x", 4, "r6")
		n.deliver("other", start).want(nil)
		n.deliver("other", event).want(nil)
		if err := n.failure("other"); !errors.As(err, new(*replay.PayloadError)) {
			t.Errorf("failed with %v", err)
		}
	})
}

func TestRefusal_ReachesSendingInstance(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		wrongWord := replay.Event[int]("word")
		sender := program("sends", func(ctx *replay.Context, receiver string) (string, error) {
			err := wrongWord.SendTo(ctx, receiver, 4711)
			var refused *replay.PayloadError
			if !errors.As(err, &refused) {
				return "", fmt.Errorf("error %w", err)
			}
			return fmt.Sprint(refused.Name, " ", refused.Type, " ", refused.Sent, ": ", err), word.SendTo(ctx, receiver, "right")
		})
		j := newTestJournal()
		n := lead(t, j, actors.Config{}, sender, collect())
		n.start("c", "collect", "x").want(nil)
		n.start("s", "sends", "c").want(nil)
		n.wantOutput("c", "right")
		want := `word string 4711: send "word" to c: decode data of event "word" as string: sent 4711: json: cannot unmarshal number into Go value of type string`
		n.wantOutput("s", want)
		n.wantHistory("s", "OrchestrationStarted", "MessageSent", "MessageRejected of 2", "MessageSent", "MessageDelivered of 4", "OrchestrationCompleted")
		if n.log.contains("4711") {
			t.Errorf("the log shows the data:\n%s", &n.log.text)
		}
		// The text is the same on replay, and in the history.
		x := engine.NewExecution("s", 1, registryFor(t, sender, collect()), nil)
		defer x.Evict()
		if err := x.Replay(j.Machine.Events("s", 0, 1)); err != nil {
			t.Error(err)
		}
	})
}

func registryFor(t *testing.T, definitions ...replay.Definition) *engine.Registry {
	t.Helper()
	registry, err := engine.NewRegistry(definitions...)
	if err != nil {
		t.Fatal(err)
	}
	return registry.WithStrict(true)
}

// slowData is data whose decoding blocks until the channel is closed.
type slowData struct{}

var slowDecoding atomic.Pointer[chan struct{}]

func (*slowData) UnmarshalJSON([]byte) error {
	blockHere(*slowDecoding.Load())
	return errors.New("slow")
}

// Decoding that blocks makes the instance hung, like its other code, and no other one.
func TestRefusal_BlockedDecoding(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		release := make(chan struct{})
		slowDecoding.Store(&release)
		slow := replay.Event[slowData]("word")
		body := func(ctx *replay.Context, _ string) (string, error) {
			_, err := slow.Wait(ctx)
			return "", err
		}
		handle := replay.Orchestration[string, string]("slow")
		for name, c := range map[string]struct {
			definition replay.Definition
			evicted    bool
		}{
			"subscribed": {handle.Bind(body), false}, "declared": {handle.Bind(body, replay.Receives(slow)), true},
		} {
			j := newTestJournal()
			n := lead(t, j, actors.Config{}, c.definition, collect())
			n.start("s", "slow", "").want(nil)
			waitIdle()
			if c.evicted {
				n.partition.EvictIdle("s")
				waitIdle()
			}
			sent := n.deliver("s", checkedWord(t, "x", ""))
			time.Sleep(10 * time.Second)
			if hung, _ := n.partition.LiveState("s"); !hung {
				t.Errorf("%s: not hung", name)
			}
			n.start("c", "collect", "x").want(nil)
			n.deliver("c", checkedWord(t, "a", "")).want(nil)
			n.wantOutput("c", "a")
			terminate(n, "s").want(nil)
			n.awaitStatus("s", journalpb.Status_STATUS_TERMINATED)
			sent.want(actors.ErrEnded)
			if len(n.events("s")) != 3 {
				t.Errorf("%s: %v", name, n.history("s"))
			}
		}
		close(release)
		time.Sleep(time.Minute)
	})
}

// A start whose event cannot be decoded at once is recorded without the check.
func TestRefusal_BlockedDecodingOfStart(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		release := make(chan struct{})
		slowDecoding.Store(&release)
		slow := replay.Event[slowData]("word")
		n := lead(t, newTestJournal(), actors.Config{}, replay.Orchestration[string, string]("slow").Bind(func(ctx *replay.Context, _ string) (string, error) {
			return lateEvent.Wait(ctx)
		}, replay.Receives(slow)))
		start, event := startWith(n, "slow", "", "x", "r1")
		first, second := n.deliver("s", start), n.deliver("s", event)
		first.want(nil)
		second.want(nil)
		n.send("s", "late", "done").want(nil)
		n.wantOutput("s", "done")
		close(release)
		time.Sleep(time.Minute)
	})
}

func TestCheckStalled(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		handle := replay.Orchestration[string, string]("ordered")
		bind := func(name string) replay.Definition {
			return handle.Bind(func(ctx *replay.Context, _ string) (string, error) {
				if _, err := replay.Event[string](name).Wait(ctx); err != nil {
					return "", err
				}
				return word.Wait(ctx)
			}, replay.Receives(word))
		}
		first := lead(t, j, actors.Config{}, bind("first"))
		first.start("o", "ordered", "").want(nil)
		first.close()
		n := lead(t, j, actors.Config{}, bind("second"))
		check := func(value any) error {
			return n.partition.CheckStalled(t.Context(), "o", checkedWord(t, value, "").Event.GetExternalEvent())
		}
		if err := check(1); err != nil {
			t.Errorf("before it has stalled: %v", err)
		}
		waiting := n.deliver("o", checkedWord(t, "a", ""))
		waitIdle()
		waiting.wantPending()
		if n.partition.StallReason("o") == nil {
			t.Fatal("not stalled")
		}
		if err := check(1); !errors.As(err, new(*replay.PayloadError)) {
			t.Errorf("while it is stalled: %v", err)
		}
		if err := check("b"); err != nil {
			t.Errorf("data that fits: %v", err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := n.partition.CheckStalled(ended, "unknown", checkedWord(t, 1, "").Event.GetExternalEvent()); err != nil {
			t.Errorf("nobody: %v", err)
		}
		n.close()
		release := make(chan struct{})
		slowDecoding.Store(&release)
		stalled := checkedWord(t, "x", "").Event.GetExternalEvent()
		blocked, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		slow := stalledWithSlowData(t, "o")
		if err := slow.partition.CheckStalled(blocked, "o", stalled); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("while decoding blocks: %v", err)
		}
		close(release)
		// A leader on which the instance has no actor knows from the journal that it is stalled.
		n = lead(t, j, actors.Config{}, bind("second"))
		if err := check(1); !errors.As(err, new(*replay.PayloadError)) {
			t.Errorf("after the failover: %v", err)
		}
	})
}

// Decoding that blocks delays a sender to a stalled instance by at most 100 ms. It takes no slot
// that other work needs, and the instances that do not declare the event need none.
func TestCheckStalled_BlockedDecoding(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		release := make(chan struct{})
		slowDecoding.Store(&release)
		var ids []string
		for i := range 20 { // more than there are slots
			ids = append(ids, fmt.Sprint("o", i))
		}
		n := stalledWithSlowData(t, ids...)
		n.start("ended", "answers", "").want(nil)
		n.wantOutput("ended", "over")
		check := func(id, name string, data any) (time.Duration, error) {
			began := time.Now()
			err := n.partition.CheckStalled(t.Context(), id, &journalpb.ExternalEvent{Name: name, Data: payload(t, data)})
			return time.Since(began), err
		}
		for _, id := range append(ids, ids[0]) {
			if took, err := check(id, "word", "x"); took != 100*time.Millisecond || err != nil {
				t.Errorf("%s: %v after %v", id, err, took)
			}
			if took, err := check(id, "undeclared", "x"); took != 0 || err != nil {
				t.Errorf("%s, not declared: %v after %v", id, err, took)
			}
		}
		if answer, ok := n.partition.QueryEnded(t.Context(), "ended", &actors.Query{Name: "q", Input: payload(t, "")}); !ok || answer.Err != nil {
			t.Errorf("query of an ended instance: %+v, %t", answer, ok)
		}
		close(release)
		waitIdle()
		if took, err := check(ids[0], "word", "x"); took != 0 || !errors.As(err, new(*replay.PayloadError)) {
			t.Errorf("after the code has returned: %v after %v", err, took)
		}
	})
}

// stalledWithSlowData returns a node with stalled instances, whose data cannot be decoded at once.
func stalledWithSlowData(t *testing.T, ids ...string) *node {
	t.Helper()
	j := newTestJournal()
	bind := func(name string) replay.Definition {
		return replay.Orchestration[string, string]("slow").Bind(func(ctx *replay.Context, _ string) (string, error) {
			return replay.Event[string](name).Wait(ctx)
		}, replay.Receives(replay.Event[slowData]("word")))
	}
	first := lead(t, j, actors.Config{}, bind("first"))
	for _, id := range ids {
		first.start(id, "slow", "").want(nil)
	}
	first.close()
	n := lead(t, j, actors.Config{}, bind("second"), program("answers", func(ctx *replay.Context, _ string) (string, error) {
		return "over", replay.Query[string, string]("q").Handle(ctx, func(string) (string, error) { return "a", nil })
	}))
	for _, id := range ids {
		n.send(id, "third", "")
	}
	waitIdle()
	for _, id := range ids {
		if n.partition.StallReason(id) == nil {
			t.Fatalf("%s is not stalled", id)
		}
	}
	return n
}
