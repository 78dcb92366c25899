package state

import "testing"

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
