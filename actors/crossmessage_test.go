package actors_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

var errMessageLost = errors.New("lost on the way")

// A partitionPair is two partitions, each on its own node. Instances whose IDs begin with "far"
// belong to the second.
type partitionPair struct {
	t        *testing.T
	near     *node
	far      *node
	journals [2]*testJournal

	mu sync.Mutex
	// dropMessage reports whether a message is lost, dropReply whether its answer is.
	dropMessage, dropReply func(*actors.CrossMessage) bool
	sent                   int
	started                []string
}

func newPartitionPair(t *testing.T, definitions ...replay.Definition) *partitionPair {
	p := &partitionPair{t: t, journals: [2]*testJournal{newTestJournal(), newTestJournal()}}
	p.near, p.far = p.node(0, definitions), p.node(1, definitions)
	return p
}

// A partitionView is one partition's view of the other.
type partitionView struct {
	pair      *partitionPair
	partition int
}

func partitionOf(instance string) int {
	if strings.HasPrefix(instance, "far") {
		return 1
	}
	return 0
}

func (v *partitionView) Owns(instance string) bool { return partitionOf(instance) != v.partition }

func (v *partitionView) Replica(instance string) actors.Replica {
	return v.pair.journals[partitionOf(instance)]
}

func (v *partitionView) Send(c *actors.CrossMessage, done func(actors.Answer)) {
	p := v.pair
	p.mu.Lock()
	p.sent++
	lost, dropReply := p.dropMessage != nil && p.dropMessage(c), p.dropReply != nil && p.dropReply(c)
	to := p.far
	if v.partition == 1 {
		to = p.near
	}
	p.mu.Unlock()
	switch {
	case lost:
		done(actors.Answer{Err: errMessageLost})
	case dropReply:
		to.partition.Receive(c, func(actors.Answer) { done(actors.Answer{Err: errMessageLost}) })
	default:
		to.partition.Receive(c, done)
	}
}

func (v *partitionView) ForgetChainedStart(target string, done func(error)) {
	p := v.pair
	p.mu.Lock()
	p.started = append(p.started, target)
	first := len(p.started) == 1
	p.mu.Unlock()
	if first {
		done(errMessageLost)
		return
	}
	done(nil)
}

// node opens one of the partitions on a system of its own.
func (p *partitionPair) node(partitionID int, definitions []replay.Definition) *node {
	p.t.Helper()
	registry, err := engine.NewRegistry(definitions...)
	if err != nil {
		p.t.Fatal(err)
	}
	n := &node{t: p.t, journal: p.journals[partitionID], log: new(logBuffer)}
	n.system = actors.NewSystem(actors.Config{Registry: registry})
	p.lead(n, partitionID)
	p.t.Cleanup(n.close)
	return n
}

// lead opens the partition in a new epoch.
func (p *partitionPair) lead(n *node, partitionID int) {
	partition := n.system.LeadPartition(context.Background(), actors.PartitionConfig{Partition: partitionID, OtherPartitions: &partitionView{p, partitionID}}, n.journal, n.journal.newEpoch(p.t))
	p.mu.Lock()
	defer p.mu.Unlock()
	n.partition = partition
}

// nextLeader replaces the lost leader of one of the partitions.
func (p *partitionPair) nextLeader(n *node, partitionID int) {
	n.partition.Close()
	p.lead(n, partitionID)
}

