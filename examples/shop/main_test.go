package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

// A bank declines one customer, and its first calls fail.
type bank struct {
	declines string
	down     int
	charged  map[string]int // by key
}

func (b *bank) Charge(_ context.Context, key, customer string, amount int) (string, error) {
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

func newShop(items int, payments Payments) *Shop {
	return &Shop{Stock: &shelf{items: map[string]int{"book": items}}, Payments: payments, Mail: printer{io.Discard}}
}

var order = Order{Customer: "ada", Item: "book", Price: 20}

func itemsLeft(shop *Shop) int { return shop.Stock.(*shelf).items["book"] }

// The real activities with the services of the test.
func TestSell_ChargesOnce(t *testing.T) {
	bank := &bank{down: 5, charged: make(map[string]int)}
	shop := newShop(1, bank)
	env := replaytest.New(t, shop.Definitions()...)
	receipt, err := replaytest.Call(env, Sell, "order", order)
	if err != nil || len(bank.charged) != 1 || bank.charged[receipt.Payment] != 20 || itemsLeft(shop) != 0 {
		t.Errorf("%+v, %v: %v charged, %d left", receipt, err, bank.charged, itemsLeft(shop))
	}
	env.ExpectCalls(Write, 1)
}

func TestSell_DeclinedPutsItemBack(t *testing.T) {
	bank := &bank{declines: "ada"}
	shop := newShop(1, bank)
	env := replaytest.New(t, shop.Definitions()...)
	if _, err := replaytest.Call(env, Sell, "order", order); !errors.Is(err, ErrDeclined) || itemsLeft(shop) != 1 {
		t.Errorf("%v, %d left", err, itemsLeft(shop))
	}
	env.ExpectCalls(Write, 0)
}

func TestSell_SoldOutChargesNothing(t *testing.T) {
	shop := newShop(0, &bank{})
	env := replaytest.New(t, shop.Definitions()...)
	if _, err := replaytest.Call(env, Sell, "order", order); !errors.Is(err, ErrSoldOut) || itemsLeft(shop) != 0 {
		t.Errorf("%v, %d left", err, itemsLeft(shop))
	}
	env.ExpectCalls(Charge, 0)
	env.ExpectCalls(PutBack, 0)
}

// Only the orchestration, without services.
func TestSell_WithStubs(t *testing.T) {
	env := replaytest.New(t, Sell.Bind(sell))
	replaytest.Stub(env, Take, replaytest.Returns[string](true, nil))
	replaytest.Stub(env, Charge, replaytest.Returns[Order]("p-1", nil))
	letters := replaytest.Stub(env, Write, replaytest.Returns[Letter](true, nil))
	receipt, err := replaytest.Call(env, Sell, "order", order)
	if err != nil || receipt.Payment != "p-1" {
		t.Errorf("%+v, %v", receipt, err)
	}
	if calls := letters.Calls(); len(calls) != 1 || calls[0].To != "ada" {
		t.Errorf("letters: %v", calls)
	}
}

func TestRun(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), "", &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ada pays 20\nto ada: Thank you for buying a book.\norder-1 is paid under payment of order-1/", "order-3 failed: activity \"take from the stock\": sold out\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}
