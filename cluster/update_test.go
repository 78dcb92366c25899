package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// ledger keeps a sum of at most 100, which updates raise, until it is closed. A
// raise by 0 waits for a word; one by a negative number fails.
var (
	ledger = replay.Orchestration[int, int]("ledger")
	raise  = replay.Update[int, int]("raise")
	closed = replay.Event[int]("closed")
	errLow = replay.NewError("test.low", "too low")
)

func ledgerBody(ctx *replay.Context, sum int) (int, error) {
	err := raise.Handle(ctx, func(n int) error {
		if sum+n > 100 {
			return fmt.Errorf("%w: %d", errWanted, sum)
		}
		return nil
	}, func(ctx *replay.Context, n int) (int, error) {
		if n == 0 {
			_, err := word.Wait(ctx)
			return sum, err
		}
		if n < 0 {
			return 0, errLow
		}
		if _, err := double.Call(ctx, n); err != nil {
			return 0, err
		}
		sum += n
		return sum, nil
	})
	if err != nil {
		return 0, err
	}
	again, err := closed.Wait(ctx)
	if err == nil && again > 0 {
		err = ledger.ContinueAsNew(ctx, sum)
	}
	return sum, err
}

func ledgers() []replay.Definition { return append(definitions(), ledger.Bind(ledgerBody)) }

// countEvents counts the events of an execution for which a condition holds.
func countEvents(t *testing.T, client *Client, id string, execution uint64, holds func(*journalpb.Event) bool) int {
	t.Helper()
	history, err := client.HistoryOf(testContext(t), id, execution)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, event := range history.Events {
		if holds(event) {
			n++
		}
	}
	return n
}

func withRequestID(id string) func(*journalpb.Event) bool {
	return func(event *journalpb.Event) bool { return requestIDOf(event) == id }
}

func ofUpdates(event *journalpb.Event) bool {
	return strings.HasPrefix(event.GetExternalEvent().GetName(), replay.UpdatePrefix) ||
		strings.HasPrefix(event.GetSideEffectRecorded().GetLabel(), replay.UpdatePrefix)
}

