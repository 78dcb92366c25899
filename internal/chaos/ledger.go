package main

import (
	"encoding/json"
	"net"
	"net/http"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
)

// A ledger records what activities report. It belongs to the harness, so that no fault affects it.
type ledger struct {
	listener net.Listener
	server   *http.Server
	served   chan struct{}
}

// openLedger serves a ledger at a Unix socket, which nodes reach from any network namespace.
func openLedger(log *evidence.Log, socket string) (*ledger, error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	l := &ledger{listener: listener, served: make(chan struct{})}
	l.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var effect evidence.Effect
		if err := json.NewDecoder(r.Body).Decode(&effect); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		effect.At = log.Now()
		log.Effect(effect)
		w.WriteHeader(http.StatusNoContent)
	})}
	go func() {
		defer close(l.served)
		_ = l.server.Serve(listener)
	}()
	return l, nil
}

func (l *ledger) socket() string { return l.listener.Addr().String() }

func (l *ledger) close() error {
	err := l.server.Close()
	<-l.served
	return err
}
