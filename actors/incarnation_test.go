package actors_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// leadNewest is lead where every run that begins gets an incarnation.
func leadNewest(t *testing.T, j *testJournal, config actors.Config, definitions ...replay.Definition) *node {
	t.Helper()
	registry, err := replay.NewRegistry(definitions...)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, journal: j, log: new(logBook)}
	config.Registry, config.Logger = registry, slog.New(slog.NewTextHandler(n.log, nil))
	n.system = actors.NewSystem(config)
	place := actors.Place{Incarnations: func() bool { return true }}
	n.partition = n.system.LeadAt(t.Context(), place, j, j.reign(t))
	t.Cleanup(n.close)
	return n
}

// purge removes an instance that has ended.
func (n *node) purge(id string) {
	n.t.Helper()
	n.journal.mu.Lock()
	defer n.journal.mu.Unlock()
	purged, err := n.journal.apply(&journalpb.Record{Command: &journalpb.Record_Purge{
		Purge: &journalpb.Purge{Epoch: n.partition.Epoch(), Instances: []string{id}},
	}})
	if err != nil || purged != 1 {
		n.t.Fatalf("purge %s: %d, %v", id, purged, err)
	}
}

// A parent gives its child up, and the child goes on as new. Later leaders find a child
// that nobody waits for, and do not ask it again.
func TestAParentAsksItsChildOnceToCancel(t *testing.T) {
	for name, earlier := range map[string]bool{"the parent first": false, "a client before the parent": true} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				goesOn := program("kid", func(ctx *replay.Context, _ string) (string, error) {
					_, err := word.Wait(ctx)
					if errors.Is(err, replay.ErrCanceled) && ctx.Execution() == 1 {
						_ = replay.WithoutCancel(ctx).Sleep(time.Minute)
						return "", kid.ContinueAsNew(ctx, "")
					}
					return "", err
				})
				j := newTestJournal()
				n := lead(t, j, actors.Config{}, goesOn, program("parent", func(ctx *replay.Context, _ string) (string, error) {
					child := kid.Start(ctx, "", replay.ChildID("c"))
					_, err := word.Wait(ctx)
					child.Cancel(ctx)
					return "gave it up", err
				}))
				n.start("p", "parent", "").want(nil)
				idle()
				if earlier {
					n.deliver("c", actors.Message{Message: replay.Message{Event: &journalpb.Event{
						Body: &journalpb.Event_OrchestrationCancelRequested{OrchestrationCancelRequested: new(journalpb.OrchestrationCancelRequested)},
					}}}).want(nil)
				}
				n.send("p", "word", "").want(nil)
				n.wantOutput("p", "gave it up")
				time.Sleep(2 * time.Minute)
				if known, _ := j.Instance("c"); known.Execution != 2 {
					t.Fatalf("the child: %v", known)
				}
				for range 3 {
					n.partition.Close()
					n = n.again()
					time.Sleep(time.Minute)
				}
				n.awaitStatus("c", journalpb.Status_STATUS_RUNNING)
				n.wantHistory("c", "OrchestrationStarted", "ExternalSubscribed")
			})
		})
	}
}

func terminated() actors.Message {
	return actors.Message{Message: replay.Message{Event: &journalpb.Event{
		Body: &journalpb.Event_OrchestrationTerminated{OrchestrationTerminated: new(journalpb.OrchestrationTerminated)},
	}}}
}

// held binds work that returns a result when it is told to.
func held(result string, until <-chan struct{}) replay.Definition {
	return work.Bind(func(context.Context, int) (string, error) {
		<-until
		return result, nil
	})
}

// A worker that was cut off brings the result of a run that was purged meanwhile. It
// does not end the activity of the run that has the ID now.
func TestALateResultOfAPurgedRunIsDropped(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := leadNewest(t, newTestJournal(), actors.Config{}, call())
		first, second := make(chan struct{}), make(chan struct{})
		a := workerOn(t, "a", actors.Config{}, held("old", first))
		wired := a.work(n)
		n.start("c", "call", "").want(nil)
		idle()
		wired.end()
		n.deliver("c", terminated()).want(nil)
		idle()
		n.purge("c")
		close(first)
		workerOn(t, "b", actors.Config{}, held("new", second)).work(n)
		n.start("c", "call", "").want(nil)
		idle()
		a.work(n) // brings its result
		if history := n.history("c"); len(history) != 2 {
			t.Fatalf("the late result was taken: %q", history)
		}
		close(second)
		n.wantOutput("c", "new")
	})
}

