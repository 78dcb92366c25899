package backup_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/backup"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/replay"
)

// restoreUntil restores to a point, and returns a node with that.
func restoreUntil(t *testing.T, until backup.Point, streams ...*bytes.Buffer) (*cluster.Node, *backup.Info) {
	t.Helper()
	var readers []io.Reader
	for _, s := range streams {
		readers = append(readers, bytes.NewReader(s.Bytes()))
	}
	to := backup.Target{Dir: filepath.Join(t.TempDir(), "restored"), NodeID: "r1", Until: until}
	info, err := backup.Restore(t.Context(), to, readers...)
	if err != nil {
		t.Fatalf("restore to %+v: %v", until, err)
	}
	return startRestored(t, to.Dir, len(info.Partitions)), info
}

// countInstances returns how many of w0, w1 and so on exist, which must be the first ones.
func countInstances(t *testing.T, client *cluster.Client) (count int) {
	t.Helper()
	for {
		_, err := client.Get(t.Context(), fmt.Sprint("w", count))
		if errors.Is(err, cluster.ErrNotFound) {
			return count
		}
		if err != nil {
			t.Fatal(err)
		}
		count++
	}
}

// Two backups, between which instances begin one after the other, are restored to the time after
// each of them, and to several entries of the log.
func TestRestore_UntilAnyEntry(t *testing.T) {
	const instances = 12
	client := newCluster(t, 1, 1).Client(0)
	var started []time.Time // when each of them was acknowledged
	start := func(count int) {
		for range count {
			if _, err := cluster.StartRun(t.Context(), client, waiter, fmt.Sprint("w", len(started)), "order"); err != nil {
				t.Fatal(err)
			}
			started = append(started, time.Now())
		}
	}
	start(2)
	first, full := write(t, client, backup.Options{})
	start(instances/2 - 2)
	second, middle := write(t, client, backup.Options{Base: first, Points: true})
	start(instances / 2)
	third, last := write(t, client, backup.Options{Base: second, Points: true})
	if !second.HasPoints() || !third.HasPoints() || first.HasPoints() {
		t.Fatalf("points: %t, %t, %t", first.HasPoints(), second.HasPoints(), third.HasPoints())
	}
	for i, at := range started[2:] {
		if i%3 > 0 {
			continue
		}
		node, info := restoreUntil(t, backup.Point{Time: at}, full, middle, last)
		if got, want := countInstances(t, node.Client()), i+3; got != want || info.Time.After(at) {
			t.Errorf("%d instances at the time of %d, restored to %v instead of %v", got, want, info.Time, at)
		}
	}
	begin, end := first.Partitions[0].Index, third.Partitions[0].Index
	before := 0
	for index := begin; index <= end; index += max((end-begin)/5, 1) {
		node, info := restoreUntil(t, backup.Point{Index: index}, full, middle, last)
		count := countInstances(t, node.Client())
		if count < before || info.Partitions[0].Index > index {
			t.Errorf("%d instances at entry %d, %d before; restored to %+v", count, index, before, info.Partitions[0])
		}
		if before = count; index == begin && count != 2 {
			t.Errorf("%d instances at the end of the first backup", count)
		}
		if _, err := cluster.StartRun(t.Context(), node.Client(), waiter, "later", "order"); err != nil {
			t.Error(err)
		}
	}
	if node, _ := restoreUntil(t, backup.Point{}, full, middle, last); countInstances(t, node.Client()) != instances {
		t.Error("instances are missing at the end")
	}
	if node, _ := restoreUntil(t, backup.Point{Time: time.Now()}, full, middle, last); countInstances(t, node.Client()) != instances {
		t.Error("instances are missing at a later time")
	}
}

