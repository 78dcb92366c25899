package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// wrongNote has the name of note and another type.
var (
	wrongNote    = replay.Event[string]("note")
	declared     = replay.Orchestration[int, []int]("declared")
	misdirected  = replay.Orchestration[string, string]("misdirected")
	raiseByWords = replay.Update[string, int]("raise")
)

// refusalDefinitions binds collectors with and without a declaration, and an orchestration that
// sends data of a wrong type and returns the error.
func refusalDefinitions() []replay.Definition {
	body := func(ctx *replay.Context, notes int) (arrived []int, err error) {
		for range notes {
			n, err := note.Wait(ctx)
			if err != nil {
				return nil, err
			}
			arrived = append(arrived, n)
		}
		return arrived, nil
	}
	return []replay.Definition{
		collector.Bind(body),
		declared.Bind(func(ctx *replay.Context, notes int) ([]int, error) {
			if _, err := word.Wait(ctx); err != nil { // before the code subscribes to notes
				return nil, err
			}
			return body(ctx, notes)
		}, replay.Receives(note)),
		misdirected.Bind(func(ctx *replay.Context, receiver string) (string, error) {
			err := wrongNote.SendTo(ctx, receiver, payloadCanary)
			var refused *replay.PayloadError
			if !errors.As(err, &refused) {
				return "", fmt.Errorf("error: %w", err)
			}
			return fmt.Sprintf("%s %s %s", refused.Name, refused.Type, refused.Sent), nil
		}),
	}
}

// awaitNewestProtocol waits until a node's partitions may refuse events.
func awaitNewestProtocol(t *testing.T, node *Node) {
	t.Helper()
	eventually(t, "the cluster speaks the newest protocol", func() bool {
		return !slices.ContainsFunc(node.partitions, func(pa *partition) bool { return pa.journal.Protocol() < protocolVersion })
	})
}

// wantRefused checks that an error refuses a note because of its data.
func wantRefused(t *testing.T, what string, err error) {
	t.Helper()
	var refused *replay.PayloadError
	if !errors.As(err, &refused) {
		t.Fatalf("%s: %v; want a refusal", what, err)
	}
	got := fmt.Sprintf("%s %v %s %q", refused.Verb, refused.PayloadInfo, refused.Type, refused.Sent)
	if want := fmt.Sprintf(`decode data of event "note" int %q`, `"`+payloadCanary+`"`); got != want {
		t.Errorf("%s: %s; want %s", what, got, want)
	}
	if !strings.HasSuffix(err.Error(), `: decode data of event "note" as int: sent "`+payloadCanary+`": json: cannot unmarshal string into Go value of type int`) {
		t.Errorf("%s: %s", what, err)
	}
}

func TestRefusal_AtSenderInEveryPartition(t *testing.T) {
	checkGoroutineLeaks(t)
	var logs logRecorder
	node := startNode(t, Config{
		Dir: t.TempDir(), Partitions: testPartitions, Listen: loopbackAddress(t), Definitions: refusalDefinitions(),
		Logger: logs.loggerAt(slog.LevelDebug),
	})
	awaitNewestProtocol(t, node)
	ctx := testContext(t)
	for kind, client := range map[string]*Client{"node": node.Client(), "remote": dialNodes(t, DialConfig{}, node)} {
		for partition := range testPartitions {
			for _, handle := range []replay.OrchestrationHandle[int, []int]{collector, declared} {
				id := idInPartition(kind+"-"+handle.Name(), partition)
				run, err := StartRun(ctx, client, handle, id, 2)
				if err != nil {
					t.Fatal(err)
				}
				eventually(t, "it waits", func() bool { return len(historyEventTypes(t, node, id)) == 2 })
				wantRefused(t, id, Send(ctx, client, id, wrongNote, payloadCanary, RequestID("r1")))
				sendToItself := idInPartition("from", (partition+1)%testPartitions) + kind + handle.Name()
				if got, err := Call(ctx, client, misdirected, sendToItself, id); err != nil || got != fmt.Sprintf("note int %q", payloadCanary) {
					t.Errorf("%s: %s, %v", sendToItself, got, err)
				}
				sendOrStart := errOf(SendOrStart(ctx, client, handle, id, 2, wrongNote, payloadCanary))
				wantRefused(t, id, sendOrStart)
				for n := range 2 {
					if err := Send(ctx, client, id, note, n, RequestID(fmt.Sprint("r", 1+n))); err != nil {
						t.Error(err)
					}
				}
				if handle == declared {
					if err := Send(ctx, client, id, word, ""); err != nil {
						t.Error(err)
					}
				}
				if arrived, err := run.Wait(ctx); err != nil || !slices.Equal(arrived, []int{0, 1}) {
					t.Errorf("%s: %v, %v", id, arrived, err)
				}
			}
			id := idInPartition(kind+"-new", partition)
			wantRefused(t, id, errOf(SendOrStart(ctx, client, declared, id, 1, wrongNote, payloadCanary)))
			if _, err := client.Get(ctx, id); !errors.Is(err, ErrNotFound) {
				t.Errorf("%s was started: %v", id, err)
			}
		}
	}
	if strings.Contains(string(logs.all()), payloadCanary) {
		t.Errorf("the log shows the data:\n%s", logs.all())
	}
}