func TestAnUpdateIsCarriedOutAndItsResultReturned(t *testing.T) {
	noGoroutinesLeft(t)
	nodes := startPeersWith(t, 3, ledgers()...)
	ctx, client := testContext(t), nodes[0].Client()
	run, err := StartRun(ctx, client, ledger, "l", 1)
	if err != nil {
		t.Fatal(err)
	}
	want := 1
	for i, node := range nodes {
		want += i + 10
		if got, err := CallUpdate(ctx, node.Client(), "l", raise, i+10); err != nil || got != want {
			t.Errorf("on %s: %d, %v; want %d", node.ID(), got, err, want)
		}
	}
	before := countEvents(t, client, "l", 0, ofUpdates)
	for name, c := range map[string]struct {
		err  func() error
		want func(error) bool
	}{
		"refused": {func() error { _, err := CallUpdate(ctx, client, "l", raise, 90); return err }, func(err error) bool {
			var refused *RefusedError
			return errors.As(err, &refused) && strings.HasSuffix(err.Error(), "as wanted: 34")
		}},
		"of another type": {func() error {
			_, err := CallUpdate(ctx, client, "l", replay.Update[string, int]("raise"), "x")
			return err
		}, func(err error) bool {
			return errors.As(err, new(*RefusedError))
		}},
		"without a handler": {func() error { _, err := CallUpdate(ctx, client, "l", replay.Update[int, int]("other"), 1); return err }, func(err error) bool {
			var none *replay.NoUpdateError
			return errors.As(err, &none) && none.Name == "other" && !errors.As(err, new(*RefusedError))
		}},
		"of nobody": {func() error { _, err := CallUpdate(ctx, client, "nobody", raise, 1); return err }, func(err error) bool { return errors.Is(err, ErrNotFound) }},
		"no input": {func() error {
			_, err := CallUpdate(ctx, client, "l", replay.Update[chan int, int]("raise"), nil)
			return err
		}, func(err error) bool { return err != nil }},
		"no name": {func() error { _, err := CallUpdate(ctx, client, "l", replay.Update[int, int](""), 1); return err }, isInputError},
		"a long ID": {func() error {
			_, err := CallUpdate(ctx, client, "l", raise, 1, UpdateID(strings.Repeat("x", 129)))
			return err
		}, isInputError},
		"no such ID": {func() error { _, err := CallUpdate(ctx, client, "", raise, 1); return err }, isInputError},
	} {
		if err := c.err(); !c.want(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after := countEvents(t, client, "l", 0, ofUpdates); after != before || before != 6 {
		t.Errorf("%d events of updates, then %d: what is refused is not recorded", before, after)
	}
	if _, err := CallUpdate(ctx, client, "l", raise, -1); !errors.Is(err, errLow) || errors.As(err, new(*RefusedError)) {
		t.Errorf("an update that fails: %v", err)
	}
	if err := Send(ctx, client, "l", closed, 0); err != nil {
		t.Fatal(err)
	}
	if got, err := run.Wait(ctx); err != nil || got != want {
		t.Errorf("%d, %v; want %d", got, err, want)
	}
	if _, err := CallUpdate(ctx, client, "l", raise, 1); !errors.Is(err, ErrEnded) {
		t.Errorf("after the end: %v; want ErrEnded", err)
	}
	sameHistories(t, nodes)
}

func isInputError(err error) bool { return errors.As(err, new(*InputError)) }

func TestUpdatesThatAreNotDoneAtTheEndAreGivenUp(t *testing.T) {
	for name, end := range map[string]func(ctx context.Context, client *Client) error{
		"completed":        func(ctx context.Context, client *Client) error { return Send(ctx, client, "l", closed, 0) },
		"continued as new": func(ctx context.Context, client *Client) error { return Send(ctx, client, "l", closed, 1) },
		"terminated":       func(ctx context.Context, client *Client) error { return client.Terminate(ctx, "l", "") },
	} {
		t.Run(name, func(t *testing.T) {
			node := startNode(t, Config{InMemory: true, Definitions: ledgers()})
			ctx, client := testContext(t), node.Client()
			if _, err := StartRun(ctx, client, ledger, "l", 1); err != nil {
				t.Fatal(err)
			}
			outcome := make(chan error)
			go func() {
				_, err := CallUpdate(ctx, client, "l", raise, 0)
				outcome <- err
			}()
			awaitEvent(t, client, "l", ofUpdates)
			if err := end(ctx, client); err != nil {
				t.Fatal(err)
			}
			if err := <-outcome; !errors.Is(err, ErrUpdateGivenUp) {
				t.Errorf("%v; want ErrUpdateGivenUp", err)
			}
		})
	}
}

func TestAnEventUnderTheIDOfAnotherInputIsRefused(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: ledgers()})
	ctx, client := testContext(t), node.Client()
	run, err := StartRun(ctx, client, ledger, "l", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := CallUpdate(ctx, client, "l", raise, 1, UpdateID("of an update")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Send(ctx, client, "l", word, "", EventID("of an event")); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"of an update", "of an event"} {
		if err := Send(ctx, client, "l", closed, 0, EventID(id)); !errors.Is(err, ErrRequestID) {
			t.Errorf("an event with the ID %s: %v; want ErrRequestID", id, err)
		}
		_, err := SendOrStart(ctx, client, ledger, "l", 1, closed, 0, RequestID(id))
		if !errors.Is(err, ErrRequestID) {
			t.Errorf("SendOrStart with the ID %s: %v; want ErrRequestID", id, err)
		}
	}
	if many := countEvents(t, client, "l", 0, withRequestID("of an event")); many != 1 {
		t.Errorf("%d events recorded; want 1", many)
	}
	if err := Send(ctx, client, "l", closed, 0); err != nil {
		t.Fatal(err)
	}
	if got, err := run.Wait(ctx); err != nil || got != 2 {
		t.Errorf("%d, %v; want 2", got, err)
	}
}

// A followed access says when a follower begins.
type followed struct {
	access
	begins func()
}

func (f followed) follow(ctx context.Context, id string, from Position, pass func(Recorded) bool) error {
	f.begins()
	return f.access.follow(ctx, id, from, pass)
}

func TestAnUpdateWhoseCallerStopsWaitingSaysThatItWasAccepted(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: ledgers(), Listen: loopbackAddress(t)})
	remote := dialNodes(t, DialConfig{}, node)
	if _, err := StartRun(testContext(t), node.Client(), ledger, "l", 1); err != nil {
		t.Fatal(err)
	}
	for name, client := range map[string]*Client{"node": node.Client(), "remote": remote} {
		ctx, cancel := context.WithCancel(testContext(t))
		defer cancel()
		stopping := &Client{access: followed{client.access, cancel}, payloads: client.payloads}
		_, err := CallUpdate(ctx, stopping, "l", raise, 0, UpdateID(name))
		var unavailable *UnavailableError
		if !errors.As(err, &unavailable) || unavailable.NotExecuted || !errors.Is(err, context.Canceled) ||
			!strings.Contains(err.Error(), "the update was accepted, and its result is not known yet") {
			t.Errorf("%s: %v; want an UnavailableError that says that the update was accepted", name, err)
		}
		if err := Send(testContext(t), client, "l", word, ""); err != nil {
			t.Fatal(err)
		}
		if got, err := CallUpdate(testContext(t), client, "l", raise, 0, UpdateID(name)); err != nil || got != 1 {
			t.Errorf("%s, again: %d, %v; want 1", name, got, err)
		}
	}
}

