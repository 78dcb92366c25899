package actors_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

var (
	tick         = replay.Event[string]("tick")
	ready        = replay.Event[string]("ready")
	hungryHandle = replay.Orchestration[int, string]("hungry")
)

// bindHungry binds code that starts n activities at once, and awaits them.
func bindHungry() replay.Definition {
	return hungryHandle.Bind(func(ctx *replay.Context, n int) (string, error) {
		var futures []*replay.Future[string]
		for range n {
			futures = append(futures, upper.Start(ctx, "x"))
		}
		results, err := replay.All(ctx, futures...)
		return fmt.Sprint(len(results)), err
	})
}

func TestLimits_OpenOperationsTerminate(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{Limits: actors.Limits{Open: 3}}, bindUpper(), bindHungry())
		n.start("fits", "hungry", 3).want(nil)
		n.wantOutput("fits", "3")
		n.start("more", "hungry", 4).want(nil)
		n.awaitStatus("more", journalpb.Status_STATUS_TERMINATED)
		reason := n.last("more").GetOrchestrationTerminated().GetReason()
		if !strings.Contains(reason, "4 operations are open, the limit is 3") {
			t.Errorf("the reason is %q", reason)
		}
	})
}

func TestLimits_HistoryTerminates(t *testing.T) {
	loop := replay.Orchestration[int, string]("loop")
	for name, c := range map[string]struct {
		limits actors.Limits
		reason string
	}{
		"events": {actors.Limits{HistoryEvents: 10}, "events, the limit is 10: continue as new"},
		"bytes":  {actors.Limits{HistoryBytes: 40}, "bytes of payloads, the limit is 40: continue as new"},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				n := lead(t, newTestJournal(), actors.Config{Limits: c.limits}, bindUpper(), loop.Bind(
					func(ctx *replay.Context, steps int) (string, error) {
						for range steps {
							if _, err := upper.Call(ctx, "abc"); err != nil {
								return "", err
							}
						}
						return "done", nil
					}))
				n.start("short", "loop", 3).want(nil)
				n.wantOutput("short", "done")
				n.start("long", "loop", 100).want(nil)
				n.awaitStatus("long", journalpb.Status_STATUS_TERMINATED)
				if reason := n.last("long").GetOrchestrationTerminated().GetReason(); !strings.Contains(reason, c.reason) {
					t.Errorf("the reason is %q", reason)
				}
			})
		})
	}
}

func TestLimits_BufferedEventsRejected(t *testing.T) {
	drain := replay.Orchestration[int, string]("drain")
	for name, limits := range map[string]actors.Limits{
		"count": {Buffered: 5},
		"bytes": {BufferedBytes: 15}, // "t" is three bytes
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				n := lead(t, newTestJournal(), actors.Config{Limits: limits}, drain.Bind(
					func(ctx *replay.Context, ticks int) (string, error) {
						if _, err := ready.Wait(ctx); err != nil {
							return "", err
						}
						for range ticks {
							if _, err := tick.Wait(ctx); err != nil {
								return "", err
							}
						}
						return "drained", nil
					}))
				n.start("d", "drain", 6).want(nil)
				for range 5 {
					n.send("d", "tick", "t").want(nil)
				}
				var busy *actors.BusyError
				if answer := n.send("d", "tick", "t").get(); !errors.As(answer.Err, &busy) {
					t.Errorf("the sixth: %v, want a BusyError", answer.Err)
				}
				n.send("d", "ready", "").want(nil) // the code waits for it
				n.send("d", "tick", "t").want(nil)
				n.wantOutput("d", "drained")
			})
		})
	}
}

// An event that was recorded is not rejected when it is sent again because its answer was lost,
// although the buffer is full since.
func TestLimits_RepeatedEventIsNotRejected(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		waits := program("waits", func(ctx *replay.Context, _ string) (string, error) { return ready.Wait(ctx) })
		limits, j := actors.Config{Limits: actors.Limits{Buffered: 2}}, newTestJournal()
		n := lead(t, j, limits, waits)
		n.start("w", "waits", "").want(nil)
		for _, request := range []string{"a", "b"} {
			n.sendWithRequestID("w", "tick", request, "").want(nil)
		}
		n.sendWithRequestID("w", "tick", "b", "").want(nil)
		if answer := n.sendWithRequestID("w", "tick", "c", "").get(); !errors.As(answer.Err, new(*actors.BusyError)) {
			t.Errorf("the third: %v, want a BusyError", answer.Err)
		}
		if answer := n.sendWithRequestID("w", "tock", "b", "").get(); !errors.Is(answer.Err, actors.ErrRequestIDReused) {
			t.Errorf("another event with the ID: %v", answer.Err)
		}
		next := lead(t, j, limits, waits)
		next.sendWithRequestID("w", "tick", "a", "").want(nil)
	})
}

// A change of the limits applies from the next message on, without a new leadership.
func TestLimits_ChangeApplies(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		waits := program("waits", func(ctx *replay.Context, _ string) (string, error) { return ready.Wait(ctx) })
		n := lead(t, newTestJournal(), actors.Config{Limits: actors.Limits{Buffered: 1}}, waits)
		n.start("w", "waits", "").want(nil)
		n.send("w", "tick", "").want(nil)
		rejected := func(when string) {
			t.Helper()
			if answer := n.send("w", "tick", "").get(); !errors.As(answer.Err, new(*actors.BusyError)) {
				t.Errorf("%s: %v, want a BusyError", when, answer.Err)
			}
		}
		rejected("the second")
		n.system.SetLimits(actors.Limits{Buffered: 2})
		n.send("w", "tick", "").want(nil)
		rejected("the third")
	})
}