// A message that was recorded is answered as before, whatever the code declares meanwhile.
func TestRefusal_RecordedBeforeIsNotRefused(t *testing.T) {
	dir, ctx := t.TempDir(), testContext(t)
	undeclared := declared.Bind(func(ctx *replay.Context, _ int) ([]int, error) {
		_, err := word.Wait(ctx)
		return nil, err
	})
	node := startNode(t, Config{Dir: dir, Definitions: []replay.Definition{undeclared}})
	if _, err := StartRun(ctx, node.Client(), declared, "d", 0); err != nil {
		t.Fatal(err)
	}
	if err := Send(ctx, node.Client(), "d", wrongNote, payloadCanary, RequestID("r1")); err != nil {
		t.Fatal(err)
	}
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	node = startNode(t, Config{Dir: dir, Definitions: refusalDefinitions()})
	awaitNewestProtocol(t, node)
	for range 2 { // the instance is not in memory, then it is
		if err := Send(ctx, node.Client(), "d", wrongNote, payloadCanary, RequestID("r1")); err != nil {
			t.Error(err)
		}
		wantRefused(t, "a new one", Send(ctx, node.Client(), "d", wrongNote, payloadCanary, RequestID("r2")))
	}
	if n := countEvents(t, node.Client(), "d", 0, hasEventType(history.ExternalEvent)); n != 1 {
		t.Errorf("%d events are recorded", n)
	}
}

// A new leader refuses by what the code declares and, once it has loaded the instance, by what the
// code has subscribed to.
func TestRefusal_AfterFailover(t *testing.T) {
	checkGoroutineLeaks(t)
	f := newTestClusterWith(t, 3, func(c *Config) { c.Definitions = refusalDefinitions() })
	awaitNewestProtocol(t, f.anyNode())
	ctx, client := testContext(t), f.anyNode().Client()
	for _, handle := range []replay.OrchestrationHandle[int, []int]{collector, declared} {
		if _, err := StartRun(ctx, client, handle, handle.Name(), 3); err != nil {
			t.Fatal(err)
		}
	}
	for round := range 3 {
		for partition := range f.anyNode().partitions {
			f.makeLeader(partition, fmt.Sprint("n", 1+round%3))
		}
		for _, handle := range []replay.OrchestrationHandle[int, []int]{collector, declared} {
			wantRefused(t, handle.Name(), Send(ctx, client, handle.Name(), wrongNote, payloadCanary))
			if err := Send(ctx, client, handle.Name(), note, round); err != nil {
				t.Error(err)
			}
		}
	}
	if err := Send(ctx, client, declared.Name(), word, ""); err != nil {
		t.Error(err)
	}
	for _, handle := range []replay.OrchestrationHandle[int, []int]{collector, declared} {
		expectArrived(t, client, handle, []int{0, 1, 2})
	}
}

func expectArrived(t *testing.T, client *Client, handle replay.OrchestrationHandle[int, []int], want []int) {
	t.Helper()
	run, err := StartRun(testContext(t), client, handle, handle.Name(), 0, Attach())
	if err != nil {
		t.Fatal(err)
	}
	if arrived, err := run.Wait(testContext(t)); err != nil || !slices.Equal(arrived, want) {
		t.Errorf("%s: %v, %v; want %v", handle.Name(), arrived, err, want)
	}
}

// A member with an older build does not understand the failure, so nothing is refused until all
// have this one.
func TestRefusal_NotWithOlderProtocol(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Partitions: 1, Definitions: refusalDefinitions(), protocol: payloadRefusalTest - 1})
	ctx, client := testContext(t), node.Client()
	eventually(t, "it speaks that protocol", func() bool { return node.partitions[0].journal.Protocol() == payloadRefusalTest-1 })
	if _, err := SendOrStart(ctx, client, declared, "d", 1, wrongNote, payloadCanary); err != nil {
		t.Error(err)
	}
	if _, err := StartRun(ctx, client, collector, "c", 1); err != nil {
		t.Fatal(err)
	}
	if err := Send(ctx, client, "c", wrongNote, payloadCanary); err != nil {
		t.Error(err)
	}
	status, err := client.Wait(ctx, "c")
	var failed *replay.PayloadError
	if err != nil || !errors.As(status.Err, &failed) || failed.Sent != "" {
		t.Errorf("%+v, %v", status, err)
	}
}

// payloadRefusalTest is the first protocol with refusals.
const payloadRefusalTest = 4