func (p *partitionPair) configure(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func anyMessage(*actors.CrossMessage) bool     { return true }
func anyInstance(string) bool                  { return true }
func isChildEnd(c *actors.CrossMessage) bool   { return c.Event.GetSubOrchestrationCompleted() != nil }
func isChildClose(c *actors.CrossMessage) bool { return c.ChildOf != nil }

// remoteParent calls a child of the other partition, and cancels it when a word comes.
func remoteParent(id string, options ...replay.Option) replay.Definition {
	return program("parent", func(ctx *replay.Context, text string) (string, error) {
		child := kid.Start(ctx, text, append(options, replay.ChildID(id))...)
		winner, err := replay.Race(ctx, child, word.Subscribe(ctx))
		if err != nil || winner > 0 {
			return "gave it up", err
		}
		return child.Await(ctx)
	})
}

// A message that is lost, or whose answer is lost, is sent again and recorded once.
func TestCrossMessage_RetriedTakenOnce(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		p := newPartitionPair(t, remoteParent("far"), waitingChild())
		seen := 0
		p.configure(func() {
			p.dropMessage = func(*actors.CrossMessage) bool { seen++; return seen%3 == 1 }
			p.dropReply = func(*actors.CrossMessage) bool { return seen%3 == 2 }
		})
		p.near.start("p", "parent", "").want(nil)
		p.far.awaitStatus("far", journalpb.Status_STATUS_RUNNING)
		p.far.send("far", "word", "a").want(nil)
		p.near.wantOutput("p", "a")
		if n := p.near.count("p", "SubOrchestrationCompleted"); n != 1 {
			t.Errorf("%d results", n)
		}
		if n := p.far.count("far", "OrchestrationStarted"); n != 1 {
			t.Errorf("%d starts", n)
		}
	})
}

// startOfFar returns the message that starts the instance "far".
func startOfFar(t *testing.T) *actors.CrossMessage {
	return &actors.CrossMessage{Instance: "far", Attach: true, Event: &journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{
		OrchestrationStarted: &journalpb.OrchestrationStarted{Name: "kid", Input: payload(t, ""), RequestId: "r"},
	}}}
}

// An unanswered message is not delivered a second time.
func TestCrossMessage_PendingDeliveredOnce(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		p := newPartitionPair(t, remoteParent("far"), waitingChild())
		p.far.journal.holdAppends()
		start := startOfFar(t)
		answers := make(chan int, 2)
		for i := range 2 {
			p.far.partition.Receive(start, func(actors.Answer) { answers <- i })
		}
		waitIdle()
		if n := len(p.far.journal.undecidedAppends()); n != 1 {
			t.Errorf("%d appends", n)
		}
		p.far.journal.releaseAppends()
		if got := <-answers; got != 1 {
			t.Errorf("the answer went to %d, want the latest", got)
		}
		waitIdle()
		if len(answers) > 0 {
			t.Error("two answers")
		}
	})
}

// A message that is repeated while the partition closes is answered, like the first one.
func TestCrossMessage_RepetitionAnsweredWhileClosing(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		p := newPartitionPair(t, remoteParent("far"), waitingChild())
		p.far.journal.holdAppends()
		start := startOfFar(t)
		first, second := make(chan actors.Answer, 1), make(chan actors.Answer, 1)
		p.far.partition.Receive(start, func(a actors.Answer) { first <- a })
		waitIdle()
		closed := make(chan struct{})
		go func() {
			p.far.partition.Close()
			close(closed)
		}()
		waitIdle()
		p.far.partition.Receive(start, func(a actors.Answer) { second <- a })
		if a := <-second; !errors.Is(a.Err, actors.ErrStopped) {
			t.Errorf("the repetition was answered with %v", a.Err)
		}
		p.far.journal.releaseAppends()
		<-first
		<-closed
	})
}

// newPairWithUnreportedEnd returns a pair in which the leader of a child has failed after the end
// of the child was committed and before it was reported.
func newPairWithUnreportedEnd(t *testing.T) *partitionPair {
	t.Helper()
	p := newPartitionPair(t, remoteParent("far"), waitingChild())
	p.near.start("p", "parent", "").want(nil)
	p.far.awaitStatus("far", journalpb.Status_STATUS_RUNNING)
	waitIdle()
	p.configure(func() { p.dropMessage = isChildEnd })
	p.far.send("far", "word", "a").want(nil)
	waitIdle()
	p.nextLeader(p.far, 1)
	return p
}

// The leader of the child fails after the end is committed and before it is reported.
func TestReview_FindsUnreportedChildEnd(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		p := newPairWithUnreportedEnd(t)
		time.Sleep(time.Hour)
		if p.near.count("p", "SubOrchestrationCompleted") != 0 {
			t.Fatal("the end was reported")
		}
		p.near.partition.ResendAfterFailover(anyInstance)
		p.near.wantOutput("p", "a")
	})
}

