package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// A pod runs activities. Their results have its name.
type pod string

// definitions returns the code of the application.
func definitions(name string) []replay.Definition {
	p := pod(name)
	return []replay.Definition{Reserve.Bind(p.reserve), Ship.Bind(p.ship), Fulfill.Bind(fulfill)}
}

func (p pod) reserve(_ context.Context, order Order) (string, error) {
	return fmt.Sprintf("%s for %s, reserved by %s", order.Item, order.ID, p), nil
}

func (p pod) ship(_ context.Context, reserved string) (string, error) {
	return fmt.Sprintf("%s, shipped by %s", reserved, p), nil
}

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