// awaitEvent waits until an event is in the history of a run.
func awaitEvent(t *testing.T, client *Client, id string, holds func(*journalpb.Event) bool) Recorded {
	t.Helper()
	for r, err := range client.Watch(testContext(t), id, Position{}) {
		if err != nil {
			t.Fatal(err)
		}
		if holds(r.Event) {
			return r
		}
	}
	t.Fatal("the run ended without it")
	return Recorded{}
}

// An update that was validated may be recorded when the instance has continued
// as new, before the new code has come to its handler.
func TestAnUpdateWaitsForItsHandlerAlsoAcrossContinueAsNew(t *testing.T) {
	late := replay.Orchestration[int, string]("late")
	node := startNode(t, Config{InMemory: true, Definitions: append(definitions(), late.Bind(func(ctx *replay.Context, n int) (string, error) {
		if ctx.Execution() > 1 {
			err := raise.Handle(ctx, nil, func(_ *replay.Context, n int) (int, error) { return n, nil })
			_, waitErr := closed.Wait(ctx)
			return "", errors.Join(err, waitErr)
		}
		if _, err := word.Wait(ctx); err != nil {
			return "", err
		}
		return "", late.ContinueAsNew(ctx, n)
	}))})
	ctx, client := testContext(t), node.Client()
	if _, err := StartRun(ctx, client, late, "l", 1); err != nil {
		t.Fatal(err)
	}
	// As if it had been validated.
	accepted := &clusterpb.SendRequest{Name: replay.UpdatePrefix + "raise", Data: &journalpb.Payload{Data: []byte("7")}, RequestId: "u"}
	if _, err := await(ctx, send(node.of("l").partition.Load(), "l", externalEvent(accepted))); err != nil {
		t.Fatal(err)
	}
	outcome := make(chan error)
	go func() {
		output, err := client.updated(ctx, "l", Position{1, 3}, "u")
		if err == nil && string(output.GetData()) != "7" {
			err = fmt.Errorf("output %s", output.GetData())
		}
		outcome <- err
	}()
	if err := Send(ctx, client, "l", word, ""); err != nil {
		t.Fatal(err)
	}
	if err := <-outcome; err != nil {
		t.Error(err)
	}
	if got, err := CallUpdate(ctx, client, "l", raise, 8, UpdateID("u")); err != nil || got != 7 {
		t.Errorf("the same request again: %d, %v; want its result, 7", got, err)
	}
}

func TestARequestIDNamesOneThing(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: ledgers()})
	ctx, client := testContext(t), node.Client()
	if _, err := StartRun(ctx, client, ledger, "l", 1); err != nil {
		t.Fatal(err)
	}
	if err := Send(ctx, client, "l", word, "", EventID("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := CallUpdate(ctx, client, "l", raise, 1, UpdateID("x")); !errors.Is(err, ErrRequestID) {
		t.Errorf("an update with the ID of an event: %v; want ErrRequestID", err)
	}
	for range 3 {
		if got, err := CallUpdate(ctx, client, "l", raise, 90, UpdateID("y")); err != nil || got != 91 {
			t.Errorf("%d, %v; want 91, although it would be refused now", got, err)
		}
	}
	if err := Send(ctx, client, "l", closed, 0); err != nil {
		t.Fatal(err)
	}
	if got, err := CallUpdate(ctx, client, "l", raise, 90, UpdateID("y")); err != nil || got != 91 {
		t.Errorf("after the end: %d, %v; want 91", got, err)
	}
	if _, err := CallUpdate(ctx, client, "l", raise, 90, UpdateID("z")); !errors.Is(err, ErrEnded) {
		t.Errorf("another after the end: %v; want ErrEnded", err)
	}
}