// What is meant for a run does not reach the one after it, and what is meant for
// whichever run has the ID does.
func TestAMessageForAPurgedRunIsDropped(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := leadNewest(t, newTestJournal(), actors.Config{}, call(), patient())
		begin := func() uint64 {
			t.Helper()
			n.start("c", "kid", "").want(nil)
			known, _ := n.journal.Instance("c")
			return known.Incarnation
		}
		old := begin()
		n.deliver("c", terminated()).want(nil)
		idle()
		n.purge("c")
		current := begin()
		if current <= old || old == 0 {
			t.Fatalf("incarnation %d after %d", current, old)
		}
		for _, execution := range []uint64{0, 1} {
			m := terminated()
			m.Internal, m.Execution, m.Incarnation = true, execution, old
			if answer := n.deliver("c", m).want(nil); !answer.Dropped {
				t.Errorf("a message for execution %d of the purged run was taken", execution)
			}
		}
		n.awaitStatus("c", journalpb.Status_STATUS_RUNNING)
		m := terminated()
		m.Internal, m.Incarnation = true, current
		n.deliver("c", m).want(nil)
		n.awaitStatus("c", journalpb.Status_STATUS_TERMINATED)
	})
}

// The other partition asks for the child of a run that was purged, under whose ID a child
// of the next run of its parent has begun.
func TestACrossingForTheChildOfAPurgedRunIsDropped(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := leadNewest(t, newTestJournal(), actors.Config{}, patient())
		start := n.startMessage("kid", "")
		start.Parent = &journalpb.OperationRef{Instance: "p", Incarnation: 8, Execution: 1, EventId: 2}
		n.deliver("c", message(start)).want(nil)
		ask := func(incarnation uint64) (answer actors.Answer) {
			answers := make(chan actors.Answer, 1)
			parent := proto.CloneOf(start.Parent)
			parent.Incarnation = incarnation
			n.partition.Receive(&actors.Crossing{Instance: "c", Event: terminated().Event, ChildOf: parent}, func(a actors.Answer) { answers <- a })
			return <-answers
		}
		if answer := ask(7); answer.Err != nil || !answer.Dropped {
			t.Errorf("for the child of the purged run: %+v", answer)
		}
		n.awaitStatus("c", journalpb.Status_STATUS_RUNNING)
		if answer := ask(8); answer.Err != nil || answer.Dropped {
			t.Errorf("for the child itself: %+v", answer)
		}
		n.awaitStatus("c", journalpb.Status_STATUS_TERMINATED)
	})
}

// A start keeps all that it says when it gets an incarnation, and what the sender has,
// who may repeat it, is left alone.
func TestAStartKeepsAllItsFieldsWithAnIncarnation(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := leadNewest(t, newTestJournal(), actors.Config{}, patient())
		start := n.startMessage("kid", "")
		start.Tags, start.RequestId, start.Trace, start.StartAt = map[string]string{"a": "b"}, "r", "t", 5
		start.Inbox = []*journalpb.ExternalEvent{{Name: "word", Data: payload(t, "x")}}
		start.Parent = &journalpb.OperationRef{Instance: "p", Execution: 1, EventId: 2}
		sent := proto.CloneOf(start)
		n.deliver("c", message(start)).want(nil)
		if !proto.Equal(start, sent) {
			t.Errorf("the sender's message is now %v", start)
		}
		recorded := n.events("c")[0].GetOrchestrationStarted()
		if recorded.Incarnation != journalpb.NewIncarnation(n.partition.Epoch(), 1) {
			t.Errorf("incarnation %d", recorded.Incarnation)
		}
		recorded.Incarnation = 0
		if !proto.Equal(recorded, sent) {
			t.Errorf("recorded as %v, sent as %v", recorded, sent)
		}
	})
}
