package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/tenuto-dev/tenuto/replay"
)

// State is the state of an account.
type State struct {
	Balance int
	Entries int
}

// An Entry is an amount to add to or subtract from the balance.
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

	ErrInsufficientFunds = replay.NewError("account.too_little", "insufficient funds")
)

// entriesMax is how many entries an execution takes before it continues as new.
const entriesMax = 1000

// account runs until it is closed, and returns its final state.
func account(ctx *replay.Context, state State) (State, error) {
	closed := Closed.Subscribe(ctx)
	entriesAtStart := state.Entries
	isLong := func() bool { return state.Entries-entriesAtStart >= entriesMax || ctx.ShouldContinueAsNew() }
	lock := replay.NewSemaphore(1)

	err := Book.Handle(ctx, validate, func(ctx *replay.Context, entry Entry) (int, error) {
		if err := lock.Acquire(ctx); err != nil {
			return 0, err
		}
		defer lock.Release(ctx)
		if state.Balance+entry.Amount < 0 {
			return 0, ErrInsufficientFunds
		}
		if _, err := Write.Call(ctx, entry); err != nil {
			return 0, err
		}
		state.Balance += entry.Amount
		state.Entries++
		return state.Balance, nil
	})
	if err != nil {
		return state, err
	}
	if err := Balance.Handle(ctx, func(struct{}) (int, error) { return state.Balance, nil }); err != nil {
		return state, err
	}

	if err := replay.Await(ctx, func() bool { return closed.Done() || isLong() }); err != nil {
		return state, err
	}
	if err := replay.AwaitUpdates(ctx); err != nil {
		return state, err
	}
	if !closed.Done() {
		return state, Account.ContinueAsNew(ctx, state)
	}
	_, err = closed.Await(ctx)
	return state, err
}

func validate(entry Entry) error {
	if entry.Amount == 0 || entry.What == "" {
		return errors.New("an entry needs an amount and a text")
	}
	return nil
}

// definitions binds the code to a ledger that prints.
func definitions(out io.Writer) []replay.Definition {
	write := func(ctx context.Context, entry Entry) (bool, error) {
		fmt.Fprintf(out, "ledger: %+d %s\n", entry.Amount, entry.What)
		return true, nil
	}
	return []replay.Definition{Account.Bind(account), Write.Bind(write)}
}
