package replaytest

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// A recorder records failures in place of a test.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failures []string
	cleanups []func()
}

func (r *recorder) fail(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, text)
}

func (r *recorder) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.failures, "\n")
}

func (r *recorder) Helper()                           {}
func (r *recorder) Log(...any)                        {}
func (r *recorder) Logf(string, ...any)               {}
func (r *recorder) Output() io.Writer                 { return io.Discard }
func (r *recorder) Error(args ...any)                 { r.fail(fmt.Sprint(args...)) }
func (r *recorder) Errorf(format string, args ...any) { r.fail(fmt.Sprintf(format, args...)) }
func (r *recorder) Cleanup(fn func())                 { r.cleanups = append(r.cleanups, fn) }
func (r *recorder) Failed() bool                      { return r.text() != "" }

func (r *recorder) Fatal(args ...any) {
	r.fail(fmt.Sprint(args...))
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.fail(fmt.Sprintf(format, args...))
	runtime.Goexit()
}

// failuresOf runs a function as a test and returns its failures.
func failuresOf(t *testing.T, test func(t testing.TB)) string {
	t.Helper()
	r := &recorder{TB: t}
	run := func(fn func()) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			fn()
		}()
		<-done
	}
	run(func() { test(r) })
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		run(r.cleanups[i])
	}
	return r.text()
}

// failures runs a test of orchestrations and returns its failures.
func failures(t *testing.T, test func(t testing.TB, env *Env), definitions ...replay.Definition) string {
	t.Helper()
	return failuresOf(t, func(r testing.TB) {
		env := newEnv(r, t, new(order), definitions)
		env.bubble.pollInterval = 20 * time.Millisecond
		test(r, env)
	})
}

// begin starts an instance, or fails the test of the environment.
func begin[I, O any](env *Env, handle replay.OrchestrationHandle[I, O], id string, in I, options ...replay.Option) *Run[O] {
	env.t.Helper()
	run, err := StartRun(env, handle, id, in, options...)
	if err != nil {
		env.t.Fatal(err)
	}
	return run
}

// wantFailure fails the test unless the text contains all parts.
func wantFailure(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("failed with\n%s\nwithout %q", text, part)
		}
	}
}
