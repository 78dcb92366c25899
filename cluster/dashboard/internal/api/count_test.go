package api

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
)

// countsLab returns the counts of a cluster with some instances, at a time that the test sets.
func countsLab(t *testing.T, instances int) (counts *sharedCounts, now *time.Time, start func(id string)) {
	c := clustertest.New(t, 1, clustertest.Definitions(welcomeDefinitions()...))
	start = func(id string) {
		t.Helper()
		if _, err := cluster.StartRun(t.Context(), c.Client(0), welcome, id, "x"); err != nil {
			t.Fatal(err)
		}
	}
	for i := range instances {
		start(fmt.Sprint("w", i))
	}
	at := time.Now()
	counts = newSharedCounts(c.Client(0))
	counts.now = func() time.Time { return at }
	return counts, &at, start
}

func (c *sharedCounts) expect(t *testing.T, filter string, most int, want countAnswer) {
	t.Helper()
	answer, err := c.get(t.Context(), filter, most)
	if err != nil || answer.Count != want.Count || answer.AtLeast != want.AtLeast {
		t.Errorf("%q: %+v, %v; want %+v", filter, answer, err, want)
	}
}

// The index has the numbers by state, name and version. What else a filter selects is counted up to
// the bound.
func TestSharedCounts_AreBounded(t *testing.T) {
	counts, _, _ := countsLab(t, 5)
	counts.expect(t, "name=welcome", 3, countAnswer{Count: 5})
	counts.expect(t, "id=w*", 3, countAnswer{Count: 3, AtLeast: true})
	counts.expect(t, "id=w*", 10, countAnswer{Count: 5})
	if _, err := counts.get(t.Context(), "no filter", 3); err == nil {
		t.Error("a filter that is not valid was counted")
	}
}

// A count is kept for a while, and forgotten when it is too old.
func TestSharedCounts_AreKept(t *testing.T) {
	counts, now, start := countsLab(t, 2)
	counts.expect(t, "id=w*", 10, countAnswer{Count: 2})
	start("w-late")
	counts.expect(t, "id=w*", 10, countAnswer{Count: 2})
	*now = now.Add(countKept)
	counts.expect(t, "id=w*", 10, countAnswer{Count: 3})
	*now = now.Add(countKept)
	counts.expect(t, "name=welcome", 10, countAnswer{Count: 3})
	if len(counts.all) != 1 {
		t.Errorf("%d counts are kept; want that of the last filter", len(counts.all))
	}
}

// While one caller counts, the others wait for its answer; if it leaves, one of them counts.
func TestSharedCounts_OneCallerCounts(t *testing.T) {
	counts, _, _ := countsLab(t, 2)
	s := counts.use(countKey{"id=w*", 10})
	s.lock <- struct{}{} // another caller counts
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := counts.get(ctx, "id=w*", 10); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that waits for another: %v", err)
	}
	s.last, s.until = &countAnswer{Count: 7}, counts.now().Add(time.Second)
	<-s.lock
	counts.expect(t, "id=w*", 10, countAnswer{Count: 7})
	s.until = time.Time{}
	counts.expect(t, "id=w*", 10, countAnswer{Count: 2})
}
