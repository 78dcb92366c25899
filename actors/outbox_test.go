package actors_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// wordSender sends a word to each of the instances that its input lists, and returns the outcomes.
func wordSender() replay.Definition {
	return program("send-words", func(ctx *replay.Context, receivers string) (string, error) {
		var outcomes []string
		for i, receiver := range strings.Fields(receivers) {
			outcomes = append(outcomes, outcomeText(word.SendTo(ctx, receiver, fmt.Sprint("w", i))))
		}
		return strings.Join(outcomes, " "), nil
	})
}

func outcomeText(err error) string {
	switch {
	case errors.Is(err, replay.ErrNotFound):
		return "not-found"
	case errors.Is(err, replay.ErrEnded):
		return "ended"
	case err != nil:
		return err.Error()
	}
	return "sent"
}

// cancelNamed cancels the instance that its input names.
func cancelNamed() replay.Definition {
	return program("cancel-named", func(ctx *replay.Context, receiver string) (string, error) {
		return outcomeText(replay.CancelInstance(ctx, receiver, "enough")), nil
	})
}

func TestSendTo_RecordedByReceiver(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, wordSender(), collect())
		n.start("c", "collect", "xxx").want(nil)
		n.start("m", "send-words", "c c c").want(nil)
		n.wantOutput("c", "w0 w1 w2")
		n.wantOutput("m", "sent sent sent")
		n.wantHistory("m", "OrchestrationStarted", "MessageSent", "MessageDelivered of 2", "MessageSent", "MessageDelivered of 4",
			"MessageSent", "MessageDelivered of 6", "OrchestrationCompleted")
	})
}

func TestSendTo_RejectionIsAnError(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, wordSender(), collect())
		n.start("c", "collect", "").want(nil)
		n.wantOutput("c", "")
		n.start("m", "send-words", "missing c").want(nil)
		n.wantOutput("m", "not-found ended")
		n.wantHistory("m", "OrchestrationStarted", "MessageSent", "MessageRejected of 2", "MessageSent", "MessageRejected of 4", "OrchestrationCompleted")
	})
}

func TestSendTo_InvalidArgumentSchedulesNothing(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, program("m", func(ctx *replay.Context, _ string) (string, error) {
			var invalid *replay.InvalidError
			for _, err := range []error{
				word.SendTo(ctx, "not an ID", ""),
				word.SendTo(ctx, "", ""),
				replay.Event[string](strings.Repeat("x", 129)).SendTo(ctx, "c", ""),
				replay.CancelInstance(ctx, "c", strings.Repeat("x", 4097)),
				replay.CancelInstance(ctx, "c", "\xff"),
			} {
				if !errors.As(err, &invalid) {
					return "", fmt.Errorf("error %v", err)
				}
			}
			var payload *replay.PayloadError
			if err := replay.Event[func()]("f").SendTo(ctx, "c", func() {}); !errors.As(err, &payload) {
				return "", fmt.Errorf("error %v", err)
			}
			return "done", nil
		}))
		n.start("m", "m", "").want(nil)
		n.wantOutput("m", "done")
		n.wantHistory("m", "OrchestrationStarted", "OrchestrationCompleted")
	})
}

func TestSendTo_ToItself(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, program("m", func(ctx *replay.Context, _ string) (string, error) {
			if err := word.SendTo(ctx, ctx.InstanceID(), "me"); err != nil {
				return "", err
			}
			return word.Wait(ctx)
		}))
		n.start("m", "m", "").want(nil)
		n.wantOutput("m", "me")
	})
}

func TestCancelInstance_RecordedByReceiver(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, cancelNamed(), collect())
		n.start("c", "collect", "x").want(nil)
		n.start("m", "cancel-named", "c").want(nil)
		n.awaitStatus("c", journalpb.Status_STATUS_CANCELED)
		if reason := n.last("c").GetOrchestrationCanceled().GetReason(); reason != "enough" {
			t.Errorf("canceled with reason %q", reason)
		}
		n.wantOutput("m", "sent")
		n.start("again", "cancel-named", "c").want(nil)
		n.wantOutput("again", "ended")
	})
}

// The receiver records each message once, however often nodes crash.
func TestSendTo_RecordedOnceDespiteCrashes(t *testing.T) {
	for k := 1; k <= 12; k++ {
		for _, received := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d/%t", k, received), func(t *testing.T) {
				inVirtualTime(t, func(t *testing.T) {
					j := newTestJournal()
					first := lead(t, j, actors.Config{}, wordSender(), collect())
					first.start("c", "collect", "xxx").want(nil)
					j.crashAt(k, received)
					first.start("m", "send-words", "c c c c missing").get()
					time.Sleep(time.Minute)
					first.close()
					j.clearCrash()
					second := lead(t, j, actors.Config{}, wordSender(), collect())
					again := message(second.startMessage("send-words", "c c c c missing"))
					again.Attach = true
					second.deliver("m", again).want(nil)
					second.wantOutput("c", "w0 w1 w2")
					second.wantOutput("m", "sent sent sent ended not-found")
					if n := second.count("c", "ExternalEvent"); n != 3 {
						t.Errorf("%d events are recorded", n)
					}
				})
			})
		}
	}
}

// A message that nothing waits for any more is not sent again.
func TestSendTo_CanceledWhileUnanswered(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		n := lead(t, j, actors.Config{}, collect(), program("m", func(ctx *replay.Context, _ string) (string, error) {
			inner, cancel := replay.WithTimeout(ctx, time.Minute)
			defer cancel()
			return outcomeText(word.SendTo(inner, "c", "late")), nil
		}))
		n.start("c", "collect", "x").want(nil)
		j.configure(func(j *testJournal) {
			j.check = func(a *journalpb.Append) error {
				if a.Instance == "c" {
					return errRejected
				}
				return nil
			}
		})
		n.start("m", "m", "").want(nil)
		n.wantOutput("m", replay.ErrTimeout.Error())
		j.configure(func(j *testJournal) { j.check = nil })
		time.Sleep(time.Hour)
		if sent := n.count("c", "ExternalEvent"); sent != 0 {
			t.Errorf("%d events are recorded", sent)
		}
		n.wantHistory("m", "OrchestrationStarted", "TimerCreated", "MessageSent", "TimerFired of 2", "CancelRequested of 3", "OrchestrationCompleted")
	})
}
