package replaytest_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

// Each call takes the options that its comment lists, and rejects all others without any effect.
func TestOptions_RejectedByCallsOfOtherKinds(t *testing.T) {
	handle, definition := program("approval", approval)
	env := replaytest.New(t, definition)
	options := map[string]replay.Option{
		"StartToClose": replay.StartToClose(1), "Pinned": replay.Pinned(), "Receives": replay.Receives(), "ChildID": replay.ChildID("x"),
		"OnParentClose": replay.OnParentClose(replay.CancelChild), "Version": replay.Version(""),
		"RequestID": replaytest.RequestID("r"), "Attach": replaytest.Attach(), "ReuseWhenEnded": replaytest.ReuseWhenEnded(),
		"TerminateExisting": replaytest.TerminateExisting(), "Deadline": replaytest.Deadline(time.Unix(1<<32, 0)),
		"Retry":           replay.Retry(replay.RetryPolicy{}),
		"ReuseWhenFailed": replaytest.ReuseWhenFailed(), "StartAt": replaytest.StartAt(time.Unix(1, 0)), "Tags": replaytest.Tags(nil),
		"Summary": replay.Summary("s"),
		"Headers": replaytest.Headers(tenant.With(t.Context(), "acme")),
		"1":       {}, // not made by a function
	}
	start := []string{"Version", "RequestID", "Attach", "ReuseWhenEnded", "ReuseWhenFailed", "TerminateExisting", "StartAt", "Deadline", "Retry", "Summary", "Tags", "Headers"}
	for call, c := range map[string]struct {
		kind       string
		applicable []string
		make       func(id string, option replay.Option) error
	}{
		"StartRun": {"a start", start, func(id string, o replay.Option) error {
			_, err := replaytest.StartRun(env, handle, id, "", o)
			return err
		}},
		"Call": {"a start", start, func(id string, o replay.Option) error {
			_, err := replaytest.Call(env, handle, id, "", o)
			return err
		}},
		"SendOrStart": {"a start", start, func(id string, o replay.Option) error {
			_, err := replaytest.SendOrStart(env, handle, id, "", approved, true, o)
			return err
		}},
		"UpdateOrStart": {"a start", start, func(id string, o replay.Option) error {
			_, _, err := replaytest.UpdateOrStart(env, id, handle, "", change, 1, o)
			var none *replay.NotRegisteredError
			if errors.As(err, &none) { // its code handles no updates
				return nil
			}
			return err
		}},
		"Send": {"an event", []string{"RequestID", "Headers"}, func(id string, o replay.Option) error {
			return replaytest.Send(env, id, approved, true, o)
		}},
		"CallUpdate": {"an update", []string{"RequestID", "Headers"}, func(id string, o replay.Option) error {
			_, err := replaytest.CallUpdate(env, id, change, 1, o)
			return err
		}},
	} {
		for name, option := range options {
			id := fmt.Sprintf("%s-%s", call, name)
			err := c.make(id, option)
			if slices.Contains(c.applicable, name) {
				excluded := (call == "SendOrStart" || call == "UpdateOrStart") && name == "TerminateExisting"
				if err != nil && !(excluded && strings.Contains(err.Error(), "excludes Attach and SendOrStart")) && !errors.Is(err, replaytest.ErrNotFound) {
					t.Errorf("%s with %s: %v", call, name, err)
				}
				continue
			}
			want := replay.InvalidError{Field: "option " + name, Reason: "does not apply to " + c.kind}
			if name == "1" {
				want.Reason = "is empty: call a function that returns an option"
			}
			if got := new(replay.InvalidError); !errors.As(err, &got) || *got != want {
				t.Errorf("%s with %s: %v; want %v", call, name, err, &want)
			}
			if _, err := env.Get(id); !errors.Is(err, replaytest.ErrNotFound) {
				t.Errorf("%s with %s had an effect: %v", call, name, err)
			}
		}
	}
}

