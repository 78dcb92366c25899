package actors_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/replay"
)

// foreignCaller calls an activity from its own goroutines.
func foreignCaller(body func(ctx *replay.Context, stray func()) error) replay.Definition {
	return program("strays", func(ctx *replay.Context, _ string) (string, error) {
		if err := body(ctx, func() { _, _ = upper.Call(ctx, "stray") }); err != nil {
			return "", err
		}
		return word.Wait(ctx)
	})
}

func (n *node) wantForeignCall(id string) {
	n.t.Helper()
	waitIdle()
	var mismatch *replay.Mismatch
	if err := n.partition.StallReason(id); !errors.As(err, &mismatch) || mismatch.Kind != replay.ForeignGoroutine {
		n.t.Fatalf("stalled by %v", err)
	}
	if !strings.Contains(mismatch.Source, "foreigngoroutine_test.go:") || !n.log.contains(mismatch.Source) {
		n.t.Errorf("source %q, log:\n%s", mismatch.Source, &n.log.text)
	}
}

func TestForeignGoroutine_StallsOnlyItsInstance(t *testing.T) {
	later := make(chan struct{}, 3) // one for each start, by three nodes
	for name, body := range map[string]func(*replay.Context, func()) error{
		"waited for": func(_ *replay.Context, stray func()) error {
			var running sync.WaitGroup
			for range 10 {
				running.Add(1)
				go func() { defer running.Done(); stray() }()
			}
			running.Wait()
			return nil
		},
		"not waited for": func(_ *replay.Context, stray func()) error {
			go stray()
			return nil
		},
		"between turns": func(ctx *replay.Context, stray func()) error {
			go func() { <-later; stray() }()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				j := newTestJournal()
				later = make(chan struct{}, 3)
				first := lead(t, j, actors.Config{}, foreignCaller(body), bindUpper(), collect())
				first.start("s", "strays", "")
				waitIdle()
				later <- struct{}{}
				first.wantForeignCall("s")
				first.start("c", "collect", "x").want(nil)
				first.send("c", "word", "a").want(nil)
				first.wantOutput("c", "a")
				first.close()

				// It runs the same code at the next start, and then corrected code.
				second := lead(t, j, actors.Config{}, foreignCaller(body), bindUpper(), collect())
				if _, recorded := j.Instance("s"); !recorded {
					second.start("s", "strays", "")
					waitIdle()
					later <- struct{}{}
					second.wantForeignCall("s")
				}
				second.close()
				third := lead(t, j, actors.Config{}, foreignCaller(func(*replay.Context, func()) error { return nil }), bindUpper(), collect())
				third.start("s", "strays", "")
				third.send("s", "word", "a")
				third.wantOutput("s", "a")
				if third.count("s", "ActivityScheduled") != 0 {
					t.Error("a stray call was recorded")
				}
				close(later) // for a run that a new leader's retry of the stalled instance has begun
			})
		})
	}
}

// The call ends its goroutine, and nothing else happens.
func TestForeignGoroutine_AfterEnd(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		later, ended := make(chan struct{}), make(chan struct{})
		n := lead(t, newTestJournal(), actors.Config{}, foreignCaller(func(_ *replay.Context, stray func()) error {
			go func() { defer close(ended); <-later; stray() }()
			return nil
		}), bindUpper())
		n.start("s", "strays", "").want(nil)
		n.send("s", "word", "a").want(nil)
		n.wantOutput("s", "a")
		before := n.history("s")
		close(later)
		<-ended
		waitIdle()
		n.wantHistory("s", before...)
		if err := n.partition.StallReason("s"); err != nil || !n.log.contains("foreigngoroutine_test.go:") {
			t.Errorf("stalled: %v, log:\n%s", err, &n.log.text)
		}
	})
}

// The instance that owns the Context continues.
func TestForeignGoroutine_ContextOfOtherInstance(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		contexts := make(chan *replay.Context, 1)
		n := lead(t, newTestJournal(), actors.Config{}, bindUpper(),
			program("owner", func(ctx *replay.Context, _ string) (string, error) {
				contexts <- ctx
				return word.Wait(ctx)
			}),
			program("thief", func(*replay.Context, string) (string, error) { return upper.Call(<-contexts, "x") }))
		n.start("o", "owner", "").want(nil)
		n.start("t", "thief", "").want(nil)
		var crash *replay.PanicError
		if err := n.failure("t"); !errors.As(err, &crash) || !strings.Contains(crash.Stack, "foreigngoroutine_test.go:") {
			t.Errorf("the thief ended with %v", err)
		}
		n.send("o", "word", "a").want(nil)
		n.wantOutput("o", "a")
	})
}

// A query must only read.
func TestQuery_DurableCallFails(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, bindUpper(), program("asked", func(ctx *replay.Context, _ string) (string, error) {
			if err := progress.Handle(ctx, func(string) (string, error) { return upper.Call(ctx, "x") }); err != nil {
				return "", err
			}
			return word.Wait(ctx)
		}))
		n.start("q", "asked", "").want(nil)
		var crash *replay.PanicError
		n.deliver("q", actors.Message{Query: &actors.Query{Name: "progress", Input: payload(t, "")}}).wantAs(&crash)
		n.send("q", "word", "a").want(nil)
		n.wantOutput("q", "a")
	})
}
