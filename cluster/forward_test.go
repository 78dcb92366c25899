package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// ofOne returns what is needed to start an instance of an orchestration of tests.
func ofOne(instance, name string) *clusterpb.InstanceStart {
	return &clusterpb.InstanceStart{Instance: instance, Start: &clusterpb.StartRequest{Name: name, RequestId: "r-" + instance}}
}

// startAll has a node answer starts that come together, and returns the answers.
func startAll(t *testing.T, node *Node, request *clusterpb.Request) (map[uint32]*clusterpb.Response, error) {
	t.Helper()
	answers := make(map[uint32]*clusterpb.Response)
	err := node.startAll(testContext(t), request, func(response *clusterpb.Response) error {
		for _, answer := range response.GetStarts().GetAnswers() {
			if answers[answer.Index] != nil {
				t.Errorf("start %d was answered twice", answer.Index)
			}
			answers[answer.Index] = answer.Response
		}
		return nil
	})
	return answers, err
}

// together is a request of a node for some starts of a group.
func together(g *group, starts ...*clusterpb.InstanceStart) *clusterpb.Request {
	return g.request(&clusterpb.Request{Call: &clusterpb.Request_Starts{Starts: &clusterpb.StartsRequest{Starts: starts}}})
}

// Starts that come together are answered each for itself.
func TestStartsThatComeTogetherAreAnsweredEachForItself(t *testing.T) {
	noGoroutinesLeft(t)
	node := startNode(t, Config{Dir: t.TempDir(), Groups: 1, Definitions: definitions()})
	if _, err := StartRun(testContext(t), node.Client(), doubled, "taken", 1); err != nil {
		t.Fatal(err)
	}
	attached := ofOne("taken", doubled.Name())
	attached.Start.Attach = true
	starts := []*clusterpb.InstanceStart{
		ofOne("new", doubled.Name()), ofOne("taken", doubled.Name()), ofOne("other", "no such code"), attached, ofOne("again", doubled.Name()),
	}
	want := []error{nil, ErrInstanceExists, ErrNoCode, nil, nil}
	answers, err := startAll(t, node, together(node.groups[0], starts...))
	if err != nil || len(answers) != len(starts) {
		t.Fatalf("%v, %v", answers, err)
	}
	for i, answer := range answers {
		var err error
		if answer.Failure != nil {
			err = failed(answer.Failure)
		}
		if !errors.Is(err, want[i]) || err == nil && answer.GetStart().GetFirstExecution() != 1 {
			t.Errorf("%s: %v, %v; want %v", starts[i].Instance, answer, err, want[i])
		}
	}
	if !answers[3].GetStart().GetAttached() || answers[0].AppliedIndex == 0 {
		t.Errorf("answers: %v", answers)
	}
	starts[4].Again = true
	if answers, err = startAll(t, node, together(node.groups[0], starts[4])); err != nil || answers[0].GetStart().GetFirstExecution() != 1 {
		t.Errorf("a repetition: %v, %v", answers, err)
	}
}

// Each is answered as soon as it can be: what is refused does not wait for what takes
// its time.
func TestAnAnswerDoesNotWaitForTheStartsBesideIt(t *testing.T) {
	noGoroutinesLeft(t)
	node := startNode(t, Config{Dir: t.TempDir(), Groups: 1, Definitions: definitions()})
	ctx, g := testContext(t), node.groups[0]
	if _, err := StartRun(ctx, node.Client(), doubled, "taken", 1); err != nil {
		t.Fatal(err)
	}
	release, barrier := make(chan struct{}), g.barrier
	g.barrier = func(ctx context.Context) error { // that there is one is not said without it
		<-release
		return barrier(ctx)
	}
	var order []uint32
	starts := []*clusterpb.InstanceStart{ofOne("taken", doubled.Name()), ofOne("refused", "no such code"), ofOne("new", doubled.Name())}
	err := g.startEach(ctx, g.serving(), starts, func(said *clusterpb.StartsResult) error {
		for _, answer := range said.Answers {
			order = append(order, answer.Index)
		}
		if len(order) == len(starts)-1 {
			close(release)
		}
		return nil
	})
	if err != nil || len(order) != len(starts) || order[2] != 0 {
		t.Errorf("answered in the order %v, %v", order, err)
	}
}

// A batch that no node would send is refused whole, and nothing of it is done.
func TestStartsThatNoNodeSendsAreRefused(t *testing.T) {
	noGoroutinesLeft(t)
	node := startNode(t, Config{Dir: t.TempDir(), Groups: groupsOfTests, Definitions: definitions()})
	good, name := ofOne(idIn("good", 1), doubled.Name()), doubled.Name()
	for what, bad := range map[string][]*clusterpb.InstanceStart{
		"none at all":       {nil},
		"without a start":   {{Instance: idIn("bad", 1)}},
		"without an ID":     {ofOne("", name)},
		"an ID too long":    {ofOne(strings.Repeat("x", 1<<10), name)},
		"without a name":    {ofOne(idIn("bad", 1), "")},
		"of another group":  {ofOne(idIn("bad", 2), name)},
		"more than allowed": make([]*clusterpb.InstanceStart, forwardedMax+1),
	} {
		var refused *InputError
		request := together(node.groups[1], append([]*clusterpb.InstanceStart{good}, bad...)...)
		if answers, err := startAll(t, node, request); !errors.As(err, &refused) || len(answers) != 0 {
			t.Errorf("%s: %v, %v", what, answers, err)
		}
	}
	if _, err := node.Client().Get(testContext(t), good.Instance); !errors.Is(err, ErrNotFound) {
		t.Errorf("the good one beside them: %v", err)
	}
}

