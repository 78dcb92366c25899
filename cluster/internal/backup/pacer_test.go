package backup

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestPacer_PausesWhileNodeIsInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		applied := uint64(1)
		p := &pacer{applied: func() uint64 { return applied }}
		pause := func() time.Duration {
			began := time.Now()
			if err := p.pause(t.Context()); err != nil {
				t.Fatal(err)
			}
			return time.Since(began)
		}
		if took := pause(); took != pauseMax {
			t.Errorf("the first pause took %v", took)
		}
		for _, test := range []struct {
			entries     uint64
			after, want time.Duration
		}{
			{entries: 0, after: 2 * time.Millisecond, want: 0},
			{entries: 1, after: 2 * time.Millisecond, want: 2 * pauseFactor * time.Millisecond},
			{entries: 1000, after: 3 * time.Millisecond, want: 3 * pauseFactor * time.Millisecond},
			{entries: 1, after: time.Minute, want: pauseMax},
			{entries: 0, after: time.Minute, want: 0},
		} {
			time.Sleep(test.after)
			applied += test.entries
			if took := pause(); took != test.want {
				t.Errorf("%v after the latest pause, with %d new entries, it took %v, want %v", test.after, test.entries, took, test.want)
			}
		}
	})
}

func TestPacer_EndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pacer{applied: func() uint64 { return 1 }}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := p.pause(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}
