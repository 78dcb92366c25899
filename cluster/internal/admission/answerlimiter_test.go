package admission

import (
	"context"
	"errors"
	"testing"

	"github.com/tenuto-dev/tenuto/actors"
)

func TestAnswerLimiter_InFlightBytesAreBounded(t *testing.T) {
	bound := NewAnswerLimiter(2 * historyReserveBytes)
	var calls []*answerCall
	remote := func() context.Context {
		call := new(answerCall)
		calls = append(calls, call)
		return context.WithValue(t.Context(), answerCallKey{}, call)
	}
	for range 2 {
		if err := bound.Reserve(remote(), false); err != nil {
			t.Fatal(err)
		}
	}
	if err := bound.Reserve(context.Background(), false); err != nil {
		t.Errorf("a call from within the process: %v", err)
	}
	var busy *actors.BusyError
	if err := bound.Reserve(remote(), true); !errors.As(err, &busy) || busy.Bound != BoundAnswers {
		t.Errorf("one more: %v; want a BusyError with BoundAnswers", err)
	}
	ended, cancel := context.WithCancel(remote())
	cancel()
	if err := bound.Reserve(ended, true); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	calls[0].end()
	if err := bound.Reserve(remote(), true); err != nil {
		t.Errorf("after one was sent: %v", err)
	}
}
