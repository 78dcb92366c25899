package session

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A side that was paused takes the messages that have arrived meanwhile, and does not take its
// pause for a silence of its peer. A silent peer is noticed within Timeout and one interval.
func TestRun_OwnPauseIsNoSilence(t *testing.T) {
	for name, pings := range map[string]Pings{"node": NodePings, "worker": WorkerPings} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				in, out := make(chan *string), make(chan *string)
				go func() {
					for m := range out { // the peer takes everything
						_ = m
					}
				}()
				defer close(out)
				ended := make(chan error, 1)
				go func() {
					ended <- Run(t.Context(), pings, in, out, NewOutbox[string](), func(*string) {
						time.Sleep(20 * pings.Timeout) // as if the process were stopped
					})
				}()
				message := "message"
				for i := range 50 { // each time, a tick and a message are due at once
					select {
					case in <- &message:
					case err := <-ended:
						t.Fatalf("after pause %d: %v", i, err)
					}
				}
				began := time.Now()
				err := <-ended
				silence := time.Since(began) - 20*pings.Timeout
				if !errors.Is(err, ErrPeerUnreachable) || silence < pings.Timeout-pings.Interval || silence > pings.Timeout+pings.Interval {
					t.Errorf("a silent peer: %v after %v", err, silence)
				}
			})
		})
	}
}

// A worker whose context ends continues the session until its results and its drain message are
// sent.
func TestRun_ContextEndKeepsUnsentMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box := NewOutbox[string]()
		for _, result := range []string{"result 1", "result 2"} {
			box.Put(&result)
		}
		in, out := make(chan *string), make(chan *string)
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		if err := Run(canceled, NodePings, in, out, box, func(*string) {}); !errors.Is(err, context.Canceled) {
			t.Fatalf("the session ended with %v", err)
		}
		drain := "drain"
		box.Put(&drain)
		ended := make(chan error, 1)
		go func() { ended <- Run(t.Context(), NodePings, in, out, box, func(*string) {}) }()
		var sent []string
		for range 3 {
			sent = append(sent, *<-out)
		}
		if want := []string{"result 1", "result 2", "drain"}; !slices.Equal(sent, want) {
			t.Errorf("sent %q, want %q", sent, want)
		}
		close(in)
		<-ended
	})
}
