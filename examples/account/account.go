package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/tenuto-dev/tenuto/replay"
)

// A State is all that an account knows.
type State struct {
	Balance int
	Entries int
}

// An Entry adds to the balance, or takes from it.
type Entry struct {
	Amount int
	What   string
}

var (
	Account = replay.Orchestration[State, State]("account")
	Book    = replay.Update[Entry, int]("book")
	Balance = replay.Query[struct{}, int]("balance")
	Closed  = replay.Event[string]("closed")
	Write   = replay.Activity[Entry, bool]("write into the ledger")

	ErrTooLittle = replay.NewError("account.too_little", "there is too little on the account")
)

// entriesMax is how many entries an execution takes before the next begins.
const entriesMax = 1000

// account lives until it is closed, and returns what was left.
func account(ctx *replay.Context, state State) (State, error) {
	closed := Closed.Subscribe(ctx)
	full, makeRoom := replay.WithCancel(ctx) // ends when the history is long
	defer makeRoom()
	begun := state.Entries
	one := replay.NewSemaphore(1)

	err := Book.Handle(ctx, validate, func(ctx *replay.Context, entry Entry) (int, error) {
		if err := one.Acquire(ctx); err != nil {
			return 0, err
		}
		defer one.Release(ctx)
		if state.Balance+entry.Amount < 0 {
			return 0, ErrTooLittle
		}
		if _, err := Write.Call(ctx, entry); err != nil {
			return 0, err
		}
		state.Balance += entry.Amount
		state.Entries++
		if state.Entries-begun >= entriesMax || ctx.ShouldContinueAsNew() {
			makeRoom()
		}
		return state.Balance, nil
	})
	if err != nil {
		return state, err
	}
	if err := Balance.Answer(ctx, func(struct{}) (int, error) { return state.Balance, nil }); err != nil {
		return state, err
	}

	_, err = closed.Await(full)
	if ctx.Err() != nil { // the account itself is cancelled
		return state, err
	}
	if waitErr := replay.AwaitUpdates(ctx); waitErr != nil {
		return state, waitErr
	}
	if errors.Is(err, replay.ErrCanceled) {
		return state, Account.ContinueAsNew(ctx, state)
	}
	return state, err
}

func validate(entry Entry) error {
	if entry.Amount == 0 || entry.What == "" {
		return errors.New("an entry has an amount and a text")
	}
	return nil
}

// definitions binds a ledger that prints.
func definitions(out io.Writer) []replay.Definition {
	write := func(ctx context.Context, entry Entry) (bool, error) {
		fmt.Fprintf(out, "ledger: %+d %s\n", entry.Amount, entry.What)
		return true, nil
	}
	return []replay.Definition{Account.Bind(account), Write.Bind(write)}
}
