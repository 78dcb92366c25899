package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

// A bank declines one customer, and its first calls fail.
type bank struct {
	declines string
	down     int
	charged  map[string]int // by key
}

func (b *bank) charge(_ context.Context, key, customer string, amount int) (string, error) {
	if b.down > 0 {
		b.down--
		return "", errors.New("the line is down")
	}
	if customer == b.declines {
		return "", ErrDeclined
	}
	b.charged[key] += amount
	return key, nil
}

var order = Order{Customer: "ada", Item: "book", Price: 20, Patience: time.Hour}

// newShop returns an environment in which the warehouse has that many books, with the real
// activities and the services of the test.
func newShop(t *testing.T, books int, bank *bank) *replaytest.Env {
	shop := &Shop{Charge: bank.charge, SendMail: func(context.Context, string, string) error { return nil }}
	env := replaytest.New(t, shop.Definitions()...)
	deliver(t, env, books)
	return env
}

func deliver(t *testing.T, env *replaytest.Env, books int) {
	t.Helper()
	if _, _, err := replaytest.UpdateOrStart(env, WarehouseID, Warehouse, false, Deliver, Goods{Item: "book", Pieces: books}); err != nil {
		t.Fatal(err)
	}
}

func expectStock(t *testing.T, env *replaytest.Env, books int) {
	t.Helper()
	if stock, err := replaytest.ReadKV(env, WarehouseID, Stock); err != nil || stock["book"] != books {
		t.Errorf("the stock is %v, %v, want %d books", stock, err, books)
	}
}

func TestSell_ChargesOnce(t *testing.T) {
	bank := &bank{down: 5, charged: make(map[string]int)}
	env := newShop(t, 1, bank)
	payment, err := replaytest.Call(env, Sell, "order", order)
	if err != nil || len(bank.charged) != 1 || bank.charged[payment] != 20 {
		t.Errorf("%s, %v: %v charged", payment, err, bank.charged)
	}
	expectStock(t, env, 0)
	env.ExpectCalls(SendMail, 1)
}

func TestSell_DeclinedPutsItemBack(t *testing.T) {
	env := newShop(t, 1, &bank{declines: "ada"})
	if _, err := replaytest.Call(env, Sell, "order", order); !errors.Is(err, ErrDeclined) {
		t.Error(err)
	}
	expectStock(t, env, 1)
	env.ExpectCalls(SendMail, 0)
}

func TestSell_WaitsForDelivery(t *testing.T) {
	env := newShop(t, 0, &bank{charged: make(map[string]int)})
	env.At(time.Minute, func() { deliver(t, env, 1) })
	if _, err := replaytest.Call(env, Sell, "order", order); err != nil {
		t.Error(err)
	}
	expectStock(t, env, 0)
}

func TestSell_SoldOutChargesNothing(t *testing.T) {
	env := newShop(t, 0, &bank{})
	if _, err := replaytest.Call(env, Sell, "order", order); !errors.Is(err, ErrSoldOut) {
		t.Error(err)
	}
	expectStock(t, env, 0)
	env.ExpectCalls(Charge, 0)
}

// Only the orchestrations, without services.
func TestSell_WithStubs(t *testing.T) {
	env := replaytest.New(t, Sell.Bind(sell), Warehouse.Bind(warehouse))
	replaytest.Stub(env, Charge, replaytest.Returns[Order]("p-1", nil))
	mails := replaytest.Stub(env, SendMail, replaytest.Returns[Mail](true, nil))
	deliver(t, env, 1)
	payment, err := replaytest.Call(env, Sell, "order", order)
	if calls := mails.Calls(); err != nil || payment != "p-1" || len(calls) != 1 || calls[0].To != "ada" {
		t.Errorf("%s, %v, mails %v", payment, err, calls)
	}
}

func TestRun(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), "", &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ada pays 20\nto ada: Thank you for buying a book.\norder-1 is paid under payment of order-1/", "order-3 failed: sold out\n", "2 sold, stock map[book:0]\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}
