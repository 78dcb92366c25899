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

var trip = Trip{ID: "trip", Parts: []string{"flight", "hotel", "car"}}

func parts(bookings []Booking) []string {
	var parts []string
	for _, b := range bookings {
		parts = append(parts, b.Part)
	}
	return parts
}

func TestBookTrip_BooksAllParts(t *testing.T) {
	env := replaytest.New(t, definitions(&companies{out: io.Discard})...)
	booked, err := replaytest.Call(env, BookTrip, trip.ID, trip)
	if err != nil || !slices.Equal(parts(booked), trip.Parts) {
		t.Errorf("booked %v: %v", booked, err)
	}
	env.ExpectCalls(Cancel, 0)
}

// Each part fails in turn. The parts tried before are canceled in reverse order, under their
// booking numbers.
func TestBookTrip_FailureCancelsParts(t *testing.T) {
	for i, part := range trip.Parts {
		t.Run(part, func(t *testing.T) {
			env := replaytest.New(t, definitions(&companies{out: io.Discard, soldOut: part})...)
			_, err := replaytest.Call(env, BookTrip, trip.ID, trip)
			if !errors.Is(err, ErrSoldOut) {
				t.Errorf("error %v", err)
			}
			want := replaytest.Calls(env, Book)
			if len(want) != i+1 {
				t.Errorf("tried %v", want)
			}
			slices.Reverse(want)
			if got := replaytest.Calls(env, Cancel); !slices.Equal(got, want) {
				t.Errorf("canceled %v, want %v", got, want)
			}
		})
	}
}

func TestBookTrip_CancelUndoesBookings(t *testing.T) {
	env := replaytest.New(t, definitions(&companies{out: io.Discard})...)
	replaytest.Stub(env, Book, func(ctx context.Context, b Booking) (Booking, error) {
		time.Sleep(time.Minute)
		return b, ctx.Err()
	})
	env.At(90*time.Second, func() {
		if err := env.Cancel(trip.ID, "fell ill"); err != nil {
			t.Error(err)
		}
	})
	if _, err := replaytest.Call(env, BookTrip, trip.ID, trip); !errors.Is(err, replay.ErrCanceled) {
		t.Errorf("error %v", err)
	}
	if got := parts(replaytest.Calls(env, Cancel)); !slices.Equal(got, []string{"hotel", "flight"}) {
		t.Errorf("canceled %v", got)
	}
}

// A compensation is retried until it succeeds.
func TestBookTrip_RetriesCompensations(t *testing.T) {
	env := replaytest.New(t, definitions(&companies{out: io.Discard, soldOut: "hotel"})...)
	replaytest.Stub(env, Cancel, func(_ context.Context, b Booking) (Booking, error) { return b, nil }).
		FailFirst(20, errors.New("the line is busy"))
	if _, err := replaytest.Call(env, BookTrip, trip.ID, trip); !errors.Is(err, ErrSoldOut) {
		t.Errorf("error %v", err)
	}
	env.ExpectCalls(Cancel, 2)
}

func TestRun(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), "", &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"paris is booked: 3 parts\n",
		"cancel the car in Rome\ncancel the hotel in Rome\ncancel the flight to Rome\nnot booked: ",
		"sold out",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}
