package state

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tenuto-dev/tenuto/journal/state/index"
)

func TestFlush_PauseShrinksAsDirtyGrows(t *testing.T) {
	m := New()
	m.options = Options{FlushBytes: 100, FlushEntries: 10}
	for _, c := range []struct {
		bytes, entries int
		closing        bool
		want           float64
	}{
		{0, 0, false, 1},
		{50, 0, false, 0.5},
		{0, 5, false, 0.5},
		{75, 5, false, 0.25},
		{100, 0, false, 0},
		{200, 0, false, 0},
		{0, 0, true, 0},
	} {
		m.dirtyBytes, m.entries = c.bytes, c.entries
		if c.closing {
			m.DisablePacing()
		}
		if got := m.pauseShare(); got != c.want {
			t.Errorf("with %+v: %v", c, got)
		}
	}
}

// FlushShare changes when a flush begins and when Advance waits.
func TestFlush_StartsAtFlushShare(t *testing.T) {
	for _, c := range []struct {
		options        Options
		bytes, entries int // from which on a flush is due
	}{
		{Options{FlushBytes: 1000, FlushEntries: 100}, 1000, 100},
		{Options{FlushBytes: 1000, FlushEntries: 100, FlushShare: 1}, 1000, 100},
		{Options{FlushBytes: 1000, FlushEntries: 100, FlushShare: 0.75}, 750, 75},
		{Options{FlushBytes: 1, FlushEntries: 1, FlushShare: 0.5}, 1, 1},
		{Options{FlushShare: 0.5}, 32 << 20, 16 << 10},
	} {
		m := New()
		m.options = c.options.withDefaults()
		for _, moment := range []struct {
			bytes, entries int
			due            bool
		}{{c.bytes - 1, c.entries - 1, false}, {c.bytes, 0, true}, {0, c.entries, true}} {
			m.dirtyBytes, m.entries = moment.bytes, moment.entries
			if m.isFlushDue() != moment.due {
				t.Errorf("%+v, with %+v: %v", c.options, moment, m.isFlushDue())
			}
		}
	}
}

// A query has dirty instances flushed if there are many, so that the next ones need not examine
// them.
func TestFlush_BeginsWhenQueryMeetsManyDirtyInstances(t *testing.T) {
	const searchedMax = 1000
	o := roomyOptions(vfs.NewMem())
	o.machine.searchedMax = searchedMax
	m := openMachine(t, o)
	applyEpoch(t, m)
	for i := range searchedMax + 1 {
		if err := applyAppend(m, fmt.Sprintf("a%06d", i), segmentOf(1, 1, started("x"))); err != nil {
			t.Fatal(err)
		}
		if i < searchedMax-1 {
			continue
		}
		if _, err := m.Query(t.Context(), &index.Query{}, nil, 1); err != nil {
			t.Fatal(err)
		}
		m.flushes.Wait()
		if flushed := len(m.dirty) == 0; flushed != (i == searchedMax) {
			t.Errorf("after a query with %d dirty instances, flushed is %v", i+1, flushed)
		}
	}
}

// A flush pauses less while searches examine the instances that it writes.
func TestFlush_PauseShrinksForSearches(t *testing.T) {
	m := New()
	const searchedMax = 1000
	m.options = Options{searchedMax: searchedMax}.withDefaults()
	for _, c := range []struct {
		instances, dirty int
		searched         bool
		want             float64
	}{
		{4 * searchedMax, 4 * searchedMax, false, 1},
		{searchedMax, 0, true, 1},
		{searchedMax, searchedMax / 2, true, 0.5},
		{2 * searchedMax, 0, true, 0},
	} {
		m.current, m.dirty, m.searched = &flush{instances: make([]*instance, c.instances)}, make([]*instance, c.dirty), c.searched
		if got := m.pauseShare(); got != c.want {
			t.Errorf("with %+v: %v", c, got)
		}
	}
}
