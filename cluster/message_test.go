package cluster

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

var (
	note      = replay.Event[int]("note")
	collector = replay.Orchestration[int, []int]("collector")
	sendNotes = replay.Orchestration[sendOrder, []string]("sendNotes")
)

// A sendOrder says to which instances the notes 0 to Notes-1 are sent, in turn.
type sendOrder struct {
	Receivers []string
	Notes     int
}

// messageDefinitions binds a collector, which waits for as many notes as its input says, and an
// orchestration that sends notes to collectors and returns the outcomes.
func messageDefinitions() []replay.Definition {
	return []replay.Definition{
		collector.Bind(func(ctx *replay.Context, notes int) (arrived []int, err error) {
			for range notes {
				n, err := note.Wait(ctx)
				if err != nil {
					return nil, err
				}
				arrived = append(arrived, n)
			}
			return arrived, nil
		}),
		sendNotes.Bind(func(ctx *replay.Context, order sendOrder) (outcomes []string, err error) {
			for n := range order.Notes {
				err := note.SendTo(ctx, order.Receivers[n%len(order.Receivers)], n)
				switch {
				case errors.Is(err, replay.ErrNotFound):
					outcomes = append(outcomes, "not found")
				case errors.Is(err, replay.ErrEnded):
					outcomes = append(outcomes, "ended")
				case err != nil:
					return nil, err
				default:
					outcomes = append(outcomes, "sent")
				}
			}
			return outcomes, nil
		}),
	}
}

func TestSendTo_OtherPartitions(t *testing.T) {
	checkGoroutineLeaks(t)
	node := startSingleNode(t, messageDefinitions()...)
	ctx := testContext(t)
	order := sendOrder{Receivers: []string{idInPartition("missing", 1), idInPartition("ended", 2)}}
	if _, err := Call(ctx, node.Client(), collector, order.Receivers[1], 0); err != nil {
		t.Fatal(err)
	}
	var collectors []*Run[[]int]
	for partition := range testPartitions {
		run, err := StartRun(ctx, node.Client(), collector, idInPartition("collector", partition), 2)
		if err != nil {
			t.Fatal(err)
		}
		collectors = append(collectors, run)
		order.Receivers = append(order.Receivers, run.ID)
	}
	order.Notes = 2 * len(order.Receivers)
	outcomes, err := Call(ctx, node.Client(), sendNotes, idInPartition("sendNotes", 0), order)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"not found", "ended", "sent", "sent", "sent", "sent"}
	if want = append(want, want...); !slices.Equal(outcomes, want) {
		t.Errorf("outcomes %q, want %q", outcomes, want)
	}
	for i, run := range collectors {
		if arrived, err := run.Wait(ctx); err != nil || !slices.Equal(arrived, []int{2 + i, 2 + i + len(order.Receivers)}) {
			t.Errorf("collector %d got %v, %v", i, arrived, err)
		}
	}
}

