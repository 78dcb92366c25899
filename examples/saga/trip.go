package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// A Trip has parts that are booked in order.
type Trip struct {
	ID    string
	Parts []string
}

// A Booking is one part under a number that the saga has chosen.
type Booking struct {
	Number string
	Part   string
}

var (
	BookTrip = replay.Orchestration[Trip, []Booking]("book trip")
	Book     = replay.Activity[Booking, Booking]("book")
	Cancel   = replay.Activity[Booking, Booking]("cancel")

	ErrSoldOut = replay.NewError("trip.sold_out", "sold out")
)

var retryOption = replay.Retry(replay.RetryPolicy{InitialInterval: 100 * time.Millisecond, MaxAttempts: 4})

// bookTrip books all parts or none.
func bookTrip(ctx *replay.Context, trip Trip) ([]Booking, error) {
	var booked []Booking
	saga := replay.NewSaga(ctx)
	for _, part := range trip.Parts {
		booking := Booking{Number: ctx.UUID(), Part: part}
		saga.Compensate(ctx, func(ctx *replay.Context) error {
			_, err := Cancel.Call(ctx, booking)
			return err
		})
		if _, err := Book.Call(ctx, booking, retryOption); err != nil {
			return nil, fmt.Errorf("book the %s: %w", part, err)
		}
		booked = append(booked, booking)
	}
	return booked, nil
}

// companies simulate external systems. Booking a number twice books once, and canceling an
// unknown number is not an error.
type companies struct {
	out     io.Writer
	soldOut string
}

func (c *companies) book(_ context.Context, b Booking) (Booking, error) {
	if b.Part == c.soldOut {
		return b, replay.NonRetryable(ErrSoldOut)
	}
	fmt.Fprintln(c.out, "book   the", b.Part)
	return b, nil
}

func (c *companies) cancel(_ context.Context, b Booking) (Booking, error) {
	fmt.Fprintln(c.out, "cancel the", b.Part)
	return b, nil
}

func definitions(c *companies) []replay.Definition {
	return []replay.Definition{BookTrip.Bind(bookTrip), Book.Bind(c.book), Cancel.Bind(c.cancel)}
}
