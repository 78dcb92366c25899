package actors_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

var kid = replay.Orchestration[string, string]("kid")

// parent calls one child under the ID "kid".
func parent() replay.Definition {
	return program("parent", func(ctx *replay.Context, text string) (string, error) {
		return kid.Call(ctx, text, replay.ChildID("kid"))
	})
}

// cancelingParent starts the child, and cancels it when a word comes.
func cancelingParent() replay.Definition {
	return program("fickle", func(ctx *replay.Context, text string) (string, error) {
		winner, err := replay.Race(ctx, kid.Start(ctx, text, replay.ChildID("kid")), word.Subscribe(ctx))
		if err != nil {
			return "", err
		}
		_, err = word.Wait(ctx)
		return fmt.Sprint(winner), err
	})
}

func waitingChild() replay.Definition {
	return kid.Bind(func(ctx *replay.Context, _ string) (string, error) { return word.Wait(ctx) })
}

func TestChild_ResultRecordedOnce(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, parent(), waitingChild())
		rejections := 0
		n.journal.configure(func(j *testJournal) {
			j.check = rejectFirstOf(t, 3, "SubOrchestrationCompleted", &rejections)
		})
		n.start("p", "parent", "").want(nil)
		waitIdle()
		n.send("kid", "word", "a").want(nil)
		n.wantOutput("p", "a")
		n.wantHistory("p", "OrchestrationStarted", "SubOrchestrationScheduled",
			"SubOrchestrationCompleted of 2", "OrchestrationCompleted")
		if rejections != 3 {
			t.Errorf("%d rejections", rejections)
		}
	})
}

func TestChild_FailureReachesParent(t *testing.T) {
	for name, c := range map[string]struct {
		body func(*replay.Context, string) (string, error)
		want string
	}{
		"error": {func(*replay.Context, string) (string, error) { return "", errors.New("no") }, "no"},
		"panic": {func(*replay.Context, string) (string, error) { panicky(); return "", nil }, "panic: ouch"},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				n := lead(t, newTestJournal(), actors.Config{}, kid.Bind(c.body),
					program("parent", func(ctx *replay.Context, _ string) (string, error) {
						_, err := kid.Call(ctx, "")
						var failed *replay.ChildError
						if !errors.As(err, &failed) {
							return "", err
						}
						return failed.Instance + ": " + failed.Err.Error(), nil
					}))
				n.start("p", "parent", "").want(nil)
				n.wantOutput("p", "p::1.2: "+c.want)
				n.awaitStatus("p::1.2", journalpb.Status_STATUS_FAILED)
			})
		})
	}
}

func TestChild_TerminationReachesParent(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{AppendBytesMax: 2000}, bindUpper(),
			kid.Bind(func(ctx *replay.Context, _ string) (string, error) {
				return upper.Call(ctx, strings.Repeat("x", 3000))
			}),
			program("parent", func(ctx *replay.Context, _ string) (string, error) {
				_, err := kid.Call(ctx, "")
				return fmt.Sprint(errors.Is(err, replay.ErrTerminated)), nil
			}))
		n.start("p", "parent", "").want(nil)
		n.wantOutput("p", "true")
	})
}

func TestChild_IDTakenByOtherInstance(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, waitingChild(),
			program("parent", func(ctx *replay.Context, text string) (string, error) {
				_, err := kid.Call(ctx, text, replay.ChildID("kid"))
				return fmt.Sprint(errors.Is(err, replay.ErrInstanceExists)), nil
			}))
		n.start("kid", "kid", "").want(nil)
		n.start("p", "parent", "").want(nil)
		n.wantOutput("p", "true")
		n.send("kid", "word", "a").want(nil)
		n.wantOutput("kid", "a")
	})
}

func TestChild_CanceledByParent(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, cancelingParent(), waitingChild())
		n.start("p", "fickle", "").want(nil)
		waitIdle()
		n.send("p", "word", "").want(nil)
		n.awaitStatus("kid", journalpb.Status_STATUS_CANCELED)
		n.send("p", "word", "").want(nil)
		n.wantOutput("p", "1")
		if reason := n.last("kid").GetOrchestrationCanceled().Reason; !strings.Contains(reason, "parent") {
			t.Errorf("cancellation reason: %q", reason)
		}
		n.wantHistory("p", "OrchestrationStarted", "SubOrchestrationScheduled", "ExternalSubscribed", "ExternalEvent",
			"CancelRequested of 2", "ExternalSubscribed", "ExternalEvent", "OrchestrationCompleted")
	})
}

