package logqueue

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// blockingHandler is a handler that waits until it is released.
type blockingHandler struct {
	slog.Handler
	release chan struct{}
}

func (h *blockingHandler) Handle(ctx context.Context, record slog.Record) error {
	<-h.release
	return h.Handler.Handle(ctx, record)
}

// textHandler returns a handler that writes lines without their time.
func textHandler(to *bytes.Buffer) slog.Handler {
	return slog.NewTextHandler(to, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
}

func TestHandle_WritesBeforeReturning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written bytes.Buffer
		logger := New(slog.New(textHandler(&written)))
		logger.With("node", "n1").WithGroup("g").Info("one", "a", 1)
		if got, want := written.String(), "level=INFO msg=one node=n1 g.a=1\n"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if again := New(logger.With("node", "n1")); again.Handler().(*handler).queue != logger.Handler().(*handler).queue {
			t.Error("a logger was queued twice")
		}
	})
}

func TestHandle_BlockedHandlerDoesNotBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written bytes.Buffer
		release := make(chan struct{})
		logger := New(slog.New(&blockingHandler{textHandler(&written), release}))
		start := time.Now()
		const records = queueMax + 100
		for i := range records {
			logger.Info(fmt.Sprint(i))
		}
		if elapsed := time.Since(start); elapsed != waitTimeout {
			t.Errorf("the callers waited %v, want %v once", elapsed, waitTimeout)
		}
		close(release)
		synctest.Wait()
		lines := strings.Split(strings.TrimSpace(written.String()), "\n")
		// The handler holds one record beyond queueMax.
		if want := queueMax + 1; len(lines) != want+1 || lines[0] != "level=INFO msg=0" || lines[want-1] != fmt.Sprintf("level=INFO msg=%d", want-1) {
			t.Fatalf("%d lines, from %q to %q", len(lines), lines[0], lines[len(lines)-2])
		}
		if last, want := lines[len(lines)-1], fmt.Sprintf("dropped=%d", records-queueMax-1); !strings.HasSuffix(last, want) {
			t.Errorf("%q, want %s", last, want)
		}
		logger.Info("later")
		if !strings.HasSuffix(written.String(), "level=INFO msg=later\n") {
			t.Error("the handler goes on, and a record was not written at once")
		}
	})
}

func TestHandle_RecoversHandlerPanic(t *testing.T) {
	logger := New(slog.New(panickingHandler{slog.DiscardHandler}))
	logger.Info("one")
	logger.Info("two")
}

type panickingHandler struct{ slog.Handler }

func (panickingHandler) Enabled(context.Context, slog.Level) bool  { return true }
func (panickingHandler) Handle(context.Context, slog.Record) error { panic("a test says so") }
func (p panickingHandler) WithAttrs([]slog.Attr) slog.Handler      { return p }
func (p panickingHandler) WithGroup(string) slog.Handler           { return p }

func TestHandle_Concurrent(t *testing.T) {
	// In virtual time a slow machine does not make the handler slow.
	synctest.Test(t, func(t *testing.T) {
		var written bytes.Buffer
		logger := New(slog.New(textHandler(&written)))
		var callers sync.WaitGroup
		for range 8 {
			callers.Go(func() {
				for range 50 {
					logger.Info("line")
				}
			})
		}
		callers.Wait()
		logger.Info("last") // the buffer has no lock: one goroutine writes at a time
		if lines := strings.Count(written.String(), "\n"); lines != 401 {
			t.Errorf("%d lines", lines)
		}
	})
}

func TestNoWait_DoesNotBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written bytes.Buffer
		release := make(chan struct{})
		logger := New(slog.New(&blockingHandler{textHandler(&written), release}))
		start := time.Now()
		logger.InfoContext(NoWait(t.Context()), "one")
		if elapsed := time.Since(start); elapsed != 0 {
			t.Errorf("it waited %v", elapsed)
		}
		close(release)
		synctest.Wait()
		if got, want := written.String(), "level=INFO msg=one\n"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

func TestFlush_WaitsForTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written bytes.Buffer
		release := make(chan struct{})
		logger := New(slog.New(&blockingHandler{textHandler(&written), release}))
		logger.Info("one")
		logger.Info("two")
		const limit = time.Second
		start := time.Now()
		Flush(logger.With("node", "n1"), limit)
		if elapsed := time.Since(start); elapsed != limit {
			t.Errorf("a blocked handler was awaited for %v, want %v", elapsed, limit)
		}
		time.AfterFunc(limit/2, func() { close(release) })
		Flush(logger, limit)
		if got, want := written.String(), "level=INFO msg=one\nlevel=INFO msg=two\n"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		start = time.Now()
		Flush(logger, limit)
		Flush(slog.New(slog.DiscardHandler), limit)
		if elapsed := time.Since(start); elapsed != 0 {
			t.Errorf("with nothing to write it waited %v", elapsed)
		}
	})
}
