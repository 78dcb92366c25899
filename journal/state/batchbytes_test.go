package state

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tenuto-dev/tenuto/internal/shorttest"
	"github.com/tenuto-dev/tenuto/journal/state/pebblestore"
	"github.com/tenuto-dev/tenuto/journal/state/store"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// sizeCheckingStore compares the size hint of each batch with what the batch takes.
type sizeCheckingStore struct {
	store.Store
	t *testing.T

	reserved, written atomic.Int64 // bytes, in total
}

func (s *sizeCheckingStore) Write(op string, reserved int, fill func(store.Batch) error) error {
	return s.Store.Write(op, reserved, func(b store.Batch) error {
		counted := &countingBatch{Batch: b}
		err := fill(counted)
		if counted.bytes > reserved {
			s.t.Errorf("a batch of %d bytes got a size hint of %d", counted.bytes, reserved)
		}
		s.reserved.Add(int64(reserved))
		s.written.Add(int64(counted.bytes))
		return err
	})
}

// countingBatch counts at most how many bytes a batch takes.
type countingBatch struct {
	store.Batch
	bytes int
}

func (b *countingBatch) Set(key, value []byte) error {
	b.bytes += store.RecordOverhead + len(key) + len(value)
	return b.Batch.Set(key, value)
}

func (b *countingBatch) Delete(key []byte) error {
	b.bytes += store.RecordOverhead + len(key)
	return b.Batch.Delete(key)
}

func (b *countingBatch) DeleteRange(from, to []byte) error {
	b.bytes += store.RecordOverhead + len(from) + len(to)
	return b.Batch.DeleteRange(from, to)
}

// newSizeCheckedMachine returns a machine whose flushes are checked.
func newSizeCheckedMachine(t *testing.T) (*Machine, *sizeCheckingStore) {
	t.Helper()
	return openSizeChecked(t, tinyOptions(vfs.NewMem()))
}

func openSizeChecked(t *testing.T, o machineOptions) (*Machine, *sizeCheckingStore) {
	t.Helper()
	r := &sizeCheckingStore{Store: must(pebblestore.Open(o.Options)), t: t}
	m := must(Open(r, o.machine))
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m, r
}

func TestBatchBytes_CoversRandomLogs(t *testing.T) {
	for seed := range uint64(shorttest.SequentialRounds(8)) {
		s := newRandomLog(t, seed, 60)
		m, r := newSizeCheckedMachine(t)
		s.play(m, len(s.entries))
		if err := m.Flush(t.Context(), uint64(len(s.entries))); err != nil {
			t.Fatal(err)
		}
		if r.written.Load() == 0 {
			t.Error("nothing was written")
		}
	}
}

func TestBatchBytes_CoversLongHistory(t *testing.T) {
	m, checker := newSizeCheckedMachine(t)
	applyEpoch(t, m)
	events := []*journalpb.Event{started("long")}
	for range 1000 {
		events = append(events, activity())
	}
	mustFlush(t, m, applyAppend(m, "long", segmentOf(1, 1, events...)))
	if checker.written.Load() == 0 {
		t.Error("nothing was written")
	}
}

// mustFlush ends an entry, whether or not it was applied without an error, and flushes it.
func mustFlush(t *testing.T, m *Machine, applied error) {
	t.Helper()
	if err := errors.Join(applied, m.Advance(1, 1), m.Flush(t.Context(), 1)); err != nil {
		t.Fatal(err)
	}
}

// With payloads of typical size, the hint is not much larger than what is used.
func TestBatchBytes_IsNotMuchTooLarge(t *testing.T) {
	m, checker := newSizeCheckedMachine(t)
	applyEpoch(t, m)
	for i := range 50 {
		id := fmt.Sprintf("instance-%d", i)
		first := started(id)
		first.GetOrchestrationStarted().Input.Data = make([]byte, 300)
		if err := applyAppend(m, id, segmentOf(1, 1, first, activity())); err != nil {
			t.Fatal(err)
		}
	}
	mustFlush(t, m, nil)
	if reserved, written := checker.reserved.Load(), checker.written.Load(); float64(reserved) > 1.3*float64(written) {
		t.Errorf("size hints of %d bytes for %d bytes", reserved, written)
	}
}
