package evidence

import (
	"encoding/json"
	"net"
	"net/http"
)

// A Ledger records what activities report. It belongs to the harness, so that no fault affects it.
type Ledger struct {
	listener net.Listener
	server   *http.Server
	served   chan struct{}
}

// OpenLedger serves a ledger at a Unix socket, which nodes reach from any network namespace.
func OpenLedger(log *Log, socket string) (*Ledger, error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	l := &Ledger{listener: listener, served: make(chan struct{})}
	l.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var effect Effect
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

// Socket returns the name of its socket.
func (l *Ledger) Socket() string { return l.listener.Addr().String() }

// Close ends the ledger.
func (l *Ledger) Close() error {
	err := l.server.Close()
	<-l.served
	return err
}