// Every receiver records each message once, while the leaders of all partitions change again and
// again.
func TestSendTo_RecordedOnceDespiteFailovers(t *testing.T) {
	t.Parallel()
	f := newTestClusterWith(t, 3, func(c *Config) { c.Definitions = messageDefinitions() })
	const each = 32 // to a collector and from a sendNoteser
	ctx, client := testContext(t), f.anyNode().Client()
	var collectors, senders []string
	for i := range 4 {
		collectors, senders = append(collectors, fmt.Sprint("collector-", i)), append(senders, fmt.Sprint("sendNotes-", i))
		if _, err := StartRun(ctx, client, collector, collectors[i], each); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range senders {
		if _, err := StartRun(ctx, client, sendNotes, id, sendOrder{collectors, each}); err != nil {
			t.Fatal(err)
		}
	}
	ended := func() bool {
		for _, id := range senders {
			if status, err := client.Get(ctx, id); err != nil || status.State == Running {
				return false
			}
		}
		return true
	}
	for leader, start := 0, time.Now(); !ended() && time.Since(start) < testTimeout/2; leader++ {
		for partition := range f.anyNode().partitions {
			f.makeLeader(partition, fmt.Sprint("n", 1+leader%3))
		}
	}
	for _, id := range senders {
		run, err := StartRun(ctx, client, sendNotes, id, sendOrder{}, Attach())
		if err != nil {
			t.Fatal(err)
		}
		if outcomes, err := run.Wait(ctx); err != nil || len(outcomes) != each || slices.ContainsFunc(outcomes, func(o string) bool { return o != "sent" }) {
			t.Errorf("%s: %q, %v", id, outcomes, err)
		}
	}
	total := 0
	for _, id := range collectors {
		total += countEvents(t, client, id, 0, hasEventType(history.ExternalEvent))
	}
	if total != each*len(senders) {
		t.Errorf("%d notes are recorded, want %d", total, each*len(senders))
	}
}

// A message must not be rejected because it overtakes the start of its receiver in another
// partition.
func TestSendTo_ChildStartedInOtherPartition(t *testing.T) {
	checkGoroutineLeaks(t)
	parent := replay.Orchestration[string, []int]("parent")
	node := startSingleNode(t, append(messageDefinitions(), parent.Bind(func(ctx *replay.Context, child string) ([]int, error) {
		started := collector.Start(ctx, 1, replay.ChildID(child))
		if err := note.SendTo(ctx, child, 7); err != nil {
			return nil, err
		}
		return started.Await(ctx)
	}))...)
	ctx := testContext(t)
	for i := range 20 {
		child := idInPartition(fmt.Sprint("child-", i), 1+i%(testPartitions-1))
		if got, err := Call(ctx, node.Client(), parent, idInPartition(fmt.Sprint("parent-", i), 0), child); err != nil || !slices.Equal(got, []int{7}) {
			t.Errorf("child %d got %v, %v", i, got, err)
		}
	}
}

// Receivers that wait for code delay no other messages, and get theirs when the code is there.
func TestSendTo_ReceiversWaitForCode(t *testing.T) {
	t.Parallel()
	old := replay.Orchestration[int, []int]("old-collector")
	all := append(messageDefinitions(), old.Bind(func(ctx *replay.Context, _ int) ([]int, error) {
		n, err := note.Wait(ctx)
		return []int{n}, err
	}))
	ctx := testContext(t)
	node := startNode(t, Config{Dir: t.TempDir(), Definitions: all})
	const count = 200 // more than are sent at once
	for i := range count {
		if _, err := StartRun(ctx, node.Client(), old, fmt.Sprint("old-", i), 0); err != nil {
			t.Fatal(err)
		}
	}
	with := func(definitions []replay.Definition) {
		t.Helper()
		if err := node.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		node = startNode(t, Config{Dir: node.config.Dir, Partitions: node.config.Partitions, Definitions: definitions})
	}
	with(messageDefinitions())
	for i := range count {
		if _, err := StartRun(ctx, node.Client(), sendNotes, fmt.Sprint("to-old-", i), sendOrder{[]string{fmt.Sprint("old-", i)}, 1}); err != nil {
			t.Fatal(err)
		}
	}
	healthy, err := StartRun(ctx, node.Client(), collector, "healthy", 1)
	if err != nil {
		t.Fatal(err)
	}
	if outcomes, err := Call(ctx, node.Client(), sendNotes, "to-healthy", sendOrder{[]string{"healthy"}, 1}); err != nil || !slices.Equal(outcomes, []string{"sent"}) {
		t.Errorf("sent to a healthy instance: %q, %v", outcomes, err)
	}
	if got, err := healthy.Wait(ctx); err != nil || !slices.Equal(got, []int{0}) {
		t.Errorf("the healthy instance got %v, %v", got, err)
	}
	with(all)
	for i := range count {
		run, err := StartRun(ctx, node.Client(), old, fmt.Sprint("old-", i), 0, Attach())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := run.Wait(ctx); err != nil || !slices.Equal(got, []int{0}) {
			t.Errorf("instance %d got %v, %v", i, got, err)
		}
	}
}
