package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/replay"
)

// newSigned returns a cluster whose orchestration "asks" has a result that comes from outside, and
// what gets the tokens for it.
func newSigned(t *testing.T) (*clustertest.Cluster, <-chan string) {
	approval, asks := replay.Activity[string, string]("approval"), replay.Orchestration[string, string]("asks")
	tokens := make(chan string, 1)
	c := clustertest.New(t, 1, clustertest.Definitions(
		approval.Bind(func(ctx context.Context, _ string) (string, error) {
			token, err := replay.ActivityInfo(ctx).SignedToken(ctx, time.Hour)
			if err != nil {
				return "", err
			}
			tokens <- token
			return "", replay.ErrResultPending
		}),
		asks.Bind(func(ctx *replay.Context, in string) (string, error) {
			return approval.Call(ctx, in, replay.Retry(replay.RetryPolicy{MaxAttempts: 1}))
		})))
	for _, id := range []string{"a", "b"} {
		if _, err := cluster.StartRun(t.Context(), c.Client(0), asks, id, ""); err != nil {
			t.Fatal(err)
		}
	}
	return c, tokens
}

// post sends what a third party sends: no user, no header.
func post(t *testing.T, of *API, path, body string) (status int, code string) {
	t.Helper()
	w := httptest.NewRecorder()
	of.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body)))
	var answer errorAnswer
	if w.Code != http.StatusNoContent {
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
			t.Fatalf("%s: status %d: %s", path, w.Code, w.Body)
		}
	}
	return w.Code, answer.Error.Code
}

// A third party completes and fails activities by their signed tokens alone, also through a
// dashboard that changes nothing else, on a node and with a remote client.
func TestCompletion_BySignedTokenAlone(t *testing.T) {
	for _, remote := range []bool{false, true} {
		c, tokens := newSigned(t)
		client := c.Client(0)
		if remote {
			dialed, err := cluster.Dial(t.Context(), cluster.DialConfig{Addresses: c.Addresses()})
			if err != nil {
				t.Fatal(err)
			}
			defer dialed.Close()
			client = dialed
		}
		a := New(Config{Client: client, ReadOnly: true, Principal: func(*http.Request) (string, error) {
			t.Error("asked for a user")
			return "", nil
		}})
		first, second := <-tokens, <-tokens
		forged := first[:len(first)-2] + "xx"
		for _, step := range []struct {
			path, body string
			status     int
			code       string
		}{
			{"/complete/" + forged, `"yes"`, http.StatusNotFound, "not_found"},
			{"/complete/none", `"yes"`, http.StatusNotFound, "not_found"},
			{"/complete/" + first, `yes`, http.StatusBadRequest, "invalid"},
			{"/complete/" + first, `"` + strings.Repeat("x", 8<<20) + `"`, http.StatusRequestEntityTooLarge, "too_large"},
			{"/complete/" + first, `"yes"`, http.StatusNoContent, ""},
			{"/complete/" + first, `"yes"`, http.StatusNoContent, ""}, // again
			{"/complete/" + first, `"no"`, http.StatusConflict, "closed"},
			{"/fail/" + second, `{}`, http.StatusBadRequest, "invalid"},
			{"/fail/" + second, `{"code": "refused", "message": "no"}`, http.StatusNoContent, ""},
		} {
			if status, code := post(t, a, step.path, step.body); status != step.status || code != step.code {
				t.Errorf("%.20s %.20s: %d %s; want %d %s", step.path, step.body, status, code, step.status, step.code)
			}
		}
		for state, n := range map[cluster.State]int{cluster.Completed: 1, cluster.Failed: 1} {
			c.Eventually("one instance has "+string(state), func() bool {
				counts, err := c.Client(0).Count(t.Context(), cluster.Filter{States: []cluster.State{state}})
				return err == nil && counts == n
			})
		}
	}
}
