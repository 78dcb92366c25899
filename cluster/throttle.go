package cluster

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A throttle refuses starts where they are called, while the leader refuses them
// anyway: what it costs to bring a start there, and its refusal back, is then left for
// work that ends. For throttleMemory after a refusal no more starts are sent in a slice
// of time than the leader has taken in the one before, and a quarter more, and a few: so
// a leader that takes more again is found out soon. The zero value is ready.
type throttle struct {
	withheld atomic.Uint64 // starts that were refused here

	mu      sync.Mutex
	began   time.Time // the slice
	sent    int       // in it
	taken   int
	before  int           // taken in the slice before
	refused time.Time     // when the leader has last refused one
	again   time.Duration // when to try again, as it has said then
}

const (
	throttleSlice  = 100 * time.Millisecond
	throttleMemory = time.Second
	throttleSpare  = 4 // starts in each slice, whatever was taken
)

// guard has the starts among the requests pass the throttle before they are asked.
func (t *throttle) guard(ask asker) asker {
	return func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
		if request.GetStart() == nil {
			return ask(ctx, request)
		}
		if again, withheld := t.withholds(time.Now()); withheld {
			t.withheld.Add(1)
			return &clusterpb.Response{Failure: failure(&BusyError{
				RetryAfter: again, Bound: actors.BoundDelay, Reason: "the leader takes no more starts",
			})}
		}
		response := ask(ctx, request)
		t.learn(response.GetFailure())
		return response
	}
}

// withholds tells whether a start is to be refused, and when to try again.
func (t *throttle) withholds(now time.Time) (again time.Duration, withheld bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.began) >= throttleSlice {
		t.began, t.before, t.sent, t.taken = now, t.taken, 0, 0
	}
	if now.Sub(t.refused) < throttleMemory && t.sent >= t.before+t.before/4+throttleSpare {
		return t.again, true
	}
	t.sent++
	return 0, false
}

// learn takes notice of what has become of a start; nil: it was taken. A refusal for
// the sake of one instance says nothing of the others.
func (t *throttle) learn(failure *clusterpb.Failure) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case failure == nil:
		t.taken++
	case failure.Code == codeBusy && failure.Bound != string(actors.BoundInstance):
		t.refused, t.again = time.Now(), time.Duration(failure.RetryAfter)
	}
}