// The leader of the parent fails too; the next one recovers the operation.
func TestRecovery_FindsRemoteChildEnd(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		p := newPairWithUnreportedEnd(t)
		p.nextLeader(p.near, 0)
		p.near.wantOutput("p", "a")
	})
}

// The leader of the parent fails after a cancellation is committed and before the child gets it.
func TestReview_ClosesCanceledChild(t *testing.T) {
	for policy, want := range map[replay.ClosePolicy]journalpb.Status{
		replay.CancelChild:    journalpb.Status_STATUS_CANCELED,
		replay.TerminateChild: journalpb.Status_STATUS_TERMINATED,
		replay.AbandonChild:   journalpb.Status_STATUS_RUNNING,
	} {
		t.Run(policy.String(), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				p := newPartitionPair(t, remoteParent("far", replay.OnParentClose(policy)), waitingChild())
				p.near.start("p", "parent", "").want(nil)
				p.far.awaitStatus("far", journalpb.Status_STATUS_RUNNING)
				waitIdle() // the new leader reads the committed start
				p.configure(func() { p.dropMessage = isChildClose })
				p.near.send("p", "word", "").want(nil)
				p.near.wantOutput("p", "gave it up")
				p.nextLeader(p.near, 0)
				time.Sleep(time.Hour)
				p.far.awaitStatus("far", journalpb.Status_STATUS_RUNNING)
				p.far.partition.ResendAfterFailover(anyInstance)
				waitIdle()
				p.far.awaitStatus("far", want)
			})
		})
	}
}

// A start arrives after its parent, whose leader failed, has canceled the child.
func TestReview_ClosesLateChild(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		p := newPartitionPair(t, remoteParent("far"), waitingChild())
		var late *actors.CrossMessage
		p.configure(func() { p.dropMessage = func(c *actors.CrossMessage) bool { late = c; return true } })
		p.near.start("p", "parent", "").want(nil)
		waitIdle()
		start := late
		p.near.send("p", "word", "").want(nil)
		p.near.wantOutput("p", "gave it up")
		p.near.partition.Close()
		p.configure(func() { p.dropMessage = anyMessage })
		p.far.partition.Receive(start, func(actors.Answer) {})
		p.far.awaitStatus("far", journalpb.Status_STATUS_CANCELED)
	})
}

// The child's ID belongs to an unrelated instance, which is left alone.
func TestCrossMessage_OtherInstanceUntouched(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		p := newPartitionPair(t, waitingChild(), program("parent", func(ctx *replay.Context, _ string) (string, error) {
			_, err := kid.Call(ctx, "", replay.ChildID("far"))
			if !errors.Is(err, replay.ErrInstanceExists) {
				return "", err
			}
			return "a stranger", nil
		}))
		p.far.start("far", "kid", "").want(nil)
		p.near.start("p", "parent", "").want(nil)
		p.near.wantOutput("p", "a stranger")
		p.far.partition.Receive(&actors.CrossMessage{
			Instance: "far", ChildOf: &journalpb.OperationRef{Instance: "p", Execution: 1, EventId: 2},
			Event: &journalpb.Event{Body: &journalpb.Event_OrchestrationTerminated{OrchestrationTerminated: new(journalpb.OrchestrationTerminated)}},
		}, func(actors.Answer) {})
		time.Sleep(time.Hour)
		p.far.awaitStatus("far", journalpb.Status_STATUS_RUNNING)
	})
}

// That a chained start was made is recorded, if necessary at the second attempt.
func TestChainedStart_AcknowledgedAcrossPartitions(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		p := newPartitionPair(t, waitingChild(), program("parent", func(ctx *replay.Context, _ string) (string, error) {
			return "", kid.Chain(ctx, "", replay.ChildID("far"))
		}))
		waitIdle() // a recovery that still runs would acknowledge the start too
		p.near.start("p", "parent", "").want(nil)
		p.near.wantOutput("p", "")
		p.far.awaitStatus("far", journalpb.Status_STATUS_RUNNING)
		time.Sleep(time.Hour)
		p.configure(func() {
			if len(p.started) != 2 || p.started[1] != "far" {
				t.Errorf("acknowledged: %q", p.started)
			}
		})
	})
}
