package cluster

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
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
