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
)

var errLost = errors.New("lost on the way")

// A pair is two partitions on nodes of their own. Instances whose IDs begin with
// "far" belong to the second.
type pair struct {
	t        *testing.T
	near     *node
	far      *node
	journals [2]*testJournal

	mu sync.Mutex
	// What becomes of a message: not sent at all, or its answer is lost.
	lost, mute func(*actors.Crossing) bool
	sent       int
	started    []string
}

func newPair(t *testing.T, definitions ...replay.Definition) *pair {
	p := &pair{t: t, journals: [2]*testJournal{newTestJournal(), newTestJournal()}}
	p.near, p.far = p.node(0, definitions), p.node(1, definitions)
	return p
}

// A side is one of the two as it sees the other.
type side struct {
	pair  *pair
	group int
}

func groupOf(instance string) int {
	if strings.HasPrefix(instance, "far") {
		return 1
	}
	return 0
}

func (s *side) Holds(instance string) bool { return groupOf(instance) != s.group }

func (s *side) Replica(instance string) actors.Replica { return s.pair.journals[groupOf(instance)] }

func (s *side) Send(c *actors.Crossing, done func(actors.Answer)) {
	p := s.pair
	p.mu.Lock()
	p.sent++
	lost, mute := p.lost != nil && p.lost(c), p.mute != nil && p.mute(c)
	to := p.far
	if s.group == 1 {
		to = p.near
	}
	p.mu.Unlock()
	switch {
	case lost:
		done(actors.Answer{Err: errLost})
	case mute:
		to.partition.Receive(c, func(actors.Answer) { done(actors.Answer{Err: errLost}) })
	default:
		to.partition.Receive(c, done)
	}
}

func (s *side) Started(target string, done func(error)) {
	p := s.pair
	p.mu.Lock()
	p.started = append(p.started, target)
	first := len(p.started) == 1
	p.mu.Unlock()
	if first {
		done(errLost)
		return
	}
	done(nil)
}

// node opens one of the two on a system of its own.
func (p *pair) node(group int, definitions []replay.Definition) *node {
	p.t.Helper()
	registry, err := replay.NewRegistry(definitions...)
	if err != nil {
		p.t.Fatal(err)
	}
	n := &node{t: p.t, journal: p.journals[group], log: new(logBook)}
	n.system = actors.NewSystem(actors.Config{Registry: registry})
	p.lead(n, group)
	p.t.Cleanup(n.close)
	return n
}

// lead opens the partition in a new epoch.
func (p *pair) lead(n *node, group int) {
	partition := n.system.LeadAt(context.Background(), actors.Place{Group: group, Elsewhere: &side{p, group}}, n.journal, n.journal.reign(p.t))
	p.mu.Lock()
	defer p.mu.Unlock()
	n.partition = partition
}

// again has another leader of one of the two begin where the one before was lost.
func (p *pair) again(n *node, group int) {
	n.partition.Close()
	p.lead(n, group)
}

func (p *pair) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func every(*actors.Crossing) bool        { return true }
func everyInstance(string) bool          { return true }
func reportsEnd(c *actors.Crossing) bool { return c.Event.GetSubOrchestrationCompleted() != nil }
func closes(c *actors.Crossing) bool     { return c.ChildOf != nil }

// remoteParent calls a child of the other partition, and gives it up for a word.
func remoteParent(id string, options ...replay.ChildOption) replay.Definition {
	return program("parent", func(ctx *replay.Context, text string) (string, error) {
		child := kid.Start(ctx, text, append(options, replay.ChildID(id))...)
		winner, err := replay.Race(ctx, child, word.Subscribe(ctx))
		if err != nil || winner > 0 {
			return "gave it up", err
		}
		return child.Await(ctx)
	})
}

