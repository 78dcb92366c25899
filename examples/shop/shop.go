package main

import (
	"context"
	"errors"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// An Order is what a customer buys. Patience is how long the customer waits for the item.
type Order struct {
	Customer, Item string
	Price          int
	Patience       time.Duration
}

// Goods come to the warehouse, or leave it if Pieces is negative. Sale is the ID of the instance
// that gets the answer, if any. Patience is how long the warehouse waits for missing pieces before
// the answer is false.
type Goods struct {
	Item     string
	Pieces   int
	Sale     string
	Patience time.Duration
}

// A Mail goes to a customer.
type Mail struct{ To, Text string }

var (
	Sell     = replay.Orchestration[Order, string]("sell") // returns the payment
	Stage    = replay.Attribute[string]("stage")           // of a sale
	Reserved = replay.Event[bool]("reserved")              // false: the item did not come

	Warehouse = replay.Orchestration[bool, bool]("warehouse")
	Stock     = replay.KV[int]("stock") // pieces by item
	Move      = replay.Event[Goods]("move")
	Deliver   = replay.Update[Goods, int]("deliver") // returns how many pieces there are

	Charge   = replay.Activity[Order, string]("charge")
	SendMail = replay.Activity[Mail, bool]("send mail")

	ErrSoldOut  = replay.NewError("shop.sold_out", "sold out")
	ErrDeclined = replay.NewError("shop.declined", "the card was declined")
)

// WarehouseID is the instance ID of the warehouse.
const WarehouseID = "warehouse"

// A Shop has the services of its activities.
type Shop struct {
	// Charge returns ErrDeclined if a retry cannot help. The key is the same for every attempt of a
	// call, so a repeated call must have no further effect.
	Charge   func(ctx context.Context, key, customer string, amount int) (payment string, err error)
	SendMail func(ctx context.Context, to, text string) error
}

// Definitions returns the code of the shop.
func (s *Shop) Definitions() []replay.Definition {
	return []replay.Definition{Sell.Bind(sell), Warehouse.Bind(warehouse), Charge.Bind(s.charge), SendMail.Bind(s.sendMail)}
}

// sell sells one item, or leaves everything unchanged.
func sell(ctx *replay.Context, order Order) (string, error) {
	if err := Move.SendTo(ctx, WarehouseID, Goods{order.Item, -1, ctx.InstanceID(), order.Patience}); err != nil {
		return "", err
	}
	if reserved, err := Reserved.Wait(ctx); err != nil || !reserved {
		return "", errors.Join(err, ErrSoldOut)
	}
	saga := replay.NewSaga(ctx)
	saga.Compensate(ctx, func(ctx *replay.Context) error {
		return Move.SendTo(ctx, WarehouseID, Goods{Item: order.Item, Pieces: 1})
	})
	payment, err := Charge.Call(ctx, order)
	if err != nil {
		return "", err
	}
	if _, err := SendMail.Call(ctx, Mail{order.Customer, "Thank you for buying a " + order.Item + "."}); err != nil {
		ctx.Log().Warn("cannot send mail", "error", err) // no reason to undo the sale
	}
	return payment, Stage.Set(ctx, "sold")
}

// warehouse keeps the stock. Sales that wait for an item do not delay others.
func warehouse(ctx *replay.Context, _ bool) (bool, error) {
	if err := Deliver.Handle(ctx, nil, add); err != nil {
		return false, err
	}
	moving := 0
	for !ctx.ShouldContinueAsNew() {
		goods, err := Move.Wait(ctx)
		if err != nil {
			return false, err
		}
		moving++
		_ = replay.Go(ctx, func(ctx *replay.Context) (int, error) {
			defer func() { moving-- }()
			return move(ctx, goods)
		})
	}
	if err := replay.Await(ctx, func() bool { return moving == 0 }); err != nil {
		return false, err
	}
	return false, Warehouse.ContinueAsNew(ctx, false)
}

// move changes the stock and answers the sale.
func move(ctx *replay.Context, goods Goods) (int, error) {
	err := replay.AwaitFor(ctx, goods.Patience, func() bool {
		pieces, _, err := Stock.Get(ctx, goods.Item)
		return err != nil || pieces+goods.Pieces >= 0
	})
	arrived := !errors.Is(err, replay.ErrTimeout)
	if arrived && err == nil {
		_, err = add(ctx, goods)
	}
	if goods.Sale == "" || arrived && err != nil {
		return 0, err
	}
	if err = Reserved.SendTo(ctx, goods.Sale, arrived); err != nil && arrived {
		return add(ctx, Goods{Item: goods.Item, Pieces: -goods.Pieces}) // the sale has ended
	}
	return 0, err
}

func add(ctx *replay.Context, goods Goods) (int, error) {
	pieces, _, err := Stock.Get(ctx, goods.Item)
	if err != nil {
		return 0, err
	}
	return pieces + goods.Pieces, Stock.Set(ctx, goods.Item, pieces+goods.Pieces)
}

func (s *Shop) charge(ctx context.Context, order Order) (string, error) {
	payment, err := s.Charge(ctx, replay.ActivityInfo(ctx).IdempotencyKey(), order.Customer, order.Price)
	if errors.Is(err, ErrDeclined) {
		err = replay.NonRetryable(err)
	}
	return payment, err
}

func (s *Shop) sendMail(ctx context.Context, mail Mail) (bool, error) {
	return true, s.SendMail(ctx, mail.To, mail.Text)
}
