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

var wrongNote = replay.Event[int]("note")

// wantRefused checks that an error refuses a note whose data is the number 17.
func wantRefused(t *testing.T, what string, err error) {
	t.Helper()
	var refused *replay.PayloadError
	if !errors.As(err, &refused) || refused.Name != "note" || refused.Type != "string" || refused.Sent != "17" {
		t.Errorf("%s: %v; want a refusal", what, err)
	}
}

// Data of a wrong type is refused at the sender if the code has subscribed to the event or declares
// it; otherwise the wait for it fails.
func TestRefusal_AtSender(t *testing.T) {
	started := replay.Orchestration[string, string]("started")
	env := New(t, program.Bind(collectNotes), started.Bind(func(ctx *replay.Context, _ string) (string, error) {
		if err := ctx.Sleep(time.Minute); err != nil {
			return "", err
		}
		return collectNotes(ctx, "")
	}, replay.Receives(note)), helper.Bind(func(ctx *replay.Context, id string) (string, error) {
		err := wrongNote.SendTo(ctx, id, 17)
		if !errors.As(err, new(*replay.PayloadError)) {
			return "", fmt.Errorf("error: %w", err)
		}
		return err.Error(), nil
	}))
	_, err := SendOrStart(env, started, "s", "", wrongNote, 17)
	wantRefused(t, "start with a wrong event", err)
	if _, err := SendOrStart(env, started, "s", "", note, "a"); err != nil {
		t.Fatal(err)
	}
	subscribed := begin(env, program, "p", "")
	for _, id := range []string{"s", "p"} {
		wantRefused(t, id, Send(env, id, wrongNote, 17, RequestID("r1")))
		got, err := Call(env, helper, "to-"+id, id)
		want := fmt.Sprintf(`send "note" to %s: decode data of event "note" as string: sent 17: json: cannot unmarshal number into Go value of type string`, id)
		if err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", id, got, err, want)
		}
		if err := Send(env, id, note, "b", RequestID("r1")); err != nil {
			t.Error(err)
		}
		if err := Send(env, id, note, "b", RequestID("r1")); err != nil {
			t.Error(err)
		}
	}
	if err := Send(env, "p", note, "c"); err != nil {
		t.Error(err)
	}
	if got, err := subscribed.Wait(); err != nil || got != "bc" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestRefusal_UnknownTypeFailsWait(t *testing.T) {
	env := New(t, program.Bind(func(ctx *replay.Context, _ string) (string, error) {
		if err := ctx.Sleep(time.Minute); err != nil {
			return "", err
		}
		_, err := note.Wait(ctx)
		if !errors.As(err, new(*replay.PayloadError)) {
			return "", fmt.Errorf("error: %w", err)
		}
		return note.Wait(ctx)
	}))
	run := begin(env, program, "p", "")
	for _, err := range []error{Send(env, "p", wrongNote, 17), Send(env, "p", note, "right")} {
		if err != nil {
			t.Error(err)
		}
	}
	if got, err := run.Wait(); err != nil || got != "right" {
		t.Errorf("%q, %v", got, err)
	}
}
