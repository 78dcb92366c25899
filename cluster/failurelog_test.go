package cluster

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// A slowHandler writes text to a buffer, once slow is closed.
type slowHandler struct {
	slog.Handler
	slow chan struct{}
}

func (h slowHandler) Handle(ctx context.Context, record slog.Record) error {
	if strings.Contains(record.Message, "removed") {
		<-h.slow
	}
	return h.Handler.Handle(ctx, record)
}

func (h slowHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return slowHandler{h.Handler.WithAttrs(attrs), h.slow}
}

// A program that exits when its node has failed does not lose the line that says why, although the
// log is slow.
func TestFailed_FailureIsLoggedBefore(t *testing.T) {
	var log logRecorder
	slow := make(chan struct{})
	time.AfterFunc(failureLogTimeout/10, func() { close(slow) })
	config := Config{InMemory: true, Definitions: definitions(), Logger: slog.New(slowHandler{slog.NewTextHandler(&log, nil), slow})}
	node, err := Start(testContext(t), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Close() })
	for _, pa := range node.partitions {
		go pa.journal.Fail(ErrRemoved)
	}
	<-node.Failed()
	if log.countLines("this node was removed from the cluster for good") == 0 {
		t.Errorf("the node has failed, but its log has only:\n%s", log.all())
	}
}