// Whatever is lost, or arrives without an answer, is sent again, and taken once.
func TestCrossingsAreRepeatedAndTakenOnce(t *testing.T) {
	virtually(t, func(t *testing.T) {
		p := newPair(t, remoteParent("far"), patient())
		seen := 0
		p.set(func() {
			p.lost = func(*actors.Crossing) bool { seen++; return seen%3 == 1 }
			p.mute = func(*actors.Crossing) bool { return seen%3 == 2 }
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

// A message that is not answered yet is not delivered a second time.
func TestCrossingThatWaitsIsDeliveredOnce(t *testing.T) {
	virtually(t, func(t *testing.T) {
		p := newPair(t, remoteParent("far"), patient())
		p.far.journal.holdAll()
		start := &actors.Crossing{Instance: "far", Attach: true, Event: &journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{
			OrchestrationStarted: &journalpb.OrchestrationStarted{Name: "kid", Input: payload(t, ""), RequestId: "r"},
		}}}
		answers := make(chan int, 2)
		for i := range 2 {
			p.far.partition.Receive(start, func(actors.Answer) { answers <- i })
		}
		idle()
		if n := len(p.far.journal.waiting()); n != 1 {
			t.Errorf("%d appends", n)
		}
		p.far.journal.flow()
		if got := <-answers; got != 1 {
			t.Errorf("the answer went to %d, want the latest", got)
		}
		idle()
		if len(answers) > 0 {
			t.Error("two answers")
		}
	})
}

// The leader of the child is lost when the end is committed and not reported.
func TestEndOfChildThatWasNotReportedIsFoundInTheReplica(t *testing.T) {
	virtually(t, func(t *testing.T) {
		p := newPair(t, remoteParent("far"), patient())
		p.near.start("p", "parent", "").want(nil)
		p.far.awaitStatus("far", journalpb.Status_STATUS_RUNNING)
		idle()
		p.set(func() { p.lost = reportsEnd })
		p.far.send("far", "word", "a").want(nil)
		idle()
		p.again(p.far, 1)
		time.Sleep(time.Hour)
		if p.near.count("p", "SubOrchestrationCompleted") != 0 {
			t.Fatal("reported all the same")
		}
		p.near.partition.Review(everyInstance)
		p.near.wantOutput("p", "a")
	})
}

// The leader of the parent is lost as well: the next one takes it up.
func TestEndOfChildIsFoundByTheParentsNextLeader(t *testing.T) {
	virtually(t, func(t *testing.T) {
		p := newPair(t, remoteParent("far"), patient())
		p.near.start("p", "parent", "").want(nil)
		p.far.awaitStatus("far", journalpb.Status_STATUS_RUNNING)
		idle()
		p.set(func() { p.lost = reportsEnd })
		p.far.send("far", "word", "a").want(nil)
		idle()
		p.again(p.far, 1)
		p.again(p.near, 0)
		p.near.wantOutput("p", "a")
	})
}

// The leader of the parent is lost when the decision to give a child up is
// committed, and the child has not heard of it.
func TestChildThatWasGivenUpUnheardIsClosed(t *testing.T) {
	for policy, want := range map[replay.ClosePolicy]journalpb.Status{
		replay.CancelChild:    journalpb.Status_STATUS_CANCELLED,
		replay.TerminateChild: journalpb.Status_STATUS_TERMINATED,
		replay.AbandonChild:   journalpb.Status_STATUS_RUNNING,
	} {
		t.Run(policy.String(), func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				p := newPair(t, remoteParent("far", replay.OnParentClose(policy)), patient())
				p.near.start("p", "parent", "").want(nil)
				p.far.awaitStatus("far", journalpb.Status_STATUS_RUNNING)
				idle() // the start's commit is looked at
				p.set(func() { p.lost = closes })
				p.near.send("p", "word", "").want(nil)
				p.near.wantOutput("p", "gave it up")
				p.again(p.near, 0)
				time.Sleep(time.Hour)
				p.far.awaitStatus("far", journalpb.Status_STATUS_RUNNING)
				p.far.partition.Review(everyInstance)
				idle()
				p.far.awaitStatus("far", want)
			})
		})
	}
}

// A start arrives when its parent, whose leader was lost, has given the child up.
func TestChildThatBeginsTooLateIsClosed(t *testing.T) {
	virtually(t, func(t *testing.T) {
		p := newPair(t, remoteParent("far"), patient())
		var late *actors.Crossing
		p.set(func() { p.lost = func(c *actors.Crossing) bool { late = c; return true } })
		p.near.start("p", "parent", "").want(nil)
		idle()
		start := late
		p.near.send("p", "word", "").want(nil)
		p.near.wantOutput("p", "gave it up")
		p.near.partition.Close()
		p.set(func() { p.lost = every })
		p.far.partition.Receive(start, func(actors.Answer) {})
		p.far.awaitStatus("far", journalpb.Status_STATUS_CANCELLED)
	})
}

// The child's ID belongs to somebody else, who is left alone.
func TestStrangerInTheOtherPartition(t *testing.T) {
	virtually(t, func(t *testing.T) {
		p := newPair(t, patient(), program("parent", func(ctx *replay.Context, _ string) (string, error) {
			_, err := kid.Call(ctx, "", replay.ChildID("far"))
			if !errors.Is(err, replay.ErrInstanceExists) {
				return "", err
			}
			return "a stranger", nil
		}))
		p.far.start("far", "kid", "").want(nil)
		p.near.start("p", "parent", "").want(nil)
		p.near.wantOutput("p", "a stranger")
		p.far.partition.Receive(&actors.Crossing{
			Instance: "far", ChildOf: &journalpb.OperationRef{Instance: "p", Execution: 1, EventId: 2},
			Event: &journalpb.Event{Body: &journalpb.Event_OrchestrationTerminated{OrchestrationTerminated: new(journalpb.OrchestrationTerminated)}},
		}, func(actors.Answer) {})
		time.Sleep(time.Hour)
		p.far.awaitStatus("far", journalpb.Status_STATUS_RUNNING)
	})
}

// That a chained start was made is recorded, if need be at the second attempt.
func TestChainedStartInTheOtherPartitionIsAcknowledged(t *testing.T) {
	virtually(t, func(t *testing.T) {
		p := newPair(t, patient(), program("parent", func(ctx *replay.Context, _ string) (string, error) {
			return "", kid.Chain(ctx, "", replay.ChildID("far"))
		}))
		p.near.start("p", "parent", "").want(nil)
		p.near.wantOutput("p", "")
		p.far.awaitStatus("far", journalpb.Status_STATUS_RUNNING)
		time.Sleep(time.Hour)
		p.set(func() {
			if len(p.started) != 2 || p.started[1] != "far" {
				t.Errorf("acknowledged: %q", p.started)
			}
		})
	})
}