// The parent cancels the child while the child's start is rejected. The start is repeated, so the
// cancellation must be too.
func TestChild_CanceledBeforeStart(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, cancelingParent(), waitingChild())
		n.journal.configure(func(j *testJournal) {
			j.check = func(a *journalpb.Append) error {
				if a.Instance == "kid" && j.log[len(j.log)-1].Instance == "p" && len(j.log) < 2 {
					return errRejected
				}
				return nil
			}
		})
		n.start("p", "fickle", "").want(nil)
		time.Sleep(time.Second) // the start was rejected some times
		n.send("p", "word", "").want(nil)
		n.awaitStatus("kid", journalpb.Status_STATUS_CANCELED)
	})
}

// The parent cancels its child before it knows that an unrelated instance has the ID.
func TestChild_CancelSparesOtherInstance(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, cancelingParent(), waitingChild())
		n.start("kid", "kid", "").want(nil)
		n.journal.holdAppends()
		n.start("p", "fickle", "")
		waitIdle()
		n.send("p", "word", "")
		n.journal.decideHeld(nil)
		waitIdle()
		n.journal.releaseAppends() // the word was first
		waitIdle()
		if count := n.count("p", "CancelRequested"); count != 1 {
			t.Fatalf("history of the parent: %v", n.history("p"))
		}
		time.Sleep(time.Hour)
		n.send("kid", "word", "a").want(nil)
		n.wantOutput("kid", "a")
	})
}

func TestChild_Many(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		const count = 200
		n := lead(t, newTestJournal(), actors.Config{ResidentMax: 10}, bindUpper(), shout(),
			program("fan", func(ctx *replay.Context, _ string) (string, error) {
				var futures []*replay.Future[string]
				for range count {
					futures = append(futures, shoutHandle.Start(ctx, "x"))
				}
				results, err := replay.All(ctx, futures...)
				return strings.Join(results, ""), err
			}))
		n.start("f", "fan", "").want(nil)
		n.wantOutput("f", strings.Repeat("X", count))
	})
}

// A child may end, and its parent's node fail, before the parent has recorded the end.
func TestChild_EndReportedByNextLeader(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, parent(), waitingChild())
		first.start("p", "parent", "").want(nil)
		waitIdle()
		j.configure(func(j *testJournal) {
			j.check = func(a *journalpb.Append) error {
				if a.Instance == "p" {
					return errRejected
				}
				return nil
			}
		})
		first.send("kid", "word", "a").want(nil)
		time.Sleep(time.Second)
		first.close()
		j.configure(func(j *testJournal) { j.check = nil })
		second := lead(t, j, actors.Config{}, parent(), waitingChild())
		second.wantOutput("p", "a")
	})
}

func TestChild_ActivityInfo(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, parent(),
			kid.Bind(func(ctx *replay.Context, text string) (string, error) { return upper.Call(ctx, text) }),
			upper.Bind(func(ctx context.Context, _ string) (string, error) {
				return replay.ActivityInfo(ctx).IdempotencyKey(), nil
			}))
		n.start("p", "parent", "").want(nil)
		n.wantOutput("p", "kid/1/2")
	})
}

// A parent gets the error text of protocol 3 for a canceled child only if the whole cluster has
// reached it. Older nodes would read another text and disagree.
func TestChild_CanceledErrorPerProtocol(t *testing.T) {
	for text, start := range map[string]func(*testing.T, *testJournal, actors.Config, ...replay.Definition) *node{
		"enough": func(t *testing.T, j *testJournal, c actors.Config, d ...replay.Definition) *node {
			return lead(t, j, c, d...)
		},
		"canceled: enough": leadWithIncarnations,
	} {
		inVirtualTime(t, func(t *testing.T) {
			n := start(t, newTestJournal(), actors.Config{}, waitingChild(), program("parent", func(ctx *replay.Context, _ string) (string, error) {
				_, err := kid.Call(ctx, "", replay.ChildID("c"))
				return errors.Unwrap(err).Error(), nil
			}))
			n.start("p", "parent", "").want(nil)
			waitIdle()
			n.deliver("c", actors.Message{Message: engine.Message{Event: &journalpb.Event{Body: &journalpb.Event_OrchestrationCancelRequested{
				OrchestrationCancelRequested: &journalpb.OrchestrationCancelRequested{Reason: "enough"},
			}}}}).want(nil)
			n.wantOutput("p", text)
			if record := n.events("p")[2].GetSubOrchestrationFailed().GetError(); record.GetMessage() != text {
				t.Errorf("recorded: %q; want %q", record.GetMessage(), text)
			}
		})
	}
}
