package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay"
)

// An Order is what a customer orders.
type Order struct {
	ID   string
	Item string
}

// Handles of the orchestration and its activities.
var (
	Reserve = replay.Activity[Order, string]("reserve")
	Ship    = replay.Activity[string, string]("ship")
	Fulfill = replay.Orchestration[Order, string]("fulfill")
)

// definitions returns the code of the application.
func definitions() []replay.Definition {
	return []replay.Definition{Reserve.Bind(reserve), Ship.Bind(ship), Fulfill.Bind(fulfill)}
}

func reserve(_ context.Context, order Order) (string, error) {
	return order.Item + " for " + order.ID, nil
}

func ship(_ context.Context, reserved string) (string, error) { return "shipped " + reserved, nil }

// fulfill reserves what was ordered, and ships it a little later.
func fulfill(ctx *replay.Context, order Order) (string, error) {
	reserved, err := Reserve.Call(ctx, order)
	if err != nil {
		return "", err
	}
	if err := ctx.Sleep(100 * time.Millisecond); err != nil {
		return "", err
	}
	return Ship.Call(ctx, reserved)
}

// orderBytesMax bounds the body of a request.
const orderBytesMax = 64 << 10

// takeOrders returns the handler for POST /orders. The ID of an order makes a repeated request
// start nothing.
func takeOrders(client *cluster.Client) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		var order Order
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, orderBytesMax)).Decode(&order); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_, err := cluster.StartRun(r.Context(), client, Fulfill, order.ID, order, cluster.Attach())
		var invalid *replay.InvalidError
		switch {
		case errors.As(err, &invalid):
			http.Error(w, err.Error(), http.StatusBadRequest)
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	})
	return mux
}
