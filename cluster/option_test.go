package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

// Each call takes the options that its comment lists, and rejects all others without any effect.
func TestOptions_RejectedByCallsOfOtherKinds(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: append(definitions(), accountOrchestration.Bind(accountOrchestrationBody), basket.Bind(basketBody))})
	ctx, client := testContext(t), node.Client()
	options := map[string]replay.Option{
		"Retry": replay.Retry(replay.RetryPolicy{}), "ScheduleToStart": replay.ScheduleToStart(1), "StartToClose": replay.StartToClose(1),
		"ScheduleToClose": replay.ScheduleToClose(1), "HeartbeatTimeout": replay.HeartbeatTimeout(1), "Tag": replay.Tag("x"),
		"CancelGrace": replay.CancelGrace(1), "Receives": replay.Receives(word),
		"Version": replay.Version(""), "Pinned": replay.Pinned(), "ChildID": replay.ChildID("x"),
		"OnParentClose": replay.OnParentClose(replay.CancelChild),
		"RequestID":     RequestID("r"), "Attach": Attach(), "ReuseWhenEnded": ReuseWhenEnded(), "ReuseWhenFailed": ReuseWhenFailed(),
		"TerminateExisting": TerminateExisting(), "Deadline": Deadline(time.Unix(1<<32, 0)),
		"StartAt": StartAt(time.Unix(1, 0)), "Tags": Tags(map[string]string{"k": "v"}), "Summary": replay.Summary("s"), "Stale": Stale(),
		"1": {}, // not made by a function
	}
	start := []string{"Version", "RequestID", "Attach", "ReuseWhenEnded", "ReuseWhenFailed", "TerminateExisting", "StartAt", "Deadline", "Retry", "Summary", "Tags"}
	input, read := []string{"RequestID"}, []string{"Stale"}
	for call, c := range map[string]struct {
		kind       string
		applicable []string
		make       func(id string, option replay.Option) error
	}{
		"StartRun": {"a start", start, func(id string, o replay.Option) error { return errOf(StartRun(ctx, client, doubled, id, 1, o)) }},
		"Call":     {"a start", start, func(id string, o replay.Option) error { return errOf(Call(ctx, client, doubled, id, 1, o)) }},
		"SendOrStart": {"a start", start, func(id string, o replay.Option) error {
			return errOf(SendOrStart(ctx, client, waiter, id, "", word, "", o))
		}},
		"UpdateOrStart": {"a start", start, func(id string, o replay.Option) error {
			_, _, err := UpdateOrStart(ctx, client, id, basket, basketInput{}, raiseUpdate, 1, o)
			var none *replay.NotRegisteredError
			if errors.As(err, &none) { // with StartAt, its code has not begun
				return nil
			}
			return err
		}},
		"Send":       {"an event", input, func(id string, o replay.Option) error { return Send(ctx, client, id, word, "", o) }},
		"CallUpdate": {"an update", input, func(id string, o replay.Option) error { return errOf(CallUpdate(ctx, client, id, raiseUpdate, 1, o)) }},
		"Get":        {"a read", read, func(id string, o replay.Option) error { return errOf(client.Get(ctx, id, o)) }},
		"History":    {"a read", read, func(id string, o replay.Option) error { return errOf(client.History(ctx, id, o)) }},
		"HistoryOf":  {"a read", read, func(id string, o replay.Option) error { return errOf(client.HistoryOf(ctx, id, 1, o)) }},
		"Export":     {"a read", read, func(id string, o replay.Option) error { return client.Export(ctx, id, 1, io.Discard, o) }},
		"Executions": {"a read", read, func(id string, o replay.Option) error { return errOf(client.Executions(ctx, id, o)) }},
		"List":       {"a read", read, func(_ string, o replay.Option) error { return errOf(client.List(ctx, Filter{}, "", 0, o)) }},
		"Count":      {"a read", read, func(_ string, o replay.Option) error { return errOf(client.Count(ctx, Filter{}, o)) }},
	} {
		for name, option := range options {
			id := fmt.Sprintf("%s-%s", call, name)
			err := c.make(id, option)
			if slices.Contains(c.applicable, name) {
				excluded := (call == "SendOrStart" || call == "UpdateOrStart") && name == "TerminateExisting"
				if err != nil && !errors.Is(err, ErrNotFound) && !(excluded && strings.Contains(err.Error(), "excludes Attach and SendOrStart")) {
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
			if _, err := client.Get(ctx, id); !errors.Is(err, ErrNotFound) {
				t.Errorf("%s with %s had an effect: %v", call, name, err)
			}
		}
	}
}

func TestStart_RejectsBindingWithOptionOfAnotherCall(t *testing.T) {
	definition := doubled.Bind(func(_ *replay.Context, n int) (int, error) { return n, nil }, Stale())
	_, err := Start(testContext(t), Config{InMemory: true, Definitions: []replay.Definition{definition}})
	if err == nil || !strings.Contains(err.Error(), `orchestration "doubled": option Stale does not apply to Bind`) {
		t.Errorf("started a node with an invalid binding: %v", err)
	}
}

// An option or argument with a value that is not valid is rejected with the same error by clients
// and in virtual time: its text has the call, then the option, and then the limit and the value.
func TestOptions_InvalidValueNamesCallOptionAndLimit(t *testing.T) {
	bound := append(definitions(), basket.Bind(basketBody))
	clients := localAndRemote(t, bound...)
	env, ctx := replaytest.New(t, bound...), testContext(t)
	text := func(n int) string { return strings.Repeat("x", n) }
	header := replay.Header("note").With(ctx, "\xff")
	type calls struct {
		start, sendOrStart, updateOrStart, send, update func(ctx context.Context, id string, o ...replay.Option) error
		cancel                                          func(id, reason string) error
	}
	all := map[string]calls{"virtual time": {
		start: func(_ context.Context, id string, o ...replay.Option) error {
			return errOf(replaytest.StartRun(env, doubled, id, 1, o...))
		},
		sendOrStart: func(_ context.Context, id string, o ...replay.Option) error {
			return errOf(replaytest.SendOrStart(env, waiter, id, "", word, "", o...))
		},
		updateOrStart: func(_ context.Context, id string, o ...replay.Option) error {
			_, _, err := replaytest.UpdateOrStart(env, id, basket, basketInput{}, raiseUpdate, 1, o...)
			return err
		},
		send: func(_ context.Context, id string, o ...replay.Option) error {
			return replaytest.Send(env, id, word, "", o...)
		},
		update: func(_ context.Context, id string, o ...replay.Option) error {
			return errOf(replaytest.CallUpdate(env, id, raiseUpdate, 1, o...))
		},
		cancel: env.Cancel,
	}}
	for where, client := range clients {
		all[where] = calls{
			start: func(ctx context.Context, id string, o ...replay.Option) error {
				return errOf(StartRun(ctx, client, doubled, id, 1, o...))
			},
			sendOrStart: func(ctx context.Context, id string, o ...replay.Option) error {
				return errOf(SendOrStart(ctx, client, waiter, id, "", word, "", o...))
			},
			updateOrStart: func(ctx context.Context, id string, o ...replay.Option) error {
				_, _, err := UpdateOrStart(ctx, client, id, basket, basketInput{}, raiseUpdate, 1, o...)
				return err
			},
			send: func(ctx context.Context, id string, o ...replay.Option) error {
				return Send(ctx, client, id, word, "", o...)
			},
			update: func(ctx context.Context, id string, o ...replay.Option) error {
				return errOf(CallUpdate(ctx, client, id, raiseUpdate, 1, o...))
			},
			cancel: func(id, reason string) error { return client.Cancel(ctx, id, reason) },
		}
	}
	for where, calls := range all {
		check := func(call, field, reason string, err error) {
			t.Helper()
			var invalid *replay.InvalidError
			if !errors.As(err, &invalid) || invalid.Field != field || invalid.Reason != reason || err.Error() != call+": "+invalid.Error() {
				t.Errorf("%s: %v; want %s: %s %s", where, err, call, field, reason)
			}
		}
		codes := make([]string, 101)
		for kind, start := range map[string]func(context.Context, string, ...replay.Option) error{"start": calls.start, "send or start": calls.sendOrStart, "update or start": calls.updateOrStart} {
			for _, c := range []struct {
				option        replay.Option
				field, reason string
			}{
				{replay.Version(text(129)), "option Version", "has 129 bytes: at most 128 are allowed"},
				{replay.Version("\xff"), "option Version", `"\xff" is not UTF-8`},
				{RequestID(text(257)), "option RequestID", "has 257 bytes: at most 256 are allowed"},
				{RequestID("\xff"), "option RequestID", `"\xff" is not UTF-8`},
				{Tags(manyTags(65)), "option Tags", "has 65 tags: at most 64 are allowed"},
				{Tags(map[string]string{"": "v"}), "option Tags", `has the key "" of 0 bytes: 1 to 128 are allowed`},
				{Tags(map[string]string{"\xff": "v"}), "option Tags", `has the key "\xff", which is not UTF-8`},
				{Tags(map[string]string{"k": text(1025)}), "option Tags", `has 1025 bytes under the key "k": at most 1024 are allowed`},
				{Tags(map[string]string{"k": "\xff"}), "option Tags", `has "\xff" under the key "k", which is not UTF-8`},
				{replay.Summary(text(201)), "option Summary", "has 201 bytes: at most 200 are allowed"},
				{replay.Summary("a\n"), "option Summary", `"a\n" has control characters`},
				{replay.Retry(replay.RetryPolicy{NonRetryableCodes: codes}), "option Retry", "has 101 codes: at most 100 are allowed"},
				{replay.Retry(replay.RetryPolicy{NonRetryableCodes: codes[:1]}), "option Retry", `has the code "" of 0 bytes: 1 to 128 are allowed`},
				{replay.Tag("x"), "option Tag", "does not apply to a start"},
			} {
				check("start i", c.field, c.reason, start(ctx, "i", c.option))
			}
			check("start no ID", "instance ID", `"no ID" is not 1 to 128 of A-Z a-z 0-9 . _ : @ / + -`, start(ctx, "no ID"))
			if kind != "start" {
				check("start i", "option TerminateExisting", "excludes Attach and SendOrStart", start(ctx, "i", TerminateExisting()))
			}
		}
		check("start i", "option TerminateExisting", "excludes Attach and SendOrStart", calls.start(ctx, "i", TerminateExisting(), Attach()))
		for name, call := range map[string]func(context.Context, string, ...replay.Option) error{`send "word" to `: calls.send, `update "raise" of `: calls.update} {
			check(name+"i", "option RequestID", "has 257 bytes: at most 256 are allowed", call(ctx, "i", RequestID(text(257))))
			check(name+"no ID", "instance ID", `"no ID" is not 1 to 128 of A-Z a-z 0-9 . _ : @ / + -`, call(ctx, "no ID"))
			if where == "virtual time" {
				check(name+"i", `header "note"`, "is not UTF-8", call(ctx, "i", replaytest.Headers(header)))
			} else {
				check(name+"i", `header "note"`, "is not UTF-8", call(header, "i"))
			}
		}
		check("cancel i", "reason", "has 4097 bytes: at most 4096 are allowed", calls.cancel("i", text(4097)))
		check("cancel no ID", "instance ID", `"no ID" is not 1 to 128 of A-Z a-z 0-9 . _ : @ / + -`, calls.cancel("no ID", ""))
	}
	for where, client := range clients {
		if _, err := client.Get(ctx, "i"); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: something was started: %v", where, err)
		}
	}
}
