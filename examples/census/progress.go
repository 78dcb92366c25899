package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Intervals of the display: redrawn in place on a terminal, a new line elsewhere.
const (
	redrawEvery = 200 * time.Millisecond
	lineEvery   = 5 * time.Second
)

// A progressState is the progress of the root. It survives a kill because the code that sets
// it runs again.
type progressState struct {
	directories int // found so far
	done        int // of them
	total       Totals
}

// A progress displays the progress. It may be used concurrently.
type progress struct {
	out      io.Writer
	redraws  bool // out is a terminal, where a line can be overwritten
	began    time.Time
	executed atomic.Int64 // activities, by this process

	mu        sync.Mutex
	state     progressState
	lineShown bool // the cursor is in a progress line
}

func newProgress(out *os.File) *progress {
	info, err := out.Stat()
	return &progress{
		out:     out,
		redraws: err == nil && info.Mode()&os.ModeCharDevice != 0,
		began:   time.Now(),
	}
}

// countExecutions wraps an activity's body to count its executions.
func countExecutions[I, O any](p *progress, body func(context.Context, I) (O, error)) func(context.Context, I) (O, error) {
	return func(ctx context.Context, input I) (O, error) {
		defer p.executed.Add(1)
		return body(ctx, input)
	}
}

// setState sets the progress of the root.
func (p *progress) setState(s progressState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = s
}

// watch displays the progress until the returned function is called.
func (p *progress) watch() (stop func()) {
	every := lineEvery
	if p.redraws {
		every = redrawEvery
	}
	ticker := time.NewTicker(every)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-ticker.C:
				p.draw()
			case <-done:
				return
			}
		}
	}()
	return func() {
		ticker.Stop()
		close(done)
		<-ended
		p.clear()
	}
}

func (p *progress) draw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Short, because a line that wraps cannot be overwritten.
	line := fmt.Sprintf("%s of %s directories, %s files, %s MB; %s activities/s",
		formatThousands(int64(p.state.done)), formatThousands(int64(p.state.directories)), formatThousands(p.state.total.Files), formatThousands(p.state.total.Bytes/1e6),
		formatThousands(perSecond(p.executed.Load(), time.Since(p.began))))
	if !p.redraws {
		fmt.Fprintln(p.out, line)
		return
	}
	fmt.Fprint(p.out, eraseLine, line)
	p.lineShown = true
}

// eraseLine returns the cursor to the start of its line and clears the line.
const eraseLine = "\r\x1b[K"

func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
}

func (p *progress) erase() {
	if p.lineShown {
		fmt.Fprint(p.out, eraseLine)
		p.lineShown = false
	}
}

// printLine prints a permanent line.
func (p *progress) printLine(format string, args ...any) {
	fmt.Fprintf(p, format+"\n", args...)
}

// Write writes log output without corrupting the progress line.
func (p *progress) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	return p.out.Write(text)
}

// attemptFilter drops log records of activity attempts: the report lists unreadable files,
// possibly thousands. Other warnings are shown, above all that of an instance that stalls
// because its code changed.
type attemptFilter struct{ slog.Handler }

func (a attemptFilter) Handle(ctx context.Context, record slog.Record) error {
	if record.Message == "activity attempt failed" {
		return nil
	}
	return a.Handler.Handle(ctx, record)
}

func (a attemptFilter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return attemptFilter{a.Handler.WithAttrs(attrs)}
}

func (a attemptFilter) WithGroup(name string) slog.Handler {
	return attemptFilter{a.Handler.WithGroup(name)}
}
