package state

import "testing"

func TestAFlushHasLessTimeTheMoreIsDirtyAgainAndNoneWhenItIsTheLast(t *testing.T) {
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
			m.Hasten()
		}
		if got := m.restShare(); got != c.want {
			t.Errorf("with %+v: %v", c, got)
		}
	}
}
