package cluster

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

func manyTags(n int) map[string]string {
	tags := make(map[string]string)
	for i := range n {
		tags[fmt.Sprint(i)] = strings.Repeat("v", tagValueMax)
	}
	return tags
}

func TestWhatIsTooMuchIsRefusedByItsFieldAndLimit(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	ctx, client := testContext(t), node.Client()
	text := func(n int) string { return strings.Repeat("x", n) }
	start := func(name string, options ...StartOption) error {
		_, err := StartRun(ctx, client, replay.Orchestration[int, int](name), "i", 1, options...)
		return err
	}
	sendOrStart := func(event string) error {
		_, err := SendOrStart(ctx, client, doubled, "i", 1, replay.Event[int](event), 1)
		return err
	}
	query := func(name string) error {
		_, err := Query(ctx, client, "i", replay.Query[int, int](name), 1)
		return err
	}
	send := func(name string, options ...SendOption) error {
		return Send(ctx, client, "i", replay.Event[int](name), 1, options...)
	}
	for _, c := range []struct {
		err           error
		field, reason string
	}{
		{start(""), "name", "at least 1"},
		{start(text(129)), "name", "at most 128"},
		{start("a\xff"), "name", "UTF-8"},
		{start("doubled", StartVersion(text(129))), "version", "at most 128"},
		{start("doubled", RequestID(text(129))), "request ID", "at most 128"},
		{start("doubled", RequestID("\xff")), "request ID", "UTF-8"},
		{start("doubled", Tags(manyTags(65))), "tags", "at most 64"},
		{start("doubled", Tags(map[string]string{"": "x"})), "tag key", "at least 1"},
		{start("doubled", Tags(map[string]string{text(129): "x"})), "tag key", "at most 128"},
		{start("doubled", Tags(map[string]string{"k": text(1025)})), `tag "k"`, "at most 1024"},
		{start("doubled", Tags(map[string]string{"k": "\xff"})), `tag "k"`, "UTF-8"},
		{sendOrStart(text(129)), "event name", "at most 128"},
		{send(""), "event name", "at least 1"},
		{send(text(129)), "event name", "at most 128"},
		{send(replay.UpdatePrefix + "x"), "event name", "those of updates"},
		{send("x", EventID(text(129))), "request ID", "at most 128"},
		{query(text(129)), "query name", "at most 128"},
		{query(replay.UpdatePrefix + "x"), "query name", "those of updates"},
		{client.Cancel(ctx, "i", text(4097)), "reason", "at most 4096"},
		{second(client.List(ctx, Filter{IDPrefix: "\xff"}, "", 0)), "filter by ID prefix", "UTF-8"},
		{second(client.List(ctx, Filter{}, "\xff", 0)), "after", "UTF-8"},
		{second(client.Count(ctx, Filter{States: []State{"\xff"}})), "filter by state", "UTF-8"},
		{second(client.Purge(ctx, "ok", "\xff")), "instance ID", "is not 1 to 128"},
		{second(client.Executions(ctx, "")), "instance ID", "is not 1 to 128"},
	} {
		var wrong *InputError
		if !errors.As(c.err, &wrong) || wrong.Field != c.field || !strings.Contains(wrong.Reason, c.reason) {
			t.Errorf("%v; want the field %q and %q", c.err, c.field, c.reason)
		}
	}
	if _, err := client.Get(ctx, "i"); !errors.Is(err, ErrNotFound) {
		t.Errorf("something was started: %v", err)
	}
	tags := manyTags(64)
	if _, err := Call(ctx, client, doubled, text(128), 1, RequestID(text(128)), Tags(tags)); err != nil {
		t.Errorf("what is just allowed: %v", err)
	}
	if status, err := client.Get(ctx, text(128)); err != nil || !maps.Equal(status.Tags, tags) {
		t.Errorf("%d tags, %v", len(status.Tags), err)
	}
}

func TestANegativeRetentionIsRefused(t *testing.T) {
	_, err := Start(testContext(t), Config{InMemory: true, Retention: Retention{Failed: -time.Second}})
	var wrong *ConfigError
	if !errors.As(err, &wrong) || wrong.Field != "Retention" {
		t.Errorf("%v", err)
	}
}

func TestTagsOfSeveralOptionsAddUp(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	ctx, client := testContext(t), node.Client()
	mine := map[string]string{"a": "1"}
	if _, err := Call(ctx, client, doubled, "d", 1, Tags(mine), Tags(map[string]string{"b": "2"})); err != nil {
		t.Fatal(err)
	}
	if n, err := client.Count(ctx, Filter{Tags: map[string]string{"a": "1", "b": "2"}}); err != nil || n != 1 || len(mine) != 1 {
		t.Errorf("%d instances, %v; the caller's map: %v", n, err, mine)
	}
}

func TestOneThatIsToStartLaterIsThereAndCanBeCancelled(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	ctx, client := testContext(t), node.Client()
	later := StartAt(time.Now().Add(time.Hour))
	run, err := StartRun(ctx, client, waiter, "w", "", later, RequestID("r"))
	if err != nil {
		t.Fatal(err)
	}
	if status, err := client.Get(ctx, "w"); err != nil || status.State != Running {
		t.Errorf("%+v, %v", status, err)
	}
	if _, err := StartRun(ctx, client, waiter, "w", "", later, RequestID("r")); err != nil {
		t.Errorf("the same start again: %v", err)
	}
	if err := client.Cancel(ctx, "w", "not needed"); err != nil {
		t.Fatal(err)
	}
	if _, err := run.Wait(ctx); !errors.Is(err, replay.ErrCanceled) {
		t.Errorf("%v", err)
	}
}
