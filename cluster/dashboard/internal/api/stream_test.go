package api

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/replay"
)

// An open stream ends when its user is no longer known, and a client that connects again is told
// why.
func TestStreams_EndWhenUserIsNoLongerKnown(t *testing.T) {
	c := clustertest.New(t, 1, clustertest.Definitions(welcomeDefinitions()...))
	if _, err := cluster.StartRun(t.Context(), c.Client(0), welcome, "w", "x"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/events?topics=overview", "/instances/w/watch"} {
		var isKnown atomic.Bool
		isKnown.Store(true)
		asked := make(chan struct{}, 100)
		a := New(Config{Client: c.Client(0), StreamsMax: 10, TopicsMax: 10, Principal: func(*http.Request) (string, error) {
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

// A client that connects again gets the events after the last that it has got: none is lost or
// repeated.
func TestWatch_ContinuesAfterTheLastEvent(t *testing.T) {
	rounds := replay.Orchestration[int, int]("rounds")
	c := clustertest.New(t, 1, clustertest.Definitions(rounds.Bind(func(ctx *replay.Context, left int) (int, error) {
		if left > 0 {
			return 0, rounds.ContinueAsNew(ctx, left-1)
		}
		return replay.SideEffect(ctx, "one", func() (int, error) { return 1, nil })
	})))
	if _, err := cluster.Call(t.Context(), c.Client(0), rounds, "r", 2); err != nil {
		t.Fatal(err)
	}
	a := newAPI(c.Client(0))
	watch := func(last string) *httptest.ResponseRecorder {
		w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "GET", "/instances/r/watch", nil)
		r.Header.Set("Last-Event-ID", last)
		a.ServeHTTP(w, r)
		return w
	}
	all := strings.SplitAfter(watch("").Body.String(), "\n\n")
	if len(all) < 8 {
		t.Fatalf("%d events: %q", len(all), all)
	}
	for i, event := range all {
		if id, _, ok := strings.Cut(strings.TrimPrefix(event, "id: "), "\n"); ok && strings.HasPrefix(event, "id: ") {
			if got, want := watch(id).Body.String(), all[0]+strings.Join(all[i+1:], ""); got != want {
				t.Errorf("after %s: %q; want %q", id, got, want)
			}
		}
	}
	for _, last := range []string{"1", "1,", "1,2,3", "0,1", "1,0", "-1,1", "01,1", "[1,2]", "x"} {
		if w := watch(last); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), `"field":"Last-Event-ID"`) {
			t.Errorf("Last-Event-ID %q: status %d: %s", last, w.Code, w.Body)
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

// A topic becomes a part of the names of events: one that cannot be is refused, and so is an ID
// that no instance can have.
func TestEvents_RefusesTopics(t *testing.T) {
	a := newAPI(clustertest.New(t, 1, clustertest.Definitions(welcomeDefinitions()...)).Client(0))
	for _, topic := range []string{
		"", "cluster:x", "list:state=failed\n", "list:state=failed\rname=a", "list:\nstate=failed",
		"instance:", "instance:a\nb", "instance:a b", "instance:" + strings.Repeat("i", 129),
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		w := httptest.NewRecorder()
		a.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/events?topics="+url.QueryEscape(topic), nil))
		cancel()
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), `"code":"invalid"`) {
			t.Errorf("%.40q: status %d: %s", topic, w.Code, w.Body)
		}
	}
}

// Streams of a node that is closed say so, instead of standing still.
func TestEvents_SayThatTheNodeIsClosed(t *testing.T) {
	c := clustertest.New(t, 1, clustertest.Definitions(welcomeDefinitions()...))
	a := newAPI(c.Client(0))
	client := c.Client(0)
	if _, err := cluster.StartRun(t.Context(), client, welcome, "w", "x"); err != nil {
		t.Fatal(err)
	}
	until := map[string]func(string) string{}
	for _, topic := range []string{"overview", "list:name%3Dwelcome", "instance:w"} {
		until[topic] = follow(t, a, "/events?topics="+topic)
	}
	c.Kill(0)
	for topic, until := range until {
		if text := until("-error\n"); !strings.Contains(text, "unavailable") {
			t.Errorf("%s: %q", topic, text)
		}
	}
}

// A request for the headers of a stream does not hold one open.
func TestStreams_HeadHoldsNoneOpen(t *testing.T) {
	c := clustertest.New(t, 1, clustertest.Definitions(welcomeDefinitions()...))
	if _, err := cluster.StartRun(t.Context(), c.Client(0), welcome, "w", "x"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/events?topics=overview", "/instances/w/watch"} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		w := httptest.NewRecorder()
		newAPI(c.Client(0)).ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodHead, path, nil))
		if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "text/event-stream" || ctx.Err() != nil {
			t.Errorf("%s: status %d, %q, %v", path, w.Code, w.Header().Get("Content-Type"), ctx.Err())
		}
		cancel()
	}
}

// A handler around the API may pass a writer that cannot be flushed: a stream says so, instead of
// ending after its first event.
func TestStreams_WriterThatCannotBeFlushed(t *testing.T) {
	c := clustertest.New(t, 1, clustertest.Definitions(welcomeDefinitions()...))
	if _, err := cluster.StartRun(t.Context(), c.Client(0), welcome, "w", "x"); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	a := New(Config{Client: c.Client(0), StreamsMax: 10, TopicsMax: 10, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for _, path := range []string{"/events?topics=overview", "/instances/w/watch"} {
		w := httptest.NewRecorder()
		a.ServeHTTP(struct{ http.ResponseWriter }{w}, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		if w.Code != http.StatusInternalServerError || !strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") ||
			!strings.Contains(w.Body.String(), "Flush") || !strings.Contains(log.String(), "Flush") {
			t.Errorf("%s: status %d, %q: %s; log %s", path, w.Code, w.Header().Get("Content-Type"), w.Body, &log)
		}
		log.Reset()
	}
}
