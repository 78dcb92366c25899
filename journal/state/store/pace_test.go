package store

import (
	"testing"
	"testing/synctest"
	"time"
)

func share(s float64) func() float64 { return func() float64 { return s } }

// rested returns for how long work rests that has so many parts.
func rested(parts int, each time.Duration, s float64, end chan struct{}) time.Duration {
	begin, pace := time.Now(), StartPace()
	for range parts {
		time.Sleep(each)
		pace.Rest(share(s), nil, end)
	}
	return time.Since(begin) - time.Duration(parts)*each
}

func TestWorkRestsInProportion(t *testing.T) {
	const parts = 100
	for name, c := range map[string]struct {
		each  time.Duration
		share float64
		want  time.Duration
	}{
		"with all the time there is": {PaceWork, 1, parts * PaceRest * PaceWork},
		"in small parts":             {PaceWork / 4, 1, parts / 4 * PaceRest * PaceWork},
		"in some haste":              {PaceWork, 0.5, parts * PaceRest * PaceWork / 2},
		"in haste":                   {PaceWork, 0, 0},
		"in large parts":             {time.Second, 1, parts * PaceRestMax},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if got := rested(parts, c.each, c.share, nil); got != c.want {
					t.Errorf("rested for %v, not %v", got, c.want)
				}
			})
		})
	}
}

func TestARestEndsWhenItMust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		close(end)
		if got := rested(10, PaceWork, 1, end); got != 0 {
			t.Errorf("rested for %v", got)
		}
	})
}
