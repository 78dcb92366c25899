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
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// leadWithIncarnations is lead with an incarnation for every new run.
func leadWithIncarnations(t *testing.T, j *testJournal, config actors.Config, definitions ...replay.Definition) *node {
	t.Helper()
	registry, err := engine.NewRegistry(definitions...)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, journal: j, log: new(logBuffer)}
	config.Registry, config.Logger = registry, slog.New(slog.NewTextHandler(n.log, nil))
	n.system = actors.NewSystem(config)
	n.partitionConfig = actors.PartitionConfig{HasIncarnations: func() bool { return true }}
	n.partition = n.system.LeadPartition(t.Context(), n.partitionConfig, j, j.newEpoch(t))
	t.Cleanup(n.close)
	return n
}

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

// A parent cancels its child, and the child continues as new. Later leaders find an orphan, and do
// not ask it to cancel again.
func TestIncarnation_ParentCancelsChildOnce(t *testing.T) {
	for name, earlier := range map[string]bool{"the parent first": false, "a client before the parent": true} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				continuing := program("kid", func(ctx *replay.Context, _ string) (string, error) {
					_, err := word.Wait(ctx)
					if errors.Is(err, replay.ErrCanceled) && ctx.Execution() == 1 {
						_ = replay.WithoutCancel(ctx).Sleep(time.Minute)
						return "", kid.ContinueAsNew(ctx, "")
					}
					return "", err
				})
				j := newTestJournal()
				n := lead(t, j, actors.Config{}, continuing, program("parent", func(ctx *replay.Context, _ string) (string, error) {
					child := kid.Start(ctx, "", replay.ChildID("c"))
					_, err := word.Wait(ctx)
					child.Cancel(ctx)
					return "gave it up", err
				}))
				n.start("p", "parent", "").want(nil)
				waitIdle()
				if earlier {
					n.deliver("c", actors.Message{Message: engine.Message{Event: &journalpb.Event{
						Body: &journalpb.Event_OrchestrationCancelRequested{OrchestrationCancelRequested: new(journalpb.OrchestrationCancelRequested)},
					}}}).want(nil)
				}
				n.send("p", "word", "").want(nil)
				n.wantOutput("p", "gave it up")
				time.Sleep(2 * time.Minute)
				if meta, _ := j.Instance("c"); meta.Execution != 2 {
					t.Fatalf("the child: %v", meta)
				}
				for range 3 {
					n.partition.Close()
					n = n.leadAgain()
					time.Sleep(time.Minute)
				}
				n.awaitStatus("c", journalpb.Status_STATUS_RUNNING)
				n.wantHistory("c", "OrchestrationStarted", "ExternalSubscribed")
			})
		})
	}
}

func terminationMessage() actors.Message {
	return actors.Message{Message: engine.Message{Event: &journalpb.Event{
		Body: &journalpb.Event_OrchestrationTerminated{OrchestrationTerminated: new(journalpb.OrchestrationTerminated)},
	}}}
}

// blockedWork binds work that returns a result when until is closed.
func blockedWork(result string, until <-chan struct{}) replay.Definition {
	return work.Bind(func(context.Context, int) (string, error) {
		<-until
		return result, nil
	})
}

// A disconnected worker brings the result of a run that was purged meanwhile. It must not end the
// activity of the run that has the ID now.
func TestIncarnation_DropsResultOfPurgedRun(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := leadWithIncarnations(t, newTestJournal(), actors.Config{}, call())
		first, second := make(chan struct{}), make(chan struct{})
		a := workerOn(t, "a", actors.Config{}, blockedWork("old", first))
		conn := a.connect(n)
		n.start("c", "call", "").want(nil)
		waitIdle()
		conn.close()
		n.deliver("c", terminationMessage()).want(nil)
		waitIdle()
		n.purge("c")
		close(first)
		workerOn(t, "b", actors.Config{}, blockedWork("new", second)).connect(n)
		n.start("c", "call", "").want(nil)
		waitIdle()
		a.connect(n) // brings its result
		if history := n.history("c"); len(history) != 2 {
			t.Fatalf("the late result was taken: %q", history)
		}
		close(second)
		n.wantOutput("c", "new")
	})
}

// A message for one run does not reach the next; a message for any run does.
func TestIncarnation_DropsMessageForPurgedRun(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := leadWithIncarnations(t, newTestJournal(), actors.Config{}, call(), waitingChild())
		start := func() uint64 {
			t.Helper()
			n.start("c", "kid", "").want(nil)
			meta, _ := n.journal.Instance("c")
			return meta.Incarnation
		}
		old := start()
		n.deliver("c", terminationMessage()).want(nil)
		waitIdle()
		n.purge("c")
		current := start()
		if current <= old || old == 0 {
			t.Fatalf("incarnation %d after %d", current, old)
		}
		for _, execution := range []uint64{0, 1} {
			m := terminationMessage()
			m.Internal, m.Execution, m.Incarnation = true, execution, old
			if answer := n.deliver("c", m).want(nil); !answer.Dropped {
				t.Errorf("a message for execution %d of the purged run was taken", execution)
			}
		}
		n.awaitStatus("c", journalpb.Status_STATUS_RUNNING)
		m := terminationMessage()
		m.Internal, m.Incarnation = true, current
		n.deliver("c", m).want(nil)
		n.awaitStatus("c", journalpb.Status_STATUS_TERMINATED)
	})
}

// The other partition sends a message for the child of a purged run. A child of the parent's next
// run has that ID.
func TestIncarnation_DropsCrossMessageForPurgedRun(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := leadWithIncarnations(t, newTestJournal(), actors.Config{}, waitingChild())
		start := n.startMessage("kid", "")
		start.Parent = &journalpb.OperationRef{Instance: "p", Incarnation: 8, Execution: 1, EventId: 2}
		n.deliver("c", message(start)).want(nil)
		ask := func(incarnation uint64) (answer actors.Answer) {
			answers := make(chan actors.Answer, 1)
			parent := proto.CloneOf(start.Parent)
			parent.Incarnation = incarnation
			n.partition.Receive(&actors.CrossMessage{Instance: "c", Event: terminationMessage().Event, ChildOf: parent}, func(a actors.Answer) { answers <- a })
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

// A start keeps all its fields when it gets an incarnation, and the sender's message, which may be
// repeated, is not changed.
func TestIncarnation_PreservesStartFields(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := leadWithIncarnations(t, newTestJournal(), actors.Config{}, waitingChild())
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
