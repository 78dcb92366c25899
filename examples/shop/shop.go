package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenuto-dev/tenuto/replay"
)

// An Order is what a customer buys.
type Order struct {
	Customer string
	Item     string
	Price    int
}

// A Receipt is what the customer gets.
type Receipt struct{ Payment string }

var (
	Sell    = replay.Orchestration[Order, Receipt]("sell")
	Take    = replay.Activity[string, bool]("take from the stock")
	PutBack = replay.Activity[string, bool]("put back into the stock")
	Charge  = replay.Activity[Order, string]("charge")
	Write   = replay.Activity[Letter, bool]("write")

	ErrSoldOut  = replay.NewError("shop.sold_out", "sold out")
	ErrDeclined = replay.NewError("shop.declined", "the card was declined")
)

// A Letter is a mail to a customer.
type Letter struct{ To, Text string }

// The services of the shop. The key is the same for every attempt of a call, so a repeated
// call must have no further effect.
type (
	Stock interface {
		Take(ctx context.Context, key, item string) error // or ErrSoldOut
		PutBack(ctx context.Context, key, item string) error
	}
	Payments interface {
		Charge(ctx context.Context, key, customer string, amount int) (payment string, err error) // or ErrDeclined
	}
	Mail interface {
		Send(ctx context.Context, to, text string) error
	}
)

// A Shop has the services of its activities.
type Shop struct {
	Stock    Stock
	Payments Payments
	Mail     Mail
}

// Definitions returns the code of the shop.
func (s *Shop) Definitions() []replay.Definition {
	return []replay.Definition{
		Sell.Bind(sell), Take.Bind(s.take), PutBack.Bind(s.putBack), Charge.Bind(s.charge), Write.Bind(s.write),
	}
}

// sell sells one item, or leaves everything unchanged.
func sell(ctx *replay.Context, order Order) (Receipt, error) {
	saga := replay.NewSaga(ctx)
	if _, err := Take.Call(ctx, order.Item); err != nil {
		return Receipt{}, err
	}
	saga.Compensate(ctx, func(ctx *replay.Context) error {
		_, err := PutBack.Call(ctx, order.Item)
		return err
	})
	payment, err := Charge.Call(ctx, order)
	if err != nil {
		return Receipt{}, err
	}
	_, err = Write.Call(ctx, Letter{order.Customer, "Thank you for buying a " + order.Item + "."})
	if err != nil {
		ctx.Log().Warn("cannot send mail", "error", err) // no reason to undo the sale
	}
	return Receipt{payment}, nil
}

func (s *Shop) take(ctx context.Context, item string) (bool, error) {
	return true, markPermanent(s.Stock.Take(ctx, idempotencyKey(ctx), item))
}

func (s *Shop) putBack(ctx context.Context, item string) (bool, error) {
	return true, s.Stock.PutBack(ctx, idempotencyKey(ctx), item)
}

func (s *Shop) charge(ctx context.Context, order Order) (string, error) {
	payment, err := s.Payments.Charge(ctx, idempotencyKey(ctx), order.Customer, order.Price)
	return payment, markPermanent(err)
}

func (s *Shop) write(ctx context.Context, letter Letter) (bool, error) {
	if err := s.Mail.Send(ctx, letter.To, letter.Text); err != nil {
		return false, fmt.Errorf("write to %s: %w", letter.To, err)
	}
	return true, nil
}

func idempotencyKey(ctx context.Context) string { return replay.ActivityInfo(ctx).IdempotencyKey() }

// markPermanent marks errors that a retry cannot fix.
func markPermanent(err error) error {
	if errors.Is(err, ErrSoldOut) || errors.Is(err, ErrDeclined) {
		return replay.NonRetryable(err)
	}
	return err
}
