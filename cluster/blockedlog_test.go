package cluster

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"testing"
)

// blockingLogHandler is a slog.Handler that blocks until it is released.
type blockingLogHandler struct{ release <-chan struct{} }

func (blockingLogHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h blockingLogHandler) Handle(context.Context, slog.Record) error {
	<-h.release
	return nil
}

func (h blockingLogHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h blockingLogHandler) WithGroup(string) slog.Handler      { return h }

func TestBlockedLogger_NodeServesFailsAndCloses(t *testing.T) {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	node := startNode(t, Config{InMemory: true, Definitions: definitions(), Logger: slog.New(blockingLogHandler{release})})
	eventually(t, "the node leads and is ready", func() bool { return node.Health().Ready() == nil })
	if got, err := Call(t.Context(), node.Client(), doubled, "a", 21); err != nil || got != 42 {
		t.Errorf("call: %d, %v", got, err)
	}
	node.partitions[0].journal.Fail(errors.New("a test says so"))
	if code, body := probeHealth(t, node, "/healthz"); code != http.StatusServiceUnavailable || body["reason"] != ErrNodeFailed.Error() {
		t.Errorf("healthz: %d, %v", code, body)
	}
	if err := node.Close(); err != nil {
		t.Error(err)
	}
}