func TestAnUpdateGoesOnWithoutItsCaller(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: ledgers()})
	ctx, client := testContext(t), node.Client()
	if _, err := StartRun(ctx, client, ledger, "l", 1); err != nil {
		t.Fatal(err)
	}
	limited, cancel := context.WithCancel(ctx)
	outcome := make(chan error)
	go func() {
		_, err := CallUpdate(limited, client, "l", raise, 0, UpdateID("u"))
		outcome <- err
	}()
	awaitEvent(t, client, "l", ofUpdates)
	cancel()
	if err := <-outcome; !errors.Is(err, context.Canceled) {
		t.Errorf("%v; want that of its context", err)
	}
	if err := Send(ctx, client, "l", word, ""); err != nil {
		t.Fatal(err)
	}
	if got, err := CallUpdate(ctx, client, "l", raise, 0, UpdateID("u")); err != nil || got != 1 {
		t.Errorf("%d, %v", got, err)
	}
}

// Everything is asked for twice under one request ID, by users who do not know
// what became of the first time, while the leader goes.
func TestEachRequestHasOneEffectWhileLeadersChange(t *testing.T) {
	noGoroutinesLeft(t)
	const instances = 24
	nodes := startPeersWith(t, 3, ledgers()...)
	ctx := testContext(t)
	leader := leaderOf(t, nodes)
	var others []*Node
	for _, node := range nodes {
		if node != leader {
			others = append(others, node)
		}
	}
	begun := make(chan bool, instances)
	var users sync.WaitGroup
	for i := range instances {
		users.Go(func() { useLedger(t, ctx, others, fmt.Sprintf("l-%d", i), begun) })
	}
	for range instances / 3 {
		<-begun
	}
	if err := leader.Close(); err != nil {
		t.Error(err)
	}
	users.Wait()
	for i := range instances {
		id := fmt.Sprintf("l-%d", i)
		for request, want := range map[string]int{"word": 1, "raise": 1, "closed": 1} {
			if n := countEvents(t, others[0].Client(), id, 1, withRequestID(request)); n != want {
				t.Errorf("%s: %d events of %s; want %d", id, n, request, want)
			}
		}
		if n := countEvents(t, others[0].Client(), id, 1, ofUpdates); n != 2 {
			t.Errorf("%s: %d events of the update; want it accepted once and done once", id, n)
		}
	}
	sameHistories(t, others)
}

func useLedger(t *testing.T, ctx context.Context, nodes []*Node, id string, begun chan<- bool) {
	var runs []*Run[int]
	for _, node := range nodes {
		run, err := StartRun(ctx, node.Client(), ledger, id, 1, RequestID("start"))
		if err != nil {
			t.Errorf("start %s: %v", id, err)
			return
		}
		runs = append(runs, run)
	}
	begun <- true
	for _, node := range nodes {
		if err := Send(ctx, node.Client(), id, word, "", EventID("word")); err != nil {
			t.Errorf("send to %s: %v", id, err)
		}
	}
	for _, node := range nodes {
		if got, err := CallUpdate(ctx, node.Client(), id, raise, 90, UpdateID("raise")); err != nil || got != 91 {
			t.Errorf("update %s: %d, %v", id, got, err)
		}
	}
	for i, node := range nodes {
		if err := Send(ctx, node.Client(), id, closed, 0, EventID("closed")); err != nil {
			t.Errorf("close %s: %v", id, err)
		}
		if got, err := runs[i].Wait(ctx); err != nil || got != 91 {
			t.Errorf("%s: %d, %v", id, got, err)
		}
	}
}

