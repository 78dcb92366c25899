package main

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

func open(t *testing.T, env *replaytest.Env) *replaytest.Run[State] {
	t.Helper()
	return replaytest.Start(env, Account, "alice", State{})
}

// Two withdrawals at the same time, each of which the balance would bear alone.
// While the ledger is written for the first, the second waits.
func TestCommandsAreSerialised(t *testing.T) {
	env := replaytest.New(t, definitions(io.Discard)...)
	open(t, env)
	replaytest.Stub(env, Write, func(context.Context, Entry) (bool, error) {
		time.Sleep(time.Minute)
		return true, nil
	})
	if _, err := replaytest.Update(env, "alice", Book, Entry{100, "salary"}); err != nil {
		t.Fatal(err)
	}
	var second error
	env.At(90*time.Second, func() {
		_, second = replaytest.Update(env, "alice", Book, Entry{-80, "second"})
	})
	if balance, err := replaytest.Update(env, "alice", Book, Entry{-80, "first"}); err != nil || balance != 20 {
		t.Errorf("first: %d, %v", balance, err)
	}
	env.Advance(time.Hour)
	if !errors.Is(second, ErrTooLittle) {
		t.Errorf("second: %v", second)
	}
	env.ExpectCalls(Write, 2)
	if balance, err := replaytest.Query(env, "alice", Balance, struct{}{}); err != nil || balance != 20 {
		t.Errorf("balance %d, %v", balance, err)
	}
}

func TestWhatIsWrongByItselfIsRecordedNowhere(t *testing.T) {
	env := replaytest.New(t, definitions(io.Discard)...)
	run := open(t, env)
	events := len(run.History().Events)
	_, err := replaytest.Update(env, "alice", Book, Entry{})
	var refused *replaytest.RefusedError
	if !errors.As(err, &refused) || len(run.History().Events) != events {
		t.Errorf("error %v, %d events", err, len(run.History().Events))
	}
}

// After entriesMax entries the next execution goes on with the state.
func TestALongLife(t *testing.T) {
	env := replaytest.New(t, definitions(io.Discard)...)
	env.ReplayEvery(1000)
	open(t, env)
	for i := range entriesMax + 10 {
		if balance, err := replaytest.Update(env, "alice", Book, Entry{1, "a penny"}); err != nil || balance != i+1 {
			t.Fatalf("entry %d: %d, %v", i, balance, err)
		}
	}
	if status := env.Status("alice"); status.Execution != 2 || status.State != replaytest.Running {
		t.Errorf("execution %d is %s", status.Execution, status.State)
	}
	if balance, err := replaytest.Query(env, "alice", Balance, struct{}{}); err != nil || balance != entriesMax+10 {
		t.Errorf("balance %d, %v", balance, err)
	}
}

// What is under way when the account is closed is done first.
func TestClosing(t *testing.T) {
	env := replaytest.New(t, definitions(io.Discard)...)
	run := open(t, env)
	replaytest.Stub(env, Write, func(context.Context, Entry) (bool, error) {
		time.Sleep(time.Minute)
		return true, nil
	})
	env.At(30*time.Second, func() {
		if err := replaytest.Send(env, "alice", Closed, "moved away"); err != nil {
			t.Error(err)
		}
	})
	if balance, err := replaytest.Update(env, "alice", Book, Entry{100, "salary"}); err != nil || balance != 100 {
		t.Errorf("%d, %v", balance, err)
	}
	if state, err := run.Wait(); err != nil || state.Balance != 100 {
		t.Errorf("%+v, %v", state, err)
	}
}

func TestACancelledAccountIsCancelled(t *testing.T) {
	env := replaytest.New(t, definitions(io.Discard)...)
	run := open(t, env)
	if err := env.Cancel("alice", "fraud"); err != nil {
		t.Fatal(err)
	}
	if _, err := run.Wait(); !errors.Is(err, replay.ErrCanceled) {
		t.Error(err)
	}
}

func TestItRuns(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), "", &out); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"ledger: +100 salary", "+100 for salary: 100 are there",
		"ledger: -30 rent", "-30 for rent: 70 are there",
		`-500 for a car: update "book" of alice: there is too little on the account`,
		`+0 for nothing: update "book" of alice: refused: an entry has an amount and a text`,
		"balance: 70", "",
	}
	if got := strings.Split(out.String(), "\n"); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