// A point that the backups do not have is refused, with what they have.
func TestRestore_UntilOtherPoints(t *testing.T) {
	client := newCluster(t, 1, 1).Client(0)
	change := func() {
		for range 5 {
			if _, err := cluster.Call(t.Context(), client, child, fmt.Sprint("c", time.Now().UnixNano()), 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	change()
	first, full := write(t, client, backup.Options{})
	change()
	second, otherFull := write(t, client, backup.Options{})
	begin, end := first.Partitions[0].Index, second.Partitions[0].Index
	for what, until := range map[string]backup.Point{
		"before the first": {Index: begin - 1}, "earlier": {Time: first.Time.Add(-time.Second)}, "no entries between": {Index: begin + 1},
		"after the last": {Index: end + 1}, "both": {Index: end, Time: time.Now()},
	} {
		to := backup.Target{Dir: filepath.Join(t.TempDir(), "restored"), NodeID: "r1", Until: until}
		_, err := backup.Restore(t.Context(), to, bytes.NewReader(full.Bytes()), bytes.NewReader(otherFull.Bytes()))
		if _, ok := errors.AsType[*replay.InvalidError](err); !ok {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, until := range []backup.Point{{Index: begin}, {Time: second.Time.Add(-time.Nanosecond)}} {
		if _, info := restoreUntil(t, until, full, otherFull); info.ID != first.ID {
			t.Errorf("%+v: restored to %v", until, info.Time)
		}
	}
	if _, info := restoreUntil(t, backup.Point{Index: end}, full, otherFull); info.ID != second.ID {
		t.Errorf("the end: restored to %v", info.Time)
	}
}

// The time of a backup is that of its last entry: it has nothing that was recorded later, although
// making the checkpoint takes a while. Entries that continue the backup before it have the same
// point at that time, and not before.
func TestRestore_UntilTimeOfBackup(t *testing.T) {
	for _, partitions := range []int{1, 4} {
		client := newCluster(t, 1, partitions).Client(0)
		first, full := write(t, client, backup.Options{})
		for i := range 20 {
			if _, err := cluster.StartRun(t.Context(), client, waiter, fmt.Sprint("w", i), "order"); err != nil {
				t.Fatal(err)
			}
		}
		second, _ := write(t, client, backup.Options{Base: first, Points: true})
		third, entries := write(t, client, backup.Options{Base: first, Points: true})
		if third.Base != first.ID || !third.HasPoints() {
			t.Fatalf("continues %q, points %t", third.Base, third.HasPoints())
		}
		if _, info := restoreUntil(t, backup.Point{Time: second.Time}, full, entries); info.Cut != second.Cut ||
			info.Partitions[0].Index != second.Partitions[0].Index || info.Time.After(second.Time) {
			t.Errorf("%d partitions: at %v: cut %d, entry %d, %v; want cut %d, entry %d", partitions, second.Time,
				info.Cut, info.Partitions[0].Index, info.Time, second.Cut, second.Partitions[0].Index)
		}
		if _, info := restoreUntil(t, backup.Point{Time: second.Time.Add(-1)}, full, entries); info.Cut >= second.Cut {
			t.Errorf("%d partitions: before %v: cut %d", partitions, second.Time, info.Cut)
		}
	}
}

// Instances in four partitions send each other messages and run children while points are recorded.
// Restored to any of these points, each of them ends with the right result: no message is lost and
// none has an effect twice.
func TestRestore_UntilCutOfPartitions(t *testing.T) {
	const partitions, each, rounds = 4, 8, 40
	c := newCluster(t, 3, partitions)
	client := c.Client(0)
	internals, err := client.Internal(access.Key{})
	if err != nil {
		t.Fatal(err)
	}
	base, full := write(t, client, backup.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	var pointing sync.WaitGroup
	pointing.Go(func() {
		every := time.NewTicker(20 * time.Millisecond)
		defer every.Stop()
		for ctx.Err() == nil {
			<-every.C
			if err := internals.Backups.RecordPoint(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	defer pointing.Wait()
	defer cancel()
	want := startMessages(t, client, each, rounds)
	begin, started := write(t, client, backup.Options{Base: base, Points: true}) // has all instances
	begun := time.Now()
	for id, result := range want {
		if got, err := resultOf[int](t.Context(), client, id); err != nil || got != result {
			t.Fatalf("%s: %d, %v; want %d", id, got, err, result)
		}
	}
	took := time.Since(begun)
	increment, entries := write(t, client, backup.Options{Base: begin, Points: true})
	if !increment.HasPoints() {
		t.Fatal("no points")
	}
	cuts := map[uint64]bool{}
	for i := range 5 {
		node, info := restoreUntil(t, backup.Point{Time: begun.Add(took * time.Duration(i) / 5)}, full, started, entries)
		cuts[info.Cut] = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for id, result := range want {
			if got, err := resultOf[int](ctx, node.Client(), id); err != nil || got != result {
				t.Errorf("cut %d: %s: %d, %v; want %d", info.Cut, id, got, err, result)
			}
		}
	}
	if len(cuts) < 3 {
		t.Errorf("the cuts %v", cuts)
	}
}
