package api

import (
	"context"
	"maps"
	"reflect"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/filter"
)

const (
	// A shared count is kept for countKept, or countKeptTimes as long as counting took if that is
	// longer.
	countKept      = 3 * time.Second
	countKeptTimes = 50
	// countTime bounds the time of a shared count, countPage the instances that it reads at a time.
	countTime = 500 * time.Millisecond
	countPage = 1000
	// countMax is the most that the parameter "max" may be, and the bound for a topic.
	countMax = 10_000
)

// sharedCounts are the counts of lists. Callers that ask for the same filter share one: it is
// counted once at a time, within bounds, and kept for a while. Its methods may be called
// concurrently.
type sharedCounts struct {
	client *cluster.Client
	now    func() time.Time

	mu  sync.Mutex
	all map[countKey]*sharedCount
}

type countKey struct {
	filter string
	most   int
}

type sharedCount struct {
	users int           // callers that have it, guarded by sharedCounts.mu
	lock  chan struct{} // holds a value while a caller uses the fields below
	last  *countAnswer
	until time.Time // when last is too old
}

func newSharedCounts(client *cluster.Client) *sharedCounts {
	return &sharedCounts{client: client, now: time.Now, all: make(map[countKey]*sharedCount)}
}

// get returns how many instances a filter selects: exactly if the index knows, else up to most. The
// first caller counts; the others wait for its answer.
func (c *sharedCounts) get(ctx context.Context, text string, most int) (*countAnswer, error) {
	f, err := filter.Parse(text, c.now())
	if err != nil {
		return nil, err
	}
	key := countKey{text, most}
	s := c.use(key)
	defer c.release(s)
	select {
	case s.lock <- struct{}{}:
		defer func() { <-s.lock }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	began := c.now()
	if began.Before(s.until) {
		return s.last, nil
	}
	answer, err := c.count(ctx, f, most)
	if err != nil {
		return nil, err
	}
	ended := c.now()
	s.last, s.until = answer, ended.Add(max(countKept, countKeptTimes*ended.Sub(began)))
	return answer, nil
}

// use returns the count with a key, and removes those that are too old. The caller must release it.
func (c *sharedCounts) use(key countKey) *sharedCount {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	maps.DeleteFunc(c.all, func(_ countKey, s *sharedCount) bool { return s.users == 0 && !now.Before(s.until) })
	s := c.all[key]
	if s == nil {
		s = &sharedCount{lock: make(chan struct{}, 1)}
		c.all[key] = s
	}
	s.users++
	return s
}

func (c *sharedCounts) release(s *sharedCount) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.users--
}

// count counts instances: by the numbers that the index keeps, if the filter has no condition but
// states, a name and a version; else one by one, up to most, for a bounded time.
func (c *sharedCounts) count(ctx context.Context, f cluster.Filter, most int) (*countAnswer, error) {
	if f.Order != "ended" && f.Order != "timer" { // the others leave out no instance
		f.Order = ""
	}
	f.Descending = false
	if others := (cluster.Filter{States: f.States, Name: f.Name, Version: f.Version}); reflect.DeepEqual(f, others) {
		n, err := c.client.Count(ctx, f, cluster.Stale())
		return &countAnswer{Count: n}, err
	}
	answer, after, ends := &countAnswer{}, "", c.now().Add(countTime)
	for {
		page, err := c.client.List(ctx, f, after, min(countPage, most-answer.Count), cluster.Stale())
		if err != nil {
			return nil, err
		}
		answer.Count += len(page.Instances)
		if after = page.Next; after == "" {
			return answer, nil
		}
		if answer.Count >= most || !c.now().Before(ends) {
			answer.AtLeast = true
			return answer, nil
		}
	}
}
