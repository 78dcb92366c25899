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
	parcel   = replay.Event[int]("parcel")
	depot    = replay.Orchestration[int, []int]("depot")
	dispatch = replay.Orchestration[dispatchOrder, []string]("dispatch")
)

// A dispatchOrder says to which instances the parcels 0 to Parcels-1 are sent, in turn.
type dispatchOrder struct {
	Receivers []string
	Parcels   int
}

// messageDefinitions binds a depot, which waits for as many parcels as its input says, and an
// orchestration that sends parcels to depots and returns the outcomes.
func messageDefinitions() []replay.Definition {
	return []replay.Definition{
		depot.Bind(func(ctx *replay.Context, parcels int) (arrived []int, err error) {
			for range parcels {
				n, err := parcel.Wait(ctx)
				if err != nil {
					return nil, err
				}
				arrived = append(arrived, n)
			}
			return arrived, nil
		}),
		dispatch.Bind(func(ctx *replay.Context, order dispatchOrder) (outcomes []string, err error) {
			for n := range order.Parcels {
				err := parcel.SendTo(ctx, order.Receivers[n%len(order.Receivers)], n)
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
	order := dispatchOrder{Receivers: []string{idInPartition("nobody", 1), idInPartition("ended", 2)}}
	if _, err := Call(ctx, node.Client(), depot, order.Receivers[1], 0); err != nil {
		t.Fatal(err)
	}
	var depots []*Run[[]int]
	for partition := range testPartitions {
		run, err := StartRun(ctx, node.Client(), depot, idInPartition("depot", partition), 2)
		if err != nil {
			t.Fatal(err)
		}
		depots = append(depots, run)
		order.Receivers = append(order.Receivers, run.ID)
	}
	order.Parcels = 2 * len(order.Receivers)
	outcomes, err := Call(ctx, node.Client(), dispatch, idInPartition("dispatch", 0), order)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"not found", "ended", "sent", "sent", "sent", "sent"}
	if want = append(want, want...); !slices.Equal(outcomes, want) {
		t.Errorf("outcomes %q, want %q", outcomes, want)
	}
	for i, run := range depots {
		if arrived, err := run.Wait(ctx); err != nil || !slices.Equal(arrived, []int{2 + i, 2 + i + len(order.Receivers)}) {
			t.Errorf("depot %d got %v, %v", i, arrived, err)
		}
	}
}

// Every receiver records each message once, while the leaders of all partitions change again and
// again.
func TestSendTo_RecordedOnceDespiteFailovers(t *testing.T) {
	checkGoroutineLeaks(t)
	f := newTestClusterWith(t, 3, func(c *Config) { c.Definitions = messageDefinitions() })
	const each = 32 // to a depot and from a dispatcher
	ctx, client := testContext(t), f.anyNode().Client()
	var depots, dispatchers []string
	for i := range 4 {
		depots, dispatchers = append(depots, fmt.Sprint("depot-", i)), append(dispatchers, fmt.Sprint("dispatch-", i))
		if _, err := StartRun(ctx, client, depot, depots[i], each); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range dispatchers {
		if _, err := StartRun(ctx, client, dispatch, id, dispatchOrder{depots, each}); err != nil {
			t.Fatal(err)
		}
	}
	ended := func() bool {
		for _, id := range dispatchers {
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
	for _, id := range dispatchers {
		run, err := StartRun(ctx, client, dispatch, id, dispatchOrder{}, Attach())
		if err != nil {
			t.Fatal(err)
		}
		if outcomes, err := run.Wait(ctx); err != nil || len(outcomes) != each || slices.ContainsFunc(outcomes, func(o string) bool { return o != "sent" }) {
			t.Errorf("%s: %q, %v", id, outcomes, err)
		}
	}
	total := 0
	for _, id := range depots {
		total += countEvents(t, client, id, 0, hasEventType(history.ExternalEvent))
	}
	if total != each*len(dispatchers) {
		t.Errorf("%d parcels are recorded, want %d", total, each*len(dispatchers))
	}
}

// A message must not be rejected because it overtakes the start of its receiver in another
// partition.
func TestSendTo_ChildStartedInOtherPartition(t *testing.T) {
	checkGoroutineLeaks(t)
	parent := replay.Orchestration[string, []int]("parent")
	node := startSingleNode(t, append(messageDefinitions(), parent.Bind(func(ctx *replay.Context, child string) ([]int, error) {
		started := depot.Start(ctx, 1, replay.ChildID(child))
		if err := parcel.SendTo(ctx, child, 7); err != nil {
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
	checkGoroutineLeaks(t)
	old := replay.Orchestration[int, []int]("old-depot")
	all := append(messageDefinitions(), old.Bind(func(ctx *replay.Context, _ int) ([]int, error) {
		n, err := parcel.Wait(ctx)
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
		if _, err := StartRun(ctx, node.Client(), dispatch, fmt.Sprint("to-old-", i), dispatchOrder{[]string{fmt.Sprint("old-", i)}, 1}); err != nil {
			t.Fatal(err)
		}
	}
	healthy, err := StartRun(ctx, node.Client(), depot, "healthy", 1)
	if err != nil {
		t.Fatal(err)
	}
	if outcomes, err := Call(ctx, node.Client(), dispatch, "to-healthy", dispatchOrder{[]string{"healthy"}, 1}); err != nil || !slices.Equal(outcomes, []string{"sent"}) {
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