// loseAnswers has the first n answers to each call of a node lost, after the call
// was executed.
func loseAnswers(node *Node, n int) {
	lost := make(map[*clusterpb.Request]int)
	node.ask = func(ctx context.Context, r *clusterpb.Request) *clusterpb.Response {
		response := node.attempt(ctx, r)
		if failure := response.GetFailure(); lost[r] == n || failure != nil && failure.NotExecuted {
			return response
		}
		lost[r]++
		return &clusterpb.Response{Failure: &clusterpb.Failure{Code: codeUnknown, Message: "the answer was lost"}}
	}
}

func TestACallWhoseAnswerIsLostHasOneEffectAndItsAnswer(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: ledgers()})
	ctx, client := testContext(t), node.Client()
	started := func(event *journalpb.Event) bool { return event.GetOrchestrationStarted() != nil }
	ofArm := func(arm int) func(*journalpb.Event) bool {
		return func(event *journalpb.Event) bool { return event.Arm() == arm }
	}
	run := func(id string) {
		if _, err := StartRun(ctx, client, ledger, id, 1); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range []struct {
		name  string
		call  func(id string) error
		count func(*journalpb.Event) bool
	}{
		{"a start", func(id string) error { _, err := StartRun(ctx, client, waiter, id, ""); return err }, started},
		{"a start of what ends at once", func(id string) error { _, err := StartRun(ctx, client, failing, id, ""); return err }, started},
		{"a start after another", func(id string) error {
			first, err := StartRun(ctx, client, failing, id, "", RequestID("1"))
			if err != nil {
				return err
			}
			if _, err := first.Wait(ctx); !errors.As(err, new(*RunError)) {
				return err
			}
			if _, err := StartRun(ctx, client, failing, id, "", RequestID("2"), ReuseWhenEnded()); err != nil {
				return err
			}
			again, err := StartRun(ctx, client, failing, id, "", RequestID("1"), ReuseWhenEnded())
			if err == nil && again.run.first != 1 {
				err = fmt.Errorf("the repetition of the first has begun run %d", again.run.first)
			}
			return err
		}, started},
		{"an event", func(id string) error { run(id); return Send(ctx, client, id, word, "") }, ofArm(journalpb.ArmExternalEvent)},
		{"an event that ends its run", func(id string) error { run(id); return Send(ctx, client, id, closed, 0) }, ofArm(journalpb.ArmExternalEvent)},
		{"an event that continues its run", func(id string) error {
			run(id)
			err := Send(ctx, client, id, closed, 1)
			return errors.Join(err, Send(ctx, client, id, word, ""))
		}, ofArm(journalpb.ArmExternalEvent)},
		{"an event that starts a run and ends it", func(id string) error {
			_, err := SendOrStart(ctx, client, ledger, id, 1, closed, 0)
			return err
		}, ofArm(journalpb.ArmExternalEvent)},
		{"an event that starts another run and ends it", func(id string) error {
			if _, err := SendOrStart(ctx, client, ledger, id, 1, closed, 0, RequestID("1")); err != nil {
				return err
			}
			_, err := SendOrStart(ctx, client, ledger, id, 1, closed, 0, RequestID("2"), ReuseWhenEnded())
			return err
		}, ofArm(journalpb.ArmExternalEvent)},
		{"a cancellation", func(id string) error { run(id); return client.Cancel(ctx, id, "") }, ofArm(journalpb.ArmOrchestrationCancelRequested)},
		{"a termination", func(id string) error { run(id); return client.Terminate(ctx, id, "x") }, ofArm(journalpb.ArmOrchestrationTerminated)},
		{"a suspension", func(id string) error { run(id); return client.Suspend(ctx, id, "") }, ofArm(journalpb.ArmOrchestrationSuspended)},
		{"an update", func(id string) error {
			run(id)
			got, err := CallUpdate(ctx, client, id, raise, 90)
			if err == nil && got != 91 {
				err = fmt.Errorf("got %d", got)
			}
			return err
		}, ofArm(journalpb.ArmActivityScheduled)},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := fmt.Sprintf("i-%d", i)
			for _, lost := range []int{0, 1, 2} {
				id := fmt.Sprintf("%s-%d", id, lost)
				loseAnswers(node, lost)
				if err := c.call(id); err != nil {
					t.Fatalf("%d lost: %v", lost, err)
				}
				if n := countEvents(t, client, id, 0, c.count); n != 1 {
					t.Errorf("%d lost: %d events; want 1", lost, n)
				}
			}
		})
	}
}

