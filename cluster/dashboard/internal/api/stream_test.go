package api

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
)

// An open stream ends when its user is no longer known, and a client that connects again is told why.
func TestStreams_EndWhenUserIsNoLongerKnown(t *testing.T) {
	c := clustertest.New(t, 1, clustertest.Definitions(welcomeDefinitions()...))
	if _, err := cluster.StartRun(t.Context(), c.Client(0), welcome, "w", "x"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/events?topics=overview", "/instances/w/watch"} {
		var isKnown atomic.Bool
		isKnown.Store(true)
		asked := make(chan struct{}, 100)
		a := New(Config{Client: c.Client(0), StreamsMax: 10, Principal: func(*http.Request) (string, error) {
			asked <- struct{}{}
			if !isKnown.Load() {
				return "", errors.New("the session has ended")
			}
			return "alice", nil
		}})
		a.recheck = time.Millisecond
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ended := make(chan *httptest.ResponseRecorder)
		serve := func() {
			w := httptest.NewRecorder()
			a.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", path, nil))
			ended <- w
		}
		go serve()
		for range 3 { // at the start, and twice while it is open
			<-asked
		}
		isKnown.Store(false)
		if w := awaitStream(asked, ended); w.Code != http.StatusOK || ctx.Err() != nil {
			t.Errorf("%s: status %d, %v", path, w.Code, ctx.Err())
		}
		go serve()
		if w := awaitStream(asked, ended); w.Code != http.StatusUnauthorized {
			t.Errorf("%s, again: status %d", path, w.Code)
		}
	}
}

// awaitStream returns the answer of a stream that has ended.
func awaitStream(asked <-chan struct{}, ended <-chan *httptest.ResponseRecorder) *httptest.ResponseRecorder {
	for {
		select {
		case <-asked:
		case w := <-ended:
			return w
		}
	}
}
