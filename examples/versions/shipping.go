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

// shippingV1 is the code of the first release.
func shippingV1(ctx *replay.Context, order Order) (string, error) {
	if _, err := Reserve.Call(ctx, order.ID); err != nil {
		return "", err
	}
	if _, err := Packed.Wait(ctx); err != nil {
		return "", err
	}
	return Ship.Call(ctx, order.ID)
}

// shippingPatched replaces shippingV1 in the second release. It checks addresses, except for
// orders that have passed this step.
func shippingPatched(ctx *replay.Context, order Order) (string, error) {
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

// shippingV2 is bound as version 2, beside shippingPatched, in the third release. It runs both
// checks concurrently and names the box on the parcel.
func shippingV2(ctx *replay.Context, order Order) (string, error) {
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

func firstRelease(out io.Writer) []replay.Definition {
	return append(activities(out), Shipping.Bind(shippingV1))
}

func secondRelease(out io.Writer) []replay.Definition {
	return append(activities(out), Shipping.Bind(shippingPatched))
}

func thirdRelease(out io.Writer) []replay.Definition {
	return append(activities(out), Shipping.Bind(shippingPatched), Shipping.Bind(shippingV2, replay.Version("2")))
}

// activities only print. The logger serializes concurrent output.
func activities(out io.Writer) []replay.Definition {
	lines := log.New(out, "  ", 0)
	printing := func(what string) func(context.Context, string) (string, error) {
		return func(_ context.Context, of string) (string, error) {
			lines.Println(what, of)
			return of, nil
		}
	}
	return []replay.Definition{
		Reserve.Bind(printing("reserve")), CheckAddress.Bind(printing("check the address of")), Ship.Bind(printing("ship")),
	}
}
