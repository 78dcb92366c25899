package cluster

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"testing"
)

// blockedHandler is a slog.Handler that blocks until it is released.
type blockedHandler struct{ release <-chan struct{} }

func (blockedHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h blockedHandler) Handle(context.Context, slog.Record) error {
	<-h.release
	return nil
}

func (h blockedHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h blockedHandler) WithGroup(string) slog.Handler      { return h }

func TestNodeWhoseLoggerBlocksServesAndFailsAndCloses(t *testing.T) {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	node := startNode(t, Config{InMemory: true, Definitions: definitions(), Logger: slog.New(blockedHandler{release})})
	eventually(t, "the node leads and is ready", func() bool { return node.Health().Ready() == nil })
	if got, err := Call(t.Context(), node.Client(), doubled, "a", 21); err != nil || got != 42 {
		t.Errorf("call: %d, %v", got, err)
	}
	node.groups[0].journal.Retire(errors.New("a test says so"))
	if code, body := probed(t, node, "/healthz"); code != http.StatusServiceUnavailable || body["reason"] != ErrSteppedDown.Error() {
		t.Errorf("healthz: %d, %v", code, body)
	}
	if err := node.Close(); err != nil {
		t.Error(err)
	}
}
