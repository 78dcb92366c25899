package raftlog

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/raftlog/raftlogtest"
)

func mustOpen(t *testing.T) *testLogs {
	t.Helper()
	l, err := openLogs(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.mustClose(t) })
	return l
}

// keep returns what keeps the entries after some indexes.
func keep(after ...uint64) (kept []Retained) {
	for _, index := range after {
		kept = append(kept, Retained{index, time.Now().Add(time.Hour)})
	}
	return kept
}

// Raft's removal of old entries stops before those that are to be kept, unless they have more bytes
// than allowed or are gone.
func TestRetain_KeepsOldEntries(t *testing.T) {
	const last, removed = 100, 80
	for what, test := range map[string]struct {
		after     []uint64
		bytesMax  uint64
		wantFirst uint64
	}{
		"nothing is kept":           {nil, 1 << 30, removed + 1},
		"the entries after one":     {[]uint64{30}, 1 << 30, 31},
		"all":                       {[]uint64{0}, 1 << 30, 1},
		"the oldest of several":     {[]uint64{30, 50}, 1 << 30, 31},
		"the oldest that fits":      {[]uint64{30, 97}, 12_000, removed + 1},
		"none that fits":            {[]uint64{30, 50}, 100, removed + 1},
		"those that Raft keeps too": {[]uint64{90}, 1 << 30, removed + 1},
		"a later index":             {[]uint64{last + 50}, 1 << 30, removed + 1},
	} {
		t.Run(what, func(t *testing.T) {
			l := mustOpen(t)
			l.mustStore(t, 1, last)
			l.Retain(keep(test.after...), test.bytesMax)
			if err := l.DeleteRange(1, removed); err != nil {
				t.Fatal(err)
			}
			l.wantEntries(t, test.wantFirst, last)
			if err := l.DeleteRange(test.wantFirst, last); err != nil { // a snapshot replaces them
				t.Fatal(err)
			}
			if first, err := l.FirstIndex(); err != nil || first != 0 {
				t.Errorf("the log begins at %d after all of it was deleted, %v", first, err)
			}
			if err := l.StoreLogs(raftlogtest.Entries(last+1, last+10)); err != nil {
				t.Fatal(err)
			}
			if err := l.DeleteRange(last+1, last+5); err != nil {
				t.Fatal(err)
			}
			l.wantEntries(t, last+6, last+10)
		})
	}
}

// Entries that are kept no longer are deleted with the next removal.
func TestRetain_EndsWithAnotherIndex(t *testing.T) {
	l := mustOpen(t)
	l.mustStore(t, 1, 100)
	for _, step := range []struct{ after, wantFirst uint64 }{{10, 11}, {40, 41}, {20, 91}, {95, 91}} {
		l.Retain(keep(step.after), 1<<30)
		first, err := l.FirstIndex()
		if err == nil {
			err = l.DeleteRange(first, 90)
		}
		if err != nil {
			t.Fatal(err)
		}
		l.wantEntries(t, step.wantFirst, 100)
	}
}

// Entries are kept until a time. Nothing but the next removal is necessary after that.
func TestRetain_EndsWithTime(t *testing.T) {
	l := mustOpen(t)
	l.mustStore(t, 1, 100)
	l.Retain([]Retained{{10, time.Now()}, {40, time.Now().Add(time.Hour)}}, 1<<30)
	if err := l.DeleteRange(1, 90); err != nil {
		t.Fatal(err)
	}
	l.wantEntries(t, 41, 100)
}

// deletionsLog is a log store whose deletions are recorded.
type deletionsLog struct {
	raft.LogStore
	most uint64 // entries that were deleted at once
	full bool
}

func (d *deletionsLog) DeleteRange(first, last uint64) error {
	d.most = max(d.most, last-first+1)
	return d.LogStore.DeleteRange(first, last)
}

func (d *deletionsLog) StoreLogs(logs []*raft.Log) error {
	if d.full {
		return syscall.ENOSPC
	}
	return d.LogStore.StoreLogs(logs)
}

// When many entries are kept no longer, they are deleted in parts, between which entries can be
// appended, and those of several calls.
func TestDeleteRange_ManyEntriesInParts(t *testing.T) {
	const unneeded, last = (removalsMax + 3) * removeMax, (removalsMax + 4) * removeMax
	l := mustOpen(t)
	store := &deletionsLog{LogStore: raft.NewInmemStore()}
	l.store.LogStore = store
	if err := l.StoreLogs(raftlogtest.Entries(1, last)); err != nil {
		t.Fatal(err)
	}
	if err := l.DeleteRange(1, unneeded); err != nil {
		t.Fatal(err)
	}
	first, err := l.FirstIndex()
	if want := uint64(removalsMax*removeMax + 1); err != nil || first != want || store.most > removeMax {
		t.Errorf("the log begins at %d after the first call, with up to %d deletions at once, %v; want %d", first, store.most, err, want)
	}
	if err := l.DeleteRange(first, unneeded); err != nil {
		t.Fatal(err)
	}
	if first, err := l.FirstIndex(); err != nil || first != unneeded+1 || store.most > removeMax {
		t.Errorf("the log begins at %d, with up to %d deletions at once, %v", first, store.most, err)
	}
}

// On a full disk, what was kept is deleted at once: no snapshot comes while nothing is appended.
func TestRetain_EndsWithFullDisk(t *testing.T) {
	l := mustOpen(t)
	l.mustStore(t, 1, 100)
	l.Retain(keep(20), 1<<30)
	if err := l.DeleteRange(1, 90); err != nil {
		t.Fatal(err)
	}
	store := &deletionsLog{LogStore: l.store.LogStore, full: true}
	l.store.LogStore = store
	if err := l.StoreLogs(raftlogtest.Entries(101, 110)); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	l.wantEntries(t, 91, 100)
	store.full = false
	l.mustStore(t, 101, 110)
	l.wantEntries(t, 91, 110)
}
