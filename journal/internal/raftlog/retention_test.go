package raftlog

import (
	"testing"

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
			l.Retain(test.after, test.bytesMax)
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
		l.Retain([]uint64{step.after}, 1<<30)
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