// Users repeat a call in their own way: from another program, on another day.
func TestACallThatItsUserRepeatsHasOneEffect(t *testing.T) {
	dir, ctx := t.TempDir(), testContext(t)
	node := startNode(t, Config{Dir: dir, Definitions: ledgers()})
	call := func() {
		t.Helper()
		run, err := SendOrStart(ctx, node.Client(), ledger, "l", 1, word, "", RequestID("r"))
		if err != nil || run.run.first != 1 {
			t.Errorf("%+v, %v", run, err)
		}
		if n := countEvents(t, node.Client(), "l", 1, withRequestID("r")); n != 1 {
			t.Errorf("%d events; want 1", n)
		}
		if _, err := StartRun(ctx, node.Client(), doubled, "d", 1, RequestID("r")); err != nil {
			t.Error(err)
		}
	}
	call()
	call()
	if err := Send(ctx, node.Client(), "l", closed, 0); err != nil {
		t.Fatal(err)
	}
	call()
	if err := node.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	node = startNode(t, Config{Dir: dir}) // without code for a start
	if _, err := StartRun(ctx, node.Client(), doubled, "d", 1, RequestID("r")); err != nil {
		t.Errorf("without code: %v", err)
	}
	if _, err := StartRun(ctx, node.Client(), doubled, "d", 1, RequestID("other")); !errors.Is(err, ErrNoCode) {
		t.Errorf("another start without code: %v; want ErrNoCode", err)
	}
}

func TestWhatIsRefusedIsRefusedAlsoWhenItIsRepeated(t *testing.T) {
	node := startNode(t, Config{InMemory: true, CallTimeout: time.Second, Definitions: ledgers()})
	ctx, client := testContext(t), node.Client()
	if _, err := Call(ctx, client, doubled, "d", 1); err != nil {
		t.Fatal(err)
	}
	if _, err := StartRun(ctx, client, ledger, "l", 1); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		call func() error
		want error
	}{
		"event":       {func() error { return Send(ctx, client, "d", word, "") }, ErrEnded},
		"named event": {func() error { return Send(ctx, client, "d", word, "", EventID("x")) }, ErrEnded},
		"cancel":      {func() error { return client.Cancel(ctx, "d", "") }, ErrEnded},
		"terminate":   {func() error { return client.Terminate(ctx, "d", "") }, ErrEnded},
		"start":       {func() error { _, err := StartRun(ctx, client, doubled, "d", 1); return err }, ErrInstanceExists},
		"named start": {func() error { _, err := StartRun(ctx, client, doubled, "d", 1, RequestID("x")); return err }, ErrInstanceExists},
		"update":      {func() error { _, err := CallUpdate(ctx, client, "d", raise, 1, UpdateID("x")); return err }, ErrEnded},
		"refusal":     {func() error { _, err := CallUpdate(ctx, client, "l", raise, 100, UpdateID("x")); return err }, nil},
		"code": {func() error {
			_, err := StartRun(ctx, client, replay.Orchestration[int, int]("none"), "n", 1)
			return err
		}, ErrNoCode},
	} {
		node.ask = func(ctx context.Context, r *clusterpb.Request) *clusterpb.Response {
			r.Again = true
			return node.attempt(ctx, r)
		}
		if err := c.call(); !errors.Is(err, c.want) && c.want != nil || err == nil {
			t.Errorf("%s: %v; want %v", name, err, c.want)
		}
	}
}

func TestTheSearchForAnEarlierAttemptEndsWithItsContext(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	ctx := testContext(t)
	if _, err := Call(ctx, node.Client(), doubled, "d", 1); err != nil {
		t.Fatal(err)
	}
	if _, event, err := node.of("d").recorded(ctx, "d", Position{}, "no such ID"); event != nil || err != nil {
		t.Errorf("%v, %v; want nothing", event, err)
	}
	if _, _, err := node.of("nobody").recorded(ctx, "nobody", Position{}, "no such ID"); !errors.Is(err, ErrNotFound) {
		t.Errorf("of nobody: %v; want ErrNotFound", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, _, err := node.of("d").recorded(ended, "d", Position{}, "no such ID"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v; want it to end with its context", err)
	}
}