// A stalled instance takes no messages. It still refuses what its code declares otherwise, from
// clients and from instances.
func TestRefusal_WhileStalled(t *testing.T) {
	dir, ctx := t.TempDir(), testContext(t)
	bind := func(first string) []replay.Definition {
		return append(refusalDefinitions()[2:], declared.Bind(func(ctx *replay.Context, _ int) ([]int, error) {
			if _, err := replay.Event[string](first).Wait(ctx); err != nil {
				return nil, err
			}
			n, err := note.Wait(ctx)
			return []int{n}, err
		}, replay.Receives(note)))
	}
	node := startNode(t, Config{Dir: dir, Definitions: bind("first")})
	if _, err := StartRun(ctx, node.Client(), declared, "d", 0); err != nil {
		t.Fatal(err)
	}
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	node = startNode(t, Config{Dir: dir, Definitions: bind("second")})
	awaitNewestProtocol(t, node)
	waiting, cancel := context.WithCancel(ctx)
	sent := make(chan error, 1)
	go func() { sent <- Send(waiting, node.Client(), "d", note, 1) }()
	eventually(t, "it has stalled", func() bool {
		status, err := node.Client().Get(ctx, "d")
		return err == nil && status.State == Stalled
	})
	wantRefused(t, "a client", Send(ctx, node.Client(), "d", wrongNote, payloadCanary))
	if got, err := Call(ctx, node.Client(), misdirected, "m", "d"); err != nil || got != fmt.Sprintf("note int %q", payloadCanary) {
		t.Errorf("an instance: %s, %v", got, err)
	}
	cancel()
	if err := <-sent; err == nil {
		t.Error("a note that fits was answered although the instance is stalled")
	}
}

// A suspended instance refuses like a running one.
func TestRefusal_WhileSuspended(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: refusalDefinitions()})
	awaitNewestProtocol(t, node)
	ctx, client := testContext(t), node.Client()
	for _, handle := range []replay.OrchestrationHandle[int, []int]{collector, declared} {
		if _, err := StartRun(ctx, client, handle, handle.Name(), 1); err != nil {
			t.Fatal(err)
		}
		if err := client.Suspend(ctx, handle.Name(), ""); err != nil {
			t.Fatal(err)
		}
		wantRefused(t, handle.Name(), Send(ctx, client, handle.Name(), wrongNote, payloadCanary))
	}
}

func TestRefusal_OfUpdateInput(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: []replay.Definition{collector.Bind(func(ctx *replay.Context, _ int) ([]int, error) {
		err := raiseUpdate.Handle(ctx, nil, func(_ *replay.Context, n int) (int, error) { return n, nil })
		if err == nil {
			_, err = note.Wait(ctx)
		}
		return nil, err
	})}})
	ctx, client := testContext(t), node.Client()
	if _, err := StartRun(ctx, client, collector, "c", 0); err != nil {
		t.Fatal(err)
	}
	_, err := CallUpdate(ctx, client, "c", raiseByWords, "ten")
	var rejected *RejectedError
	var refused *replay.PayloadError
	if !errors.As(err, &rejected) || !errors.As(rejected.Err, &refused) || refused.Name != "raise" || refused.Type != "int" || refused.Sent != `"ten"` {
		t.Errorf("%#v", err)
	}
	const text = `update "raise" of c: rejected: decode input of update "raise" as int: sent "ten": json: cannot unmarshal string into Go value of type int`
	if err.Error() != text {
		t.Errorf("%s; want %s", err, text)
	}
	if types := historyEventTypes(t, node, "c"); len(types) != 2 {
		t.Errorf("history %v", types)
	}
}

// With a codec, neither the answer nor the history of a sender has anything of the data.
func TestRefusal_WithCodec(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: refusalDefinitions(), PayloadConverter: replay.PayloadConverter{Codec: refusalCodec{}}})
	awaitNewestProtocol(t, node)
	ctx, client := testContext(t), node.Client()
	if _, err := StartRun(ctx, client, declared, "d", 1); err != nil {
		t.Fatal(err)
	}
	err := Send(ctx, client, "d", wrongNote, payloadCanary)
	var refused *replay.PayloadError
	if !errors.As(err, &refused) || refused.Type != "int" || refused.Sent != "" || strings.Contains(err.Error(), payloadCanary) {
		t.Errorf("%#v", err)
	}
	if got, err := Call(ctx, client, misdirected, "m", "d"); err != nil || got != "note int " {
		t.Errorf("%q, %v", got, err)
	}
}

// A refusalCodec marks data and leaves it as it is.
type refusalCodec struct{}

func (refusalCodec) Encode(data []byte) ([]byte, string, error)   { return data, "marked", nil }
func (refusalCodec) Decode(data []byte, _ string) ([]byte, error) { return data, nil }

// A failure without a valid error is an internal error, not a panic.
func TestFailure_InvalidPayloadError(t *testing.T) {
	for _, f := range []*clusterpb.Failure{
		{Code: wire.CodePayload, Message: "m", NotExecuted: true},
		{Code: wire.CodePayload, Message: "m", NotExecuted: true, Payload: toFailure(ErrEnded).Payload},
	} {
		var internal *InternalError
		if err := fromFailure(f); !errors.As(err, &internal) || internal.Message != "m" {
			t.Errorf("%v", err)
		}
	}
}