// Many starts through a node that does not lead go to the leader together, and each caller
// gets his own answer.
func TestStartsThroughAnotherNodeGoTogether(t *testing.T) {
	noGoroutinesLeft(t)
	const starts, taken = 400, 4 // every fourth ID is taken
	nodes := startPeers(t, 3)
	leader := leaderOf(t, nodes)
	node := nodes[0]
	if node == leader {
		node = nodes[1]
	}
	for _, g := range node.groups {
		eventually(t, "all speak the protocol for it", func() bool { return g.forwarder.takes(startRequest()) })
	}
	ctx := testContext(t)
	for i := 0; i < starts; i += taken {
		if _, err := StartRun(ctx, leader.Client(), doubled, fmt.Sprint("together-", i), i); err != nil {
			t.Fatal(err)
		}
	}
	var calls sync.WaitGroup
	for i := range starts {
		calls.Go(func() {
			got, err := Call(ctx, node.Client(), doubled, fmt.Sprint("together-", i), i)
			if exists := errors.Is(err, ErrInstanceExists); exists != (i%taken == 0) || !exists && (err != nil || got != 2*i) {
				t.Errorf("%d: %d, %v", i, got, err)
			}
		})
	}
	calls.Wait()
	sameHistories(t, nodes)
}

// A start whose caller has given up before it was sent is not sent.
func TestAStartThatNobodyWaitsForIsNotForwarded(t *testing.T) {
	noGoroutinesLeft(t)
	node := startNode(t, Config{Dir: t.TempDir(), Groups: 1, Definitions: definitions()})
	gone, giveUp := context.WithCancel(testContext(t))
	giveUp()
	lone, left := &forwarded{ctx: testContext(t), answer: make(chan *clusterpb.Response, 1)}, &forwarded{ctx: gone, answer: make(chan *clusterpb.Response, 1)}
	node.groups[0].forwarder.bring(testContext(t), []*forwarded{left, lone})
	if len(lone.answer) != 1 || len(left.answer) != 0 {
		t.Errorf("%d answers for one who waits, %d for one who does not", len(lone.answer), len(left.answer))
	}
}

// A start whose caller gives up, or whose node closes, is answered at once.
func TestAStartThatIsNotForwardedYetIsAnswered(t *testing.T) {
	noGoroutinesLeft(t)
	node := startNode(t, Config{Dir: t.TempDir(), Groups: 1, Definitions: definitions()})
	g := node.groups[0] // leads, and has nobody to forward to
	gone, giveUp := context.WithCancel(testContext(t))
	giveUp()
	if failure := g.forwarder.ask(gone, startRequest()).GetFailure(); failure.GetCode() != codeUnknown {
		t.Errorf("a caller that has gone: %v", failure)
	}
	answered := make(chan *clusterpb.Response)
	go func() { answered <- g.forwarder.ask(testContext(t), startRequest()) }()
	closing, end := context.WithCancel(testContext(t))
	end()
	g.forwarder.carry(closing, g.forwarder.bring)
	if failure := (<-answered).GetFailure(); failure.GetCode() != codeNotLeader || !failure.NotExecuted {
		t.Errorf("a node that closes: %v", failure)
	}
	if failure := g.forwarder.ask(testContext(t), startRequest()).GetFailure(); failure.GetCode() != codeNotLeader {
		t.Errorf("a node that is closed: %v", failure)
	}
}

// The first few starts go at once; behind them those go together that come in the same
// moment.
func TestStartsGoTogetherWhenSomeAreOnTheirWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, begin := newForwarder(nil), time.Now()
		type sent struct {
			after time.Duration
			size  int
		}
		var all []sent
		ctx, end := context.WithCancel(t.Context())
		var carrying sync.WaitGroup
		carrying.Go(func() {
			f.carry(ctx, func(ctx context.Context, batch []*forwarded) {
				all = append(all, sent{time.Since(begin), len(batch)})
				<-ctx.Done()
			})
		})
		put := func() {
			f.outbox.put(new(forwarded))
			synctest.Wait()
		}
		for range forwardsFree {
			put()
		}
		time.Sleep(forwardPause / 8)
		for range 2 * 4 {
			put()
			time.Sleep(forwardPause / 4)
		}
		end()
		carrying.Wait()
		want := slices.Repeat([]sent{{0, 1}}, forwardsFree)
		want = append(want, sent{forwardPause, 4}, sent{2 * forwardPause, 4})
		if !slices.Equal(all, want) {
			t.Errorf("sent %v, want %v", all, want)
		}
	})
}
