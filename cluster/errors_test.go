package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

// Errors keep their identity across the journal: for the code that gets them, for the same code
// during replay, and for clients.

type shortError struct {
	Item    string
	Missing int
}

func (e *shortError) Error() string { return fmt.Sprintf("%d of %s are missing", e.Missing, e.Item) }

var (
	errSoldOut = replay.NewError("test.sold_out", "sold out")

	errorActivity      = replay.Activity[string, int]("breaks")
	errorOrchestration = replay.Orchestration[string, int]("broken")
	errorChild         = replay.Orchestration[string, int]("broken-child")
)

func init() {
	replay.RegisterError("test.no_progress", io.ErrNoProgress)
	replay.RegisterErrorType[*shortError]("test.short")
}

// errorChecks checks, for each way in which broken ends, what its error is.
var errorChecks = map[string]func(error) bool{
	"sentinel":         func(err error) bool { return errors.Is(err, errSoldOut) },
	"foreign sentinel": func(err error) bool { return errors.Is(err, io.ErrNoProgress) },
	"type": func(err error) bool {
		var short *shortError
		return errors.As(err, &short) && *short == shortError{"nails", 3}
	},
	"both": func(err error) bool {
		return errors.Is(err, errSoldOut) && errors.As(err, new(*shortError))
	},
	"activity": func(err error) bool {
		var activity *replay.ActivityError
		return errors.As(err, &activity) && activity.Name == "breaks" && activity.Attempts == 2
	},
	"timeout of an activity": func(err error) bool {
		var timeout *replay.TimeoutError
		return errors.Is(err, replay.ErrTimeout) && errors.As(err, &timeout) && timeout.Kind == replay.TimeoutStartToClose
	},
	"timeout of a wait": func(err error) bool { return errors.Is(err, replay.ErrTimeout) },
	"cancellation":      func(err error) bool { return errors.Is(err, replay.ErrCanceled) },
	"panic": func(err error) bool {
		var panicked *replay.PanicError
		return errors.As(err, &panicked) && panicked.Stack != ""
	},
	"child": func(err error) bool {
		var child *replay.ChildError
		return errors.As(err, &child) && errors.Is(err, errSoldOut) && child.Name == "broken-child"
	},
}

