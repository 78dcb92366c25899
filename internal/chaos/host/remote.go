package host

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
)

// dialLimit bounds the time in which a remote client must find the cluster.
const dialLimit = 30 * time.Second

// workerSlots is how many activities a worker runs at once.
const workerSlots = 8

// runRemote runs a process without a node, whose client calls the cluster over the network. It is
// never restarted: its client must find the nodes again after every fault.
//
// As a worker it also runs activities; workers are killed and started again.
func runRemote(config Config, worker *Worker, terminated <-chan os.Signal) error {
	ctx, cancel := context.WithTimeout(context.Background(), dialLimit)
	defer cancel()
	dial := cluster.DialConfig{
		Addresses: config.Dial, Discover: config.discover(),
		TLS:       cluster.KeyFiles(config.Keys[0], config.Keys[1], config.Keys[2]),
		Logger:    slog.New(slog.NewTextHandler(os.Stderr, nil)),
		StopGrace: time.Second,
	}
	if config.Worker {
		worker.remote = true
		dial.Definitions, dial.WorkerName, dial.ActivitiesMax = worker.Definitions(), config.NodeID, workerSlots
	}
	client, err := cluster.Dial(ctx, dial)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	handleCalls(mux, client)
	return serve(config.Socket, mux, terminated, client.Close, client.Close)
}

// handleCalls serves the harness's calls with a client.
func handleCalls(mux *http.ServeMux, client *cluster.Client) {
	mux.HandleFunc("POST "+CallPath, func(w http.ResponseWriter, r *http.Request) {
		var request evidence.Request
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(Execute(r.Context(), client, request))
	})
	mux.HandleFunc("POST "+StormPath, func(w http.ResponseWriter, r *http.Request) {
		var storm Storm
		if err := json.NewDecoder(r.Body).Decode(&storm); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(storm.run(r.Context(), client))
	})
}
