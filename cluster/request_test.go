package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

func manyTags(n int) map[string]string {
	tags := make(map[string]string)
	for i := range n {
		tags[fmt.Sprint(i)] = strings.Repeat("v", 1024)
	}
	return tags
}

func TestLimits_ErrorNamesFieldAndLimit(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	ctx, client := testContext(t), node.Client()
	text := func(n int) string { return strings.Repeat("x", n) }
	start := func(name string, options ...replay.Option) error {
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
	send := func(name string, options ...replay.Option) error {
		return Send(ctx, client, "i", replay.Event[int](name), 1, options...)
	}
	for _, c := range []struct {
		err           error
		field, reason string
	}{
		{start(""), "name", "at least 1"},
		{start(text(129)), "name", "at most 128"},
		{start("a\xff"), "name", "UTF-8"},
		{start("doubled", replay.Version(text(129))), "option Version", "at most 128"},
		{start("doubled", RequestID(text(257))), "option RequestID", "at most 256"},
		{start("doubled", RequestID("\xff")), "option RequestID", "UTF-8"},
		{start("doubled", Tags(manyTags(65))), "option Tags", "at most 64"},
		{start("doubled", Tags(map[string]string{"": "x"})), "option Tags", "1 to 128"},
		{start("doubled", Tags(map[string]string{text(129): "x"})), "option Tags", "1 to 128"},
		{start("doubled", Tags(map[string]string{"k": text(1025)})), "option Tags", "at most 1024"},
		{start("doubled", Tags(map[string]string{"k": "\xff"})), "option Tags", "UTF-8"},
		{sendOrStart(text(129)), "event name", "at most 128"},
		{send(""), "event name", "at least 1"},
		{send(text(129)), "event name", "at most 128"},
		{send(engine.UpdatePrefix + "x"), "event name", "reserved for updates"},
		{send("x", RequestID(text(257))), "option RequestID", "at most 256"},
		{errOf(CallUpdate(ctx, client, "i", raiseUpdate, 1, RequestID(text(257)))), "option RequestID", "at most 256"},
		{query(text(129)), "query name", "at most 128"},
		{query(engine.UpdatePrefix + "x"), "query name", "reserved for updates"},
		{client.Cancel(ctx, "i", text(4097)), "reason", "at most 4096"},
		{errOf(client.List(ctx, Filter{IDPrefix: "\xff"}, "", 0)), "filter by ID prefix", "UTF-8"},
		{errOf(client.List(ctx, Filter{}, "\xff", 0)), "after", "UTF-8"},
		{errOf(client.Count(ctx, Filter{States: []State{"\xff"}})), "filter by state", "UTF-8"},
		{errOf(client.List(ctx, Filter{States: []State{"ended"}}, "", 0)), "filter by state", "canceled, terminated"},
		{errOf(client.List(ctx, Filter{States: []State{Running, ""}}, "", 0)), "filter by state", `is "", which is none of: running, `},
		{errOf(client.Count(ctx, Filter{States: []State{ContinuedAsNew}})), "filter by state", `is "continued as new", which`},
		{errOf(client.Purge(ctx, "ok", "\xff")), "instance ID", "is not 1 to 128"},
		{errOf(client.Executions(ctx, "")), "instance ID", "is not 1 to 128"},
	} {
		var wrong *replay.InvalidError
		if !errors.As(c.err, &wrong) || wrong.Field != c.field || !strings.Contains(wrong.Reason, c.reason) {
			t.Errorf("%v; want the field %q and %q", c.err, c.field, c.reason)
		}
	}
	if _, err := client.Get(ctx, "i"); !errors.Is(err, ErrNotFound) {
		t.Errorf("something was started: %v", err)
	}
	tags := manyTags(64)
	if _, err := Call(ctx, client, doubled, text(128), 1, RequestID(text(256)), Tags(tags)); err != nil {
		t.Errorf("values at the limit: %v", err)
	}
	if status, err := client.Get(ctx, text(128)); err != nil || !maps.Equal(status.Tags, tags) {
		t.Errorf("%d tags, %v", len(status.Tags), err)
	}
}

func TestLimits_RejectNegativeRetention(t *testing.T) {
	_, err := Start(testContext(t), Config{InMemory: true, Settings: Settings{Retention: Retention{Failed: -time.Second}}})
	var wrong *replay.InvalidError
	if !errors.As(err, &wrong) || wrong.Field != "Config.Settings.Retention.Failed" {
		t.Errorf("%v", err)
	}
}

func TestTags_OptionsAccumulate(t *testing.T) {
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

func TestStartAt_InstanceIsVisibleAndCancelable(t *testing.T) {
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

// awaitOpenOperation returns the first open operation of an instance.
func awaitOpenOperation(t *testing.T, client *Client, id string) *OpenOperation {
	t.Helper()
	var first *OpenOperation
	eventually(t, id+" waits for something", func() bool {
		open, err := client.Pending(testContext(t), id)
		if err != nil {
			t.Fatal(err)
		}
		if len(open) > 0 {
			first = open[0]
		}
		return first != nil
	})
	return first
}

// A time that does not fit into nanoseconds since 1970 is clamped.
func TestLimits_ClampFarTimes(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	ctx, client := testContext(t), node.Client()
	if _, err := Call(ctx, client, doubled, "d", 1); err != nil {
		t.Fatal(err)
	}
	past, future := time.Date(1200, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		filter Filter
		want   int
	}{
		"from long ago":          {Filter{CreatedFrom: past}, 1},
		"from far away":          {Filter{CreatedFrom: future}, 0},
		"before what is far":     {Filter{CreatedBefore: future}, 1},
		"before what was":        {Filter{CreatedBefore: past}, 0},
		"from then until then":   {Filter{CreatedFrom: past, CreatedBefore: future}, 1},
		"before 1970 had begun":  {Filter{CreatedBefore: time.Unix(0, 0)}, 0},
		"from 1970's begin on":   {Filter{CreatedFrom: time.Unix(0, 0)}, 1},
		"from the second before": {Filter{CreatedFrom: time.Now().Add(-time.Hour)}, 1},
	} {
		if n, err := client.Count(ctx, c.filter); err != nil || n != c.want {
			t.Errorf("%s: %d, %v; want %d", name, n, err, c.want)
		}
	}
	run, err := StartRun(ctx, client, doubled, "later", 1, StartAt(future))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Call(ctx, client, doubled, "at-once", 1, StartAt(past)); err != nil {
		t.Errorf("started long ago: %v", err)
	}
	if open := awaitOpenOperation(t, client, "later"); open.EventType != "TimerCreated" || open.FireAt.Year() < 2262 {
		t.Errorf("one that is to start later waits for %+v", open)
	}
	if err := client.Terminate(ctx, "later", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := run.Wait(ctx); !errors.Is(err, replay.ErrTerminated) {
		t.Error(err)
	}
}

func TestFailureCodes_KnownOnBothSides(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want func(error) bool
	}{
		"what was purged meanwhile": {fmt.Errorf("event 7: %w", state.ErrNotFound), func(err error) bool { return errors.Is(err, ErrNotFound) }},
		"a stalled instance":        {fmt.Errorf("%w: over this", ErrStalled), func(err error) bool { return errors.Is(err, ErrStalled) && strings.HasSuffix(err.Error(), "over this") }},
		"any other": {errors.New("damaged"), func(err error) bool {
			var internal *InternalError
			return errors.As(err, &internal) && internal.Message == "damaged"
		}},
	} {
		if err := fromFailure(toFailure(c.err)); !c.want(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A node rejects an unknown state in a filter, and its client gets the field and the reason.
func TestFilter_RejectsUnknownState(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	for _, count := range []bool{false, true} {
		request := &clusterpb.Request{Call: &clusterpb.Request_List{List: &clusterpb.ListRequest{Count: count, States: []string{"running", "ended"}}}}
		err := (&nodeService{node}).check(withLocalPrincipal(testContext(t)), request)
		var wrong *replay.InvalidError
		if !errors.As(err, &wrong) || wrong.Field != "filter by state" || !strings.Contains(wrong.Reason, `"ended"`) {
			t.Fatalf("%v; want an InvalidError of the filter by state", err)
		}
		var received *replay.InvalidError
		if err := fromFailure(toFailure(err)); !errors.As(err, &received) || *received != *wrong {
			t.Errorf("the client gets %v; want %v", err, wrong)
		}
	}
}

func TestRequestTable_EveryKindHasAnAnswer(t *testing.T) {
	for _, name := range requestKinds() {
		kind, known := requestTable[reflect.TypeOf(emptyRequest(name, "i").Call)]
		switch isRead := kind.read != nil || kind.local != nil; {
		case !known:
			t.Errorf("%s has no row", name)
		case name == "start_batch": // comes over its own stream
		case kind.serve == nil && !isRead:
			t.Errorf("nothing answers %s", name)
		case kind.serve != nil && isRead:
			t.Errorf("%s is both served and read", name)
		}
	}
}

// A client must not choose the instance ID that Authorize sees for a request about the cluster.
func TestRequestTable_ClusterRequestsNameNoInstance(t *testing.T) {
	service := &nodeService{startNode(t, Config{InMemory: true, Definitions: definitions()})}
	service.node.config.Authorize = func(_ context.Context, _ Principal, action Action, instance string) error {
		t.Errorf("asked about %q of %q", action, instance)
		return nil
	}
	ctx := peer.NewContext(testContext(t), &peer.Peer{AuthInfo: transport.AuthInfo{Peer: transport.Principal{Kind: transport.KindClient, Name: "app"}}})
	for name, requests := range requestsByKind() {
		kind := requestTable[reflect.TypeOf(emptyRequest(name, "").Call)]
		if kind.ofInstance || kind.actions == nil {
			continue
		}
		for _, request := range requests {
			request.Instance = "app/x"
			if err := service.check(ctx, request); !errors.As(err, new(*replay.InvalidError)) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// Settings are those of the first partition, whichever partition a raw client names.
func TestRequestTable_SettingsOfFirstPartitionOnly(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Partitions: 2, Definitions: definitions()})
	request := &clusterpb.Request{Protocol: protocolVersion, Partition: 2, Call: &clusterpb.Request_GetSettings{GetSettings: new(clusterpb.GetSettingsRequest)}}
	eventually(t, "the second partition has a leader", func() bool { return node.partitions[1].isLeader() })
	if failure := node.dispatcher.serve(testContext(t), request).GetFailure(); failure.GetCode() != "protocol" {
		t.Errorf("%v", failure)
	}
}