func errorActivityBody(ctx context.Context, how string) (int, error) {
	switch how {
	case "sentinel":
		return 0, errSoldOut
	case "foreign sentinel":
		return 0, fmt.Errorf("read: %w", io.ErrNoProgress)
	case "type":
		return 0, &shortError{"nails", 3}
	case "both":
		return 0, errors.Join(errSoldOut, &shortError{"nails", 3})
	case "panic":
		panic("as wanted")
	case "timeout of an activity":
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return 0, errTest
}

// produceError returns the error of the named kind.
func produceError(ctx *replay.Context, how string) error {
	var err error
	switch how {
	case "timeout of a wait":
		_, err = word.WaitFor(ctx, time.Millisecond)
	case "cancellation":
		future := ctx.Timer(time.Hour)
		future.Cancel(ctx)
		_, err = future.Await(ctx)
	case "child":
		_, err = errorChild.Call(ctx, "sentinel")
	case "activity":
		_, err = errorActivity.Call(ctx, how, replay.Retry(replay.RetryPolicy{MaxAttempts: 2, InitialInterval: time.Millisecond}))
	case "timeout of an activity":
		_, err = errorActivity.Call(ctx, how, replay.Retry(singleAttempt), replay.StartToClose(time.Millisecond))
	default:
		_, err = errorActivity.Call(ctx, how, replay.Retry(singleAttempt))
	}
	return err
}

// errorOrchestrationBody checks its error before it waits, and again during replay.
func errorOrchestrationBody(ctx *replay.Context, how string) (int, error) {
	err := produceError(ctx, how)
	if !errorChecks[how](err) {
		return 0, fmt.Errorf("the code got another error: %v", err)
	}
	if _, waitErr := word.Wait(ctx); waitErr != nil {
		return 0, waitErr
	}
	return 0, err
}

func TestErrors_KeepIdentityAfterRestart(t *testing.T) {
	checkGoroutineLeaks(t)
	node := startNode(t, Config{Dir: t.TempDir(), Definitions: append(definitions(), errorActivity.Bind(errorActivityBody), errorOrchestration.Bind(errorOrchestrationBody),
		errorChild.Bind(func(ctx *replay.Context, how string) (int, error) { return 0, produceError(ctx, how) }))})
	ctx := testContext(t)
	ids := make(map[string]string)
	for how := range errorChecks {
		ids[how] = fmt.Sprintf("b-%d", len(ids))
		if _, err := StartRun(ctx, node.Client(), errorOrchestration, ids[how], how); err != nil {
			t.Fatal(err)
		}
	}
	for how, id := range ids {
		eventually(t, how+" has come", func() bool {
			status, err := node.Client().Get(ctx, id)
			if err != nil || status.Ended() {
				t.Fatalf("%s: %+v, %v", how, status, err)
			}
			open, err := node.Client().Pending(ctx, id)
			return err == nil && len(open) == 1 && open[0].Name == "word"
		})
	}
	node = restart(t, node)
	expect := func(when string) {
		t.Helper()
		for how, id := range ids {
			_, err := Call(ctx, node.Client(), errorOrchestration, id, how, Attach())
			var ended *RunError
			if !errorChecks[how](err) || !errors.As(err, &ended) || ended.State != Failed || ended.ID != id {
				t.Errorf("%s: %s: %v", when, how, err)
			}
			for name, get := range map[string]func() (*Status, error){
				"wait":  func() (*Status, error) { return node.Client().Wait(ctx, id) },
				"get":   func() (*Status, error) { return node.Client().Get(ctx, id) },
				"stale": func() (*Status, error) { return node.Client().Get(ctx, id, Stale()) },
			} {
				if status, err := get(); err != nil || !errorChecks[how](status.Err) {
					t.Errorf("%s: %s: %s: %+v, %v", when, how, name, status, err)
				}
			}
		}
	}
	for _, id := range ids {
		if err := Send(ctx, node.Client(), id, word, ""); err != nil {
			t.Fatal(err)
		}
	}
	expect("live")
	node = restart(t, node)
	expect("after a restart")
}

func TestErrors_CancellationKnownAfterRestart(t *testing.T) {
	checkGoroutineLeaks(t)
	parent := replay.Orchestration[string, string]("parent")
	node := startNode(t, Config{Dir: t.TempDir(), Definitions: append(definitions(),
		parent.Bind(func(ctx *replay.Context, _ string) (string, error) {
			_, err := waiter.Call(ctx, "", replay.ChildID("child"))
			var child *replay.ChildError
			known := errors.Is(err, replay.ErrCanceled) && errors.As(err, &child) && child.Instance == "child"
			got, err := word.Wait(ctx)
			if err == nil && !known {
				err = errTest
			}
			return got, err
		}))})
	ctx := testContext(t)
	if _, err := StartRun(ctx, node.Client(), parent, "p", ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child is there", func() bool { return errOf(node.Client().Get(ctx, "child")) == nil })
	if err := node.Client().Cancel(ctx, "child", "too dear"); err != nil {
		t.Fatal(err)
	}
	expect := func(when string) {
		t.Helper()
		_, err := Call(ctx, node.Client(), waiter, "child", "", Attach())
		var canceled *replay.CanceledError
		var ended *RunError
		if !errors.Is(err, replay.ErrCanceled) || !errors.As(err, &canceled) || canceled.Reason != "too dear" ||
			!errors.As(err, &ended) || ended.State != Canceled {
			t.Errorf("%s: %v", when, err)
		}
	}
	expect("live")
	eventually(t, "the parent knows", func() bool {
		return countEvents(t, node.Client(), "p", 0, hasEventType(history.SubOrchestrationFailed)) == 1
	})
	node = restart(t, node)
	expect("after a restart")
	if err := Send(ctx, node.Client(), "p", word, "fine"); err != nil {
		t.Fatal(err)
	}
	run, err := StartRun(ctx, node.Client(), parent, "p", "", Attach())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := run.Wait(ctx); err != nil || got != "fine" {
		t.Errorf("the parent, when it was replayed: %q, %v", got, err)
	}
}

// An entry that a leader proposed too late has changed nothing: the next leader is asked.
func TestErrors_LateProposalIsRetried(t *testing.T) {
	f := toFailure(fmt.Errorf("purge: %w", &state.StaleEpochError{Epoch: 15, Current: 16}))
	if !wire.IsRetryable(f) || !f.NotExecuted {
		t.Errorf("%+v", f)
	}
}

// The prefix, and the error that ended a call, appear once in an error text: the last attempt often
// ends with the same context.
func TestErrors_TextHasNoRepetition(t *testing.T) {
	found := "tenuto: no leader accepted the call, nothing was done: context canceled"
	for _, err := range []error{
		&UnavailableError{Err: fmt.Errorf("ask n2: %w", ErrNotFound)},
		&UnavailableError{NotExecuted: true, Err: wire.WithLastAttempt(context.Canceled, &clusterpb.Failure{Message: found})},
		&UnavailableError{Err: wire.WithLastAttempt(context.DeadlineExceeded, &clusterpb.Failure{Message: ErrBusy.Error()})},
		fromFailure(toFailure(fmt.Errorf("read: %w", &InternalError{"fault"}))),
		fromFailure(toFailure(invalidArgument("limit", "is 7"))),
		fromFailure(toFailure(fmt.Errorf("%w: %w", ErrStalled, &replay.NotRegisteredError{Kind: "orchestration", Name: "x"}))),
	} {
		for _, text := range []string{"tenuto: ", "context canceled", "context deadline exceeded", "\n"} {
			if n := strings.Count(err.Error(), text); n > 1 || n == 1 && text == "\n" {
				t.Errorf("%q appears twice: %v", text, err)
			}
		}
	}
	if err := wire.WithLastAttempt(context.Canceled, &clusterpb.Failure{Message: found}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v is not the end of the context", err)
	}
}

// User code gets the same errors in a test in virtual time as in production.
func TestErrors_SameInVirtualTime(t *testing.T) {
	env, ctx := replaytest.New(t, definitions()...), testContext(t)
	client := startNode(t, Config{InMemory: true, Definitions: definitions()}).Client()
	var runs []*replaytest.Run[string]
	var here []*Run[string]
	for _, id := range []string{"a", "b"} {
		run, err := StartRun(ctx, client, waiter, id, "")
		if err != nil {
			t.Fatal(err)
		}
		virtual, err := replaytest.StartRun(env, waiter, id, "")
		if err != nil {
			t.Fatal(err)
		}
		runs, here = append(runs, virtual), append(here, run)
	}
	_, exists := replaytest.StartRun(env, waiter, "a", "")
	_, existsHere := StartRun(ctx, client, waiter, "a", "")
	for _, err := range []error{exists, existsHere} {
		if !errors.Is(err, ErrInstanceExists) || !errors.Is(err, replay.ErrInstanceExists) || !errors.Is(err, replaytest.ErrInstanceExists) {
			t.Errorf("%v; want that the instance exists", err)
		}
	}
	if err := errors.Join(env.Cancel("a", "enough"), client.Cancel(ctx, "a", "enough")); err != nil {
		t.Fatal(err)
	}
	_, canceled := runs[0].Wait()
	_, canceledHere := here[0].Wait(ctx)
	for _, err := range []error{canceled, canceledHere} {
		var run *RunError
		if !errors.As(err, &run) || run.State != Canceled || !errors.Is(err, replay.ErrCanceled) || err.Error() != canceledHere.Error() {
			t.Errorf("%v; want a RunError with %v", err, canceledHere)
		}
	}
	if replaytest.ErrUpdateAborted != ErrUpdateAborted || !errors.As(error(&replaytest.RejectedError{Err: errTest}), new(*RejectedError)) {
		t.Error("the errors of updates differ")
	}
}

// A call whose context had ended says so, not that a leader is missing; a read that was waited for
// in vain says that it timed out or was canceled, not that an outcome is unknown.
func TestUnavailableError_TextSaysWhichContextEnded(t *testing.T) {
	checkGoroutineLeaks(t)
	ask, release := replay.Query[int, int]("ask"), make(chan struct{})
	asked := make(chan struct{}, 4)
	blocking := replay.Orchestration[int, string]("blocking")
	clients := localAndRemote(t, blocking.Bind(func(ctx *replay.Context, _ int) (string, error) {
		if err := ask.Handle(ctx, func(n int) (int, error) {
			asked <- struct{}{}
			<-release
			return n, nil
		}); err != nil {
			return "", err
		}
		return word.Wait(ctx)
	}))
	defer close(release)
	for where, client := range clients {
		id := "b-" + where
		if _, err := StartRun(testContext(t), client, blocking, id, 1); err != nil {
			t.Fatal(err)
		}
		canceled, cancel := context.WithCancel(testContext(t))
		cancel()
		expired, cancelExpired := context.WithTimeout(testContext(t), -1)
		defer cancelExpired()
		for ended, cause := range map[context.Context]error{canceled: context.Canceled, expired: context.DeadlineExceeded} {
			want := "tenuto: the context had ended before the call, nothing was done: " + cause.Error()
			for call, err := range map[string]error{
				"StartRun":  errOf(StartRun(ended, client, blocking, id+"-late", 1)),
				"Send":      Send(ended, client, id, word, ""),
				"Update":    errOf(CallUpdate(ended, client, id, raiseUpdate, 1)),
				"Query":     errOf(Query(ended, client, id, ask, 1)),
				"Get":       errOf(client.Get(ended, id)),
				"stale Get": errOf(client.Get(ended, id, Stale())),
				"History":   errOf(client.History(ended, id)),
				"List":      errOf(client.List(ended, Filter{}, "", 0)),
				"Cancel":    client.Cancel(ended, id, ""),
				"Purge":     errOf(client.Purge(ended, id)),
			} {
				var unavailable *UnavailableError
				if !errors.Is(err, cause) || !errors.As(err, &unavailable) || !unavailable.NotExecuted || !strings.HasSuffix(err.Error(), want) {
					t.Errorf("%s, %s: %v; want %s", where, call, err, want)
				}
			}
		}
		waiting, stop := context.WithCancel(testContext(t))
		go func() {
			<-asked
			stop()
		}()
		err := errOf(Query(waiting, client, id, ask, 1))
		if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "tenuto: canceled while waiting for the answer: ") {
			t.Errorf("%s, a canceled query: %v", where, err)
		}
		limit, unavailable := 100*time.Millisecond, &UnavailableError{NotExecuted: true}
		for ; unavailable.NotExecuted && limit < testTimeout; limit *= 2 { // a slow machine needs longer to begin the query
			short, cancel := context.WithTimeout(testContext(t), limit)
			err = errOf(Query(short, client, id, ask, 1))
			cancel()
			if !errors.As(err, &unavailable) {
				break
			}
		}
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "tenuto: timed out waiting for the answer: ") {
			t.Errorf("%s, a query whose time is over: %v", where, err)
		}
	}
}
