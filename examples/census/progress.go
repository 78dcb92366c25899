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

// How often the progress is shown: in the same place on a terminal, line after
// line anywhere else.
const (
	redrawEvery = 200 * time.Millisecond
	lineEvery   = 5 * time.Second
)

// A standing is how far the root has come. It survives a kill because the code
// that sets it is run again.
type standing struct {
	directories int // that were found so far
	done        int // of them
	total       Totals
}

// A progress shows people what goes on. It may be used concurrently.
type progress struct {
	out      io.Writer
	redraws  bool // out is a terminal, where a line can be written over
	began    time.Time
	executed atomic.Int64 // activities, by this process

	mu    sync.Mutex
	now   standing
	drawn bool // the line of the cursor is a progress
}

func newProgress(out *os.File) *progress {
	info, err := out.Stat()
	return &progress{
		out:     out,
		redraws: err == nil && info.Mode()&os.ModeCharDevice != 0,
		began:   time.Now(),
	}
}

// counted makes an activity's body count its executions.
func counted[I, O any](p *progress, body func(context.Context, I) (O, error)) func(context.Context, I) (O, error) {
	return func(ctx context.Context, input I) (O, error) {
		defer p.executed.Add(1)
		return body(ctx, input)
	}
}

// stands takes note of how far the root is.
func (p *progress) stands(s standing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = s
}

// watch shows the progress until the function that it returns is called.
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
	// Short, because a line that a narrow terminal breaks is not written over.
	line := fmt.Sprintf("%s of %s directories, %s files, %s MB; %s activities/s",
		grouped(int64(p.now.done)), grouped(int64(p.now.directories)), grouped(p.now.total.Files), grouped(p.now.total.Bytes/1e6),
		grouped(perSecond(p.executed.Load(), time.Since(p.began))))
	if !p.redraws {
		fmt.Fprintln(p.out, line)
		return
	}
	fmt.Fprint(p.out, eraseLine, line)
	p.drawn = true
}

// eraseLine brings the cursor back and takes away what is in its line.
const eraseLine = "\r\x1b[K"

func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
}

func (p *progress) erase() {
	if p.drawn {
		fmt.Fprint(p.out, eraseLine)
		p.drawn = false
	}
}

// say prints a line that stays.
func (p *progress) say(format string, args ...any) {
	fmt.Fprintf(p, format+"\n", args...)
}

// Write lets the log through to the terminal without tearing the progress.
func (p *progress) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	return p.out.Write(text)
}

// exceptAttempts keeps attempts of activities out of the log: what could not be
// read is in the report, and there may be thousands of it. Everything else that
// the node warns of is worth a line, above all an instance that is stalled
// because somebody has changed its code.
type exceptAttempts struct{ slog.Handler }

func (h exceptAttempts) Handle(ctx context.Context, record slog.Record) error {
	if record.Message == "activity attempt" {
		return nil
	}
	return h.Handler.Handle(ctx, record)
}

func (h exceptAttempts) WithAttrs(attrs []slog.Attr) slog.Handler {
	return exceptAttempts{h.Handler.WithAttrs(attrs)}
}

func (h exceptAttempts) WithGroup(name string) slog.Handler {
	return exceptAttempts{h.Handler.WithGroup(name)}
}
