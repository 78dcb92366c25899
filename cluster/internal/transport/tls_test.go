package transport

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A source that hangs costs one wait. After it has answered, it is asked again.
func TestTLSSource_SourceHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release, calls := make(chan struct{}), 0
		failed := errors.New("refused")
		s := &TLSSource{closed: make(chan struct{}), source: func() (*Keys, error) { calls++; <-release; return nil, failed }}
		ask := func(want error, wait time.Duration, wantCalls int) {
			t.Helper()
			begun := time.Now()
			_, err := s.Current()
			synctest.Wait()
			if waited := time.Since(begun); !errors.Is(err, want) || waited != wait || calls != wantCalls {
				t.Errorf("%v after %v and %d calls of the source; want %v, %v, %d", err, waited, calls, want, wait, wantCalls)
			}
		}
		ask(errKeysOverdue, KeysTimeout, 1)
		ask(errKeysOverdue, 0, 1)
		close(release)
		synctest.Wait()
		ask(failed, 0, 2)
		release = make(chan struct{})
		closing := time.AfterFunc(time.Second, s.Close)
		defer closing.Stop()
		ask(errSourceClosed, time.Second, 3)
		s.Close()
		close(release)
	})
}
