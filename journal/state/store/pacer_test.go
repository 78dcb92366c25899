package store

import (
	"testing"
	"testing/synctest"
	"time"
)

func constantShare(s float64) func() float64 { return func() float64 { return s } }

// totalPause returns how long work with that many parts pauses.
func totalPause(parts int, each time.Duration, s float64, end chan struct{}) time.Duration {
	begin, pacer := time.Now(), StartPacer()
	for range parts {
		time.Sleep(each)
		pacer.Pause(constantShare(s), nil, end)
	}
	return time.Since(begin) - time.Duration(parts)*each
}

func TestPacer_PausesInProportion(t *testing.T) {
	const parts = 100
	for name, c := range map[string]struct {
		each  time.Duration
		share float64
		want  time.Duration
	}{
		"with all the time there is": {PacerWork, 1, parts * PacerPauseRatio * PacerWork},
		"in small parts":             {PacerWork / 4, 1, parts / 4 * PacerPauseRatio * PacerWork},
		"in some haste":              {PacerWork, 0.5, parts * PacerPauseRatio * PacerWork / 2},
		"in haste":                   {PacerWork, 0, 0},
		"in large parts":             {time.Second, 1, parts * PacerMaxPause},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if got := totalPause(parts, c.each, c.share, nil); got != c.want {
					t.Errorf("paused for %v, not %v", got, c.want)
				}
			})
		})
	}
}

func TestPacer_PauseEndsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		close(end)
		if got := totalPause(10, PacerWork, 1, end); got != 0 {
			t.Errorf("paused for %v", got)
		}
	})
}
