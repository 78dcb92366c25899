package main

import (
	"context"
	"io"
	"log"

	"github.com/tenuto-dev/tenuto/replay"
)

// An Order is what is shipped.
type Order struct{ ID string }

var (
	Shipping     = replay.Orchestration[Order, string]("shipping")
	Reserve      = replay.Activity[string, string]("reserve")
	CheckAddress = replay.Activity[string, string]("check address")
	Ship         = replay.Activity[string, string]("ship")
	Packed       = replay.Event[string]("packed")
)

// before is the code of the first release.
func before(ctx *replay.Context, order Order) (string, error) {
	if _, err := Reserve.Call(ctx, order.ID); err != nil {
		return "", err
	}
	if _, err := Packed.Wait(ctx); err != nil {
		return "", err
	}
	return Ship.Call(ctx, order.ID)
}

// patched takes its place in the second release: addresses are checked, those of
// orders that have come further than that already are not.
func patched(ctx *replay.Context, order Order) (string, error) {
	if _, err := Reserve.Call(ctx, order.ID); err != nil {
		return "", err
	}
	if replay.Patched(ctx, "check-address") {
		if _, err := CheckAddress.Call(ctx, order.ID); err != nil {
			return "", err
		}
	}
	if _, err := Packed.Wait(ctx); err != nil {
		return "", err
	}
	return Ship.Call(ctx, order.ID)
}

// rewritten is version 2, beside patched in the third release: both checks are
// made at the same time, and the box is named on the parcel.
func rewritten(ctx *replay.Context, order Order) (string, error) {
	_, err := replay.All(ctx, CheckAddress.Start(ctx, order.ID), Reserve.Start(ctx, order.ID))
	if err != nil {
		return "", err
	}
	box, err := Packed.Wait(ctx)
	if err != nil {
		return "", err
	}
	return Ship.Call(ctx, order.ID+" in "+box)
}

func first(out io.Writer) []replay.Definition {
	return append(activities(out), Shipping.Bind(before))
}

func second(out io.Writer) []replay.Definition {
	return append(activities(out), Shipping.Bind(patched))
}

func third(out io.Writer) []replay.Definition {
	return append(activities(out), Shipping.Bind(patched), Shipping.Bind(rewritten, replay.Version("2")))
}

// activities only print. Two of them may do so at once: a logger lets them take turns.
func activities(out io.Writer) []replay.Definition {
	lines := log.New(out, "  ", 0)
	say := func(what string) func(context.Context, string) (string, error) {
		return func(_ context.Context, of string) (string, error) {
			lines.Println(what, of)
			return of, nil
		}
	}
	return []replay.Definition{
		Reserve.Bind(say("reserve")), CheckAddress.Bind(say("check the address of")), Ship.Bind(say("ship")),
	}
}
