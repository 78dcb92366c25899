package replaytest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

var note = replay.Event[string]("note")

// collectNotes waits for two notes.
func collectNotes(ctx *replay.Context, _ string) (string, error) {
	first, err := note.WaitFor(ctx, time.Hour)
	if err != nil {
		return "", err
	}
	second, err := note.WaitFor(ctx, time.Hour)
	return first + second, err
}

// sendNote sends its input to the instance "receiver".
func sendNote(ctx *replay.Context, text string) (string, error) {
	return text, note.SendTo(ctx, "receiver", text)
}

func TestSendTo_BetweenInstances(t *testing.T) {
	env := New(t, program.Bind(collectNotes), helper.Bind(sendNote))
	if _, err := Call(env, helper, "early", "x"); !errors.Is(err, replay.ErrNotFound) {
		t.Errorf("a message to a missing instance: %v", err)
	}
	receiver := begin(env, program, "receiver", "")
	for _, text := range []string{"a", "b"} {
		if _, err := Call(env, helper, "sends-"+text, text); err != nil {
			t.Error(err)
		}
	}
	if got, err := receiver.Wait(); err != nil || got != "ab" {
		t.Errorf("received %q, %v", got, err)
	}
	if _, err := Call(env, helper, "late", "x"); !errors.Is(err, replay.ErrEnded) {
		t.Errorf("a message after the end: %v", err)
	}
}

func TestCancelInstance_OtherInstance(t *testing.T) {
	env := New(t, program.Bind(collectNotes), helper.Bind(func(ctx *replay.Context, id string) (string, error) {
		return "", replay.CancelInstance(ctx, id, "enough")
	}))
	receiver := begin(env, program, "receiver", "")
	if _, err := Call(env, helper, "cancels", "receiver"); err != nil {
		t.Error(err)
	}
	if _, err := receiver.Wait(); !errors.Is(err, replay.ErrCanceled) {
		t.Errorf("received %v", err)
	}
}

// Messages that two instances send at the same time may arrive in either order.
func TestPermute_PermutesMessages(t *testing.T) {
	var all []string
	Permute(t, 100, func(t *testing.T, env *Env) struct{} {
		receiver := begin(env, program, "receiver", "")
		parent := begin(env, replay.Orchestration[string, string]("parent"), "parent", "")
		got, err := receiver.Wait()
		if _, parentErr := parent.Wait(); err != nil || parentErr != nil {
			t.Error(err, parentErr)
		}
		all = append(all, got)
		return struct{}{}
	}, program.Bind(collectNotes), helper.Bind(sendNote),
		replay.Orchestration[string, string]("parent").Bind(func(ctx *replay.Context, _ string) (string, error) {
			results, err := replay.All(ctx, helper.Start(ctx, "a"), helper.Start(ctx, "b"))
			return fmt.Sprint(results), err
		}))
	if slices.Sort(all); !slices.Equal(slices.Compact(all), []string{"ab", "ba"}) {
		t.Errorf("orders %q", all)
	}
}