func TestRequestID_RepeatedCallsHaveOneEffect(t *testing.T) {
	handle, definition := program("approval", approval)
	env := replaytest.New(t, definition)
	first, err := replaytest.StartRun(env, handle, "i", "", replaytest.RequestID("start"))
	if err != nil {
		t.Fatal(err)
	}
	update := func(n int) (int, error) {
		return replaytest.CallUpdate(env, "i", change, n, replaytest.RequestID("add"))
	}
	for _, n := range []int{5, 5, -5} { // the last is not validated: it is not executed
		if amount, err := update(n); err != nil || amount != 5 {
			t.Errorf("update: %d, %v", amount, err)
		}
	}
	if err := replaytest.Send(env, "i", approved, true, replaytest.RequestID("add")); !errors.Is(err, replaytest.ErrRequestIDReused) {
		t.Errorf("an event with the ID of an update: %v", err)
	}
	for range 2 { // the second time after the end
		if err := replaytest.Send(env, "i", approved, true, replaytest.RequestID("yes")); err != nil {
			t.Error(err)
		}
		if status, err := env.Wait("i"); err != nil || status.State != replaytest.Completed {
			t.Errorf("%+v, %v", status, err)
		}
	}
	if amount, err := update(5); err != nil || amount != 5 {
		t.Errorf("update after the end: %d, %v", amount, err)
	}
	if _, err := replaytest.CallUpdate(env, "i", change, 5, replaytest.RequestID("yes")); !errors.Is(err, replaytest.ErrRequestIDReused) {
		t.Errorf("an update with the ID of an event: %v", err)
	}
	if _, err := replaytest.CallUpdate(env, "i", change, 5, replaytest.RequestID("new")); !errors.Is(err, replaytest.ErrEnded) {
		t.Errorf("a new update after the end: %v", err)
	}
	second, err := replaytest.SendOrStart(env, handle, "i", "", approved, false, replaytest.ReuseWhenEnded(), replaytest.RequestID("both"))
	if err != nil {
		t.Fatal(err)
	}
	for run, want := range map[string]*replaytest.Run[string]{"start": first, "both": second} {
		again, err := replaytest.StartRun(env, handle, "i", "", replaytest.RequestID(run))
		if err != nil || *again != *want {
			t.Errorf("start %q again: %+v, %v; want %+v", run, again, err, want)
		}
	}
	if output, err := second.Wait(); err != nil || output != "false, 0" {
		t.Errorf("%q, %v", output, err)
	}
	again, err := replaytest.SendOrStart(env, handle, "i", "", approved, false, replaytest.RequestID("both"))
	if err != nil || *again != *second {
		t.Errorf("sent again: %+v, %v", again, err)
	}
}

func TestRequestID_StartWithOtherInputIsRejected(t *testing.T) {
	handle, definition := program("echo", func(_ *replay.Context, in string) (string, error) { return in, nil })
	env := replaytest.New(t, definition)
	for range 2 {
		if _, err := replaytest.Call(env, handle, "i", "a", replaytest.RequestID("r")); err != nil {
			t.Error(err)
		}
		if _, err := replaytest.Call(env, handle, "i", "b", replaytest.RequestID("r")); !errors.Is(err, replaytest.ErrRequestIDReused) {
			t.Errorf("with another input: %v", err)
		}
		if _, err := replaytest.Call(env, handle, "i", "c", replaytest.ReuseWhenEnded()); err != nil {
			t.Error(err)
		}
	}
}

func TestAttach_ReturnsExistingRun(t *testing.T) {
	handle, definition := program("approval", approval)
	env := replaytest.New(t, definition)
	first := begin(t, env, handle, "i", "")
	if again, err := replaytest.StartRun(env, handle, "i", "", replaytest.Attach()); err != nil || !again.Attached || first.Attached {
		t.Errorf("%+v, %v", again, err)
	}
	if _, err := replaytest.Call(env, handle, "i", ""); !errors.Is(err, replaytest.ErrInstanceExists) {
		t.Errorf("called without Attach: %v", err)
	}
	if _, err := env.Wait("j"); !errors.Is(err, replaytest.ErrNotFound) {
		t.Errorf("waited for a missing instance: %v", err)
	}
}

func TestTerminateExisting_ReplacesRun(t *testing.T) {
	handle, definition := program("approval", approval)
	env := replaytest.New(t, definition)
	first := begin(t, env, handle, "i", "")
	second, err := replaytest.StartRun(env, handle, "i", "", replaytest.TerminateExisting(), replaytest.RequestID("r"))
	if err != nil || second.Attached {
		t.Fatalf("%+v, %v", second, err)
	}
	var ended *replaytest.RunError
	if _, err := first.Wait(); !errors.As(err, &ended) || ended.State != replaytest.Terminated {
		t.Errorf("the replaced run: %v", err)
	}
	if err := replaytest.Send(env, "i", approved, true); err != nil {
		t.Fatal(err)
	}
	if answer, err := second.Wait(); err != nil || answer != "true, 0" {
		t.Errorf("the new run: %q, %v", answer, err)
	}
}

func TestSendOrStart_RepeatedForEarlierRun(t *testing.T) {
	handle, definition := program("approval", approval)
	env := replaytest.New(t, definition)
	send := func() *replaytest.Run[string] {
		t.Helper()
		run, err := replaytest.SendOrStart(env, handle, "i", "", approved, true, replaytest.ReuseWhenEnded(), replaytest.RequestID("r"))
		if err != nil {
			t.Fatal(err)
		}
		return run
	}
	send()
	if _, err := replaytest.Call(env, handle, "i", "", replaytest.ReuseWhenEnded()); err != nil {
		t.Fatal(err)
	}
	if answer, err := send().Wait(); err != nil || answer != "true, 0" {
		t.Errorf("repeated: %q, %v; want the result of the first run", answer, err)
	}
}

func TestDeadline_CancelsRun(t *testing.T) {
	handle, definition := program("approval", approval)
	env := replaytest.New(t, definition)
	deadline := env.Now().Add(time.Hour)
	run, err := replaytest.StartRun(env, handle, "i", "", replaytest.Deadline(deadline))
	if err != nil {
		t.Fatal(err)
	}
	var ended *replaytest.RunError
	if _, err := run.Wait(); !errors.As(err, &ended) || ended.State != replaytest.Canceled || !strings.Contains(err.Error(), "deadline") {
		t.Errorf("%v", err)
	}
	if now := env.Now(); !now.Equal(deadline) {
		t.Errorf("it ended at %v, want %v", now, deadline)
	}
}
