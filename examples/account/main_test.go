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

func openAccount(t *testing.T, env *replaytest.Env) *replaytest.Run[State] {
	t.Helper()
	run, err := replaytest.StartRun(env, Account, "alice", State{})
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// Two concurrent withdrawals, each of which the balance covers alone. The second waits while
// the first is written to the ledger.
func TestAccount_SerializesUpdates(t *testing.T) {
	env := replaytest.New(t, definitions(io.Discard)...)
	openAccount(t, env)
	replaytest.Stub(env, Write, func(context.Context, Entry) (bool, error) {
		time.Sleep(time.Minute)
		return true, nil
	})
	if _, err := replaytest.CallUpdate(env, "alice", Book, Entry{100, "salary"}); err != nil {
		t.Fatal(err)
	}
	var second error
	env.At(90*time.Second, func() {
		_, second = replaytest.CallUpdate(env, "alice", Book, Entry{-80, "second"})
	})
	if balance, err := replaytest.CallUpdate(env, "alice", Book, Entry{-80, "first"}); err != nil || balance != 20 {
		t.Errorf("first: %d, %v", balance, err)
	}
	env.Advance(time.Hour)
	if !errors.Is(second, ErrInsufficientFunds) {
		t.Errorf("second: %v", second)
	}
	env.ExpectCalls(Write, 2)
	if balance, err := replaytest.Query(env, "alice", Balance, struct{}{}); err != nil || balance != 20 {
		t.Errorf("balance %d, %v", balance, err)
	}
}

func TestAccount_RejectedUpdateIsNotRecorded(t *testing.T) {
	env := replaytest.New(t, definitions(io.Discard)...)
	run := openAccount(t, env)
	events := len(run.History().Events)
	_, err := replaytest.CallUpdate(env, "alice", Book, Entry{})
	var rejected *replaytest.RejectedError
	if !errors.As(err, &rejected) || len(run.History().Events) != events {
		t.Errorf("error %v, %d events", err, len(run.History().Events))
	}
}

// After entriesMax entries the next execution continues with the state.
func TestAccount_ContinuesAsNew(t *testing.T) {
	env := replaytest.New(t, definitions(io.Discard)...)
	env.ReplayEvery(1000)
	openAccount(t, env)
	for i := range entriesMax + 10 {
		if balance, err := replaytest.CallUpdate(env, "alice", Book, Entry{1, "a penny"}); err != nil || balance != i+1 {
			t.Fatalf("entry %d: %d, %v", i, balance, err)
		}
	}
	if status, err := env.Get("alice"); err != nil || status.Execution != 2 || status.State != replaytest.Running {
		t.Errorf("%+v, %v", status, err)
	}
	if balance, err := replaytest.Query(env, "alice", Balance, struct{}{}); err != nil || balance != entriesMax+10 {
		t.Errorf("balance %d, %v", balance, err)
	}
}

// Updates in progress finish before the account is closed.
func TestAccount_CloseFinishesUpdates(t *testing.T) {
	env := replaytest.New(t, definitions(io.Discard)...)
	run := openAccount(t, env)
	replaytest.Stub(env, Write, func(context.Context, Entry) (bool, error) {
		time.Sleep(time.Minute)
		return true, nil
	})
	env.At(30*time.Second, func() {
		if err := replaytest.Send(env, "alice", Closed, "moved away"); err != nil {
			t.Error(err)
		}
	})
	if balance, err := replaytest.CallUpdate(env, "alice", Book, Entry{100, "salary"}); err != nil || balance != 100 {
		t.Errorf("%d, %v", balance, err)
	}
	if state, err := run.Wait(); err != nil || state.Balance != 100 {
		t.Errorf("%+v, %v", state, err)
	}
}

func TestAccount_Cancel(t *testing.T) {
	env := replaytest.New(t, definitions(io.Discard)...)
	run := openAccount(t, env)
	if err := env.Cancel("alice", "fraud"); err != nil {
		t.Fatal(err)
	}
	if _, err := run.Wait(); !errors.Is(err, replay.ErrCanceled) {
		t.Error(err)
	}
}

func TestRun(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), "", &out); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"ledger: +100 salary", "+100 for salary: 100 are there",
		"ledger: -30 rent", "-30 for rent: 70 are there",
		`-500 for a car: update "book" of alice: insufficient funds`,
		`+0 for nothing: update "book" of alice: rejected: an entry needs an amount and a text`,
		"balance: 70", "",
	}
	if got := strings.Split(out.String(), "\n"); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
