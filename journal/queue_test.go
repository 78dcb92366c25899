package journal

import (
	"errors"
	"testing"
)

func TestQueue_HandsNothingToNextLeadership(t *testing.T) {
	q := newQueue(10, 1000)
	if err := q.put(proposal{}); !errors.Is(err, ErrNotLeader) {
		t.Errorf("before the first leadership: %v", err)
	}
	q.accept()
	for range 3 {
		if err := q.put(proposal{record: make([]byte, 10)}); err != nil {
			t.Fatal(err)
		}
	}
	q.reject(ErrNotLeader)
	q.accept()
	if err := q.put(proposal{record: make([]byte, 20)}); err != nil {
		t.Fatal(err)
	}
	batch, rejection, open := q.take(10, 1000)
	if len(batch) != 3 || !errors.Is(rejection, ErrNotLeader) || !open {
		t.Errorf("first %d, %v, %v", len(batch), rejection, open)
	}
	batch, rejection, open = q.take(10, 1000)
	if len(batch) != 1 || rejection != nil || !open {
		t.Errorf("then %d, %v, %v", len(batch), rejection, open)
	}
}

func TestQueue_FillsEntryUpToBounds(t *testing.T) {
	q := newQueue(10, 1000)
	q.accept()
	for _, size := range []int{300, 300, 100, 100, 100} {
		if err := q.put(proposal{record: make([]byte, size)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.put(proposal{record: make([]byte, 101)}); !errors.Is(err, ErrBusy) {
		t.Errorf("over the bound in bytes: %v", err)
	}
	for _, c := range []struct{ entriesMax, bytesMax, want int }{
		{10, 200, 1}, // one is taken even if it is too large
		{10, 400, 2},
		{1, 400, 1},
		{10, 400, 1},
	} {
		if batch, _, _ := q.take(c.entriesMax, c.bytesMax); len(batch) != c.want {
			t.Errorf("took %d, want %d", len(batch), c.want)
		}
	}
	q.end()
	if _, _, open := q.take(1, 1); open {
		t.Error("open after the end")
	}
	for range 10 {
		if err := q.put(proposal{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.put(proposal{}); !errors.Is(err, ErrBusy) {
		t.Errorf("over the bound in entries: %v", err)
	}
}

func TestQueue_StaysClosed(t *testing.T) {
	q := newQueue(10, 1000)
	q.reject(ErrClosed)
	q.reject(&NodeFailedError{Cause: errDisk})
	q.accept()
	if err := q.put(proposal{}); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func TestBarriers_ShareOneVerification(t *testing.T) {
	b := newBarriers()
	var waiting []chan error
	for range 5 {
		waiting = append(waiting, b.join())
	}
	<-b.arrivals
	select {
	case <-b.arrivals:
		t.Error("a second verification for the same callers")
	default:
	}
	b.resolve(ErrNotLeader)
	for _, ch := range waiting {
		if err := <-ch; !errors.Is(err, ErrNotLeader) {
			t.Error(err)
		}
	}
}
