package state

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tenuto-dev/tenuto/journal/state/pebblestore"
	"github.com/tenuto-dev/tenuto/journal/state/store"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// roomy is a store that holds what is written against the room that was asked for it.
type roomy struct {
	store.Store
	t *testing.T

	asked, filled atomic.Int64 // bytes, in all
}

func (r *roomy) Write(op string, room int, fill func(store.Batch) error) error {
	return r.Store.Write(op, room, func(b store.Batch) error {
		counted := &countedBatch{Batch: b}
		err := fill(counted)
		if counted.bytes > room {
			r.t.Errorf("a batch of %d bytes was given %d", counted.bytes, room)
		}
		r.asked.Add(int64(room))
		r.filled.Add(int64(counted.bytes))
		return err
	})
}

// countedBatch counts what a batch takes at most.
type countedBatch struct {
	store.Batch
	bytes int
}

func (b *countedBatch) Set(key, value []byte) error {
	b.bytes += store.RecordRoom + len(key) + len(value)
	return b.Batch.Set(key, value)
}

func (b *countedBatch) Delete(key []byte) error {
	b.bytes += store.RecordRoom + len(key)
	return b.Batch.Delete(key)
}

func (b *countedBatch) DeleteRange(from, to []byte) error {
	b.bytes += store.RecordRoom + len(from) + len(to)
	return b.Batch.DeleteRange(from, to)
}

// roomyMachine is one whose flushes are measured.
func roomyMachine(t *testing.T) (*Machine, *roomy) {
	t.Helper()
	o := tiny(vfs.NewMem())
	r := &roomy{Store: must(pebblestore.Open(o.Options)), t: t}
	m := must(Open(r, o.machine))
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m, r
}

func TestABatchHasRoomForAllThatIsWritten(t *testing.T) {
	for seed := range uint64(8) {
		s := newScript(t, seed, 60)
		m, r := roomyMachine(t)
		s.play(m, len(s.entries))
		if err := m.Flush(t.Context(), uint64(len(s.entries))); err != nil {
			t.Fatal(err)
		}
		if r.filled.Load() == 0 {
			t.Error("nothing was written")
		}
	}
}

func TestABatchHasRoomForALongHistory(t *testing.T) {
	m, measured := roomyMachine(t)
	applyEpoch(t, m)
	events := []*journalpb.Event{started("long")}
	for range 1000 {
		events = append(events, activity())
	}
	flushed(t, m, apply(m, "long", segmentOf(1, 1, events...)))
	if measured.filled.Load() == 0 {
		t.Error("nothing was written")
	}
}

// flushed ends an entry, that was applied with an error or none, and flushes it.
func flushed(t *testing.T, m *Machine, applied error) {
	t.Helper()
	if err := errors.Join(applied, m.Advance(1, 1), m.Flush(t.Context(), 1)); err != nil {
		t.Fatal(err)
	}
}

// With payloads as large as they mostly are, there is not much more room than is used.
func TestABatchHasNotMuchMoreRoomThanItTakes(t *testing.T) {
	m, measured := roomyMachine(t)
	applyEpoch(t, m)
	for i := range 200 {
		id := fmt.Sprintf("instance-%d", i)
		first := started(id)
		first.GetOrchestrationStarted().Input.Data = make([]byte, 300)
		if err := apply(m, id, segmentOf(1, 1, first, activity())); err != nil {
			t.Fatal(err)
		}
	}
	flushed(t, m, nil)
	if asked, filled := measured.asked.Load(), measured.filled.Load(); float64(asked) > 1.3*float64(filled) {
		t.Errorf("%d bytes of room for %d", asked, filled)
	}
}
