package schedules

import (
	"errors"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// Whatever text is given, the answer is a *replay.InvalidError or due times in order, each of which
// follows from the one before.
func FuzzDueTimes(f *testing.F) {
	for _, expression := range []string{"30 2 * * *", "*/20 2,3 29 2 MON#1", "@daily", "0 0 L * *", "1-5/2 22-2 15W * FRI#L", "60 * * * *", ",", "H * * * *"} {
		for _, zone := range zones {
			f.Add(expression, zone, int64(1_790_000_000))
		}
	}
	f.Fuzz(func(t *testing.T, expression, zone string, at int64) {
		start := time.Unix(at%(1<<33), 0)
		due, err := Times(Spec{Cron: []string{expression}, TimeZone: zone}, start, 20)
		if err != nil && !errors.As(err, new(*replay.InvalidError)) {
			t.Fatalf("%q in %q: %v", expression, zone, err)
		}
		for _, next := range due {
			if !next.After(start) {
				t.Fatalf("%q in %q: %v follows %v", expression, zone, next, start)
			}
			start = next
		}
	})
}
