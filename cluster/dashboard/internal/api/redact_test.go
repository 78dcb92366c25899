package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/cluster/schedule"
	"github.com/tenuto-dev/tenuto/replay"
)

// canary is in all payloads.
const canary = "canary"

var (
	charge, beat      = replay.Activity[string, string]("charge"), replay.Activity[string, string]("beat")
	holder, ship      = replay.Orchestration[string, string]("holder"), replay.Orchestration[string, string]("ship")
	strict, forwards  = replay.Orchestration[string, string]("strict"), replay.Orchestration[string, string]("forwards")
	done, wrongAmount = replay.Event[string]("done"), replay.Event[string]("amount")
	amount            = replay.Event[int]("amount")
	step, rename      = replay.Query[string, string]("step"), replay.Update[string, string]("change")
	notes, tenant     = replay.KV[string]("notes"), replay.Attribute[string]("tenant")
	echoes            = func(_ context.Context, in string) (string, error) { return in, nil }
)

// hold has a payload of each kind, and waits.
func hold(ctx *replay.Context, in string) (string, error) {
	if in == canary+" first" {
		return "", holder.ContinueAsNew(ctx, canary)
	}
	err := errors.Join(
		step.Handle(ctx, func(string) (string, error) { return canary, nil }),
		rename.Handle(ctx, nil, func(_ *replay.Context, to string) (string, error) { return to, nil }),
		notes.Set(ctx, "a", canary), tenant.Set(ctx, canary), replay.SetStatus(ctx, canary),
	)
	if err != nil {
		return "", err
	}
	if _, err := replay.SideEffect(ctx, "draw", func() (string, error) { return canary, nil }); err != nil {
		return "", err
	}
	if _, err := ship.Call(ctx, canary); err != nil {
		return "", err
	}
	if _, err := charge.Call(ctx, canary); err != nil {
		return "", err
	}
	pending := beat.Start(ctx, canary)
	if _, err := word.Wait(ctx); err != nil {
		return "", err
	}
	if _, err := done.Wait(ctx); err != nil {
		return "", err
	}
	pending.Cancel(ctx)
	return canary, nil
}

func holderDefinitions() []replay.Definition {
	return []replay.Definition{
		charge.Bind(echoes), holder.Bind(hold), ship.Bind(func(_ *replay.Context, in string) (string, error) { return in, nil }),
		beat.Bind(func(ctx context.Context, in string) (string, error) {
			if err := replay.Heartbeat(ctx, in); err != nil {
				return "", err
			}
			return "", replay.ErrResultPending
		}),
		strict.Bind(func(ctx *replay.Context, in string) (string, error) { return in, ctx.Sleep(time.Hour) }, replay.Receives(amount)),
		forwards.Bind(func(ctx *replay.Context, in string) (string, error) {
			return "", wrongAmount.SendTo(ctx, "strict", in)
		}),
	}
}

// newRedacted returns an API that hides all payloads, with instances that have payloads of each
// kind, and the infos by which they are hidden.
func newRedacted(t *testing.T) (c *clustertest.Cluster, a *API, infos *sync.Map) {
	c = clustertest.New(t, 1, clustertest.Definitions(holderDefinitions()...))
	infos = new(sync.Map)
	a = New(Config{
		Client: c.Client(0), StreamsMax: 10, TopicsMax: 10, Principal: func(*http.Request) (string, error) { return "alice", nil },
		Redact: func(info replay.PayloadInfo) bool {
			infos.Store(info, true)
			return true
		},
	})
	for id, of := range map[string]replay.OrchestrationHandle[string, string]{"holder": holder, "strict": strict} {
		if _, err := cluster.StartRun(t.Context(), c.Client(0), of, id, canary+" first"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := cluster.Call(t.Context(), c.Client(0), forwards, "forwards", canary); err == nil || !strings.Contains(err.Error(), canary) {
		t.Fatalf("the refusal of an event: %v; want its data", err)
	}
	if err := schedule.Create(t.Context(), c.Client(0), "daily", schedule.Spec{Cron: []string{"@daily"}}, ship, canary); err != nil {
		t.Fatal(err)
	}
	c.Eventually("the activity has sent a heartbeat", func() bool {
		open, _ := c.Client(0).Pending(t.Context(), "holder")
		for _, o := range open {
			var details string
			if err := o.Heartbeat(&details); err == nil && details != "" {
				return true
			}
		}
		return false
	})
	return c, a, infos
}

// expectHidden makes a call whose answer must have no payload.
func expectHidden(t *testing.T, a *API, method, path, body string, status int) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	r.Header.Set("Tenuto-Request", "1")
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	if w.Code != status || strings.Contains(w.Body.String(), canary) {
		t.Errorf("%s %s: status %d: %s", method, path, w.Code, w.Body)
	}
}

// A hook that hides all payloads leaves nothing of them in any answer or stream, and is told what
// each of them is.
func TestRedact_LeavesNoPayload(t *testing.T) {
	c, a, infos := newRedacted(t)
	live := follow(t, a, "/events?topics=instance:holder&topics=list:")
	expectHidden(t, a, "POST", "/instances/holder/events/word", `{"data":"canary"}`, http.StatusOK)
	expectHidden(t, a, "POST", "/instances/holder/updates/change", `{"input":"canary"}`, http.StatusOK)
	expectHidden(t, a, "POST", "/bulk", `{"id":"job","action":"send","filter":"name=strict","arguments":{"event":"amount","data":"\"canary\""}}`, http.StatusOK)
	c.Eventually("the job has ended", func() bool {
		return fetch[jobView](t, a, "GET", "/jobs/job", "", http.StatusOK).Refused == 1
	})
	expectNoPayloads(t, a)
	expectHidden(t, a, "POST", "/instances/holder/events/done", `{"data":"canary"}`, http.StatusOK)
	if text := live("event: instance:holder-events"); strings.Contains(text, canary) {
		t.Errorf("the stream: %s", text)
	}
	expectNoPayloads(t, a)
	expectHidden(t, a, "GET", "/instances/holder/watch", "", http.StatusOK)
	for _, want := range []string{
		`input of activity "charge"`, `output of activity "charge"`, `details of activity "beat"`,
		`input of orchestration "holder"`, `output of orchestration "holder"`, `status of orchestration "holder"`,
		`input of orchestration "ship"`, `output of orchestration "ship"`, `data of event "word"`, `data of event "amount"`,
		`input of update "change"`, `result of update "change"`, `result of query "step"`, `value of side effect "draw"`,
		`value of key-value map "notes"`, `value of attribute "tenant"`,
	} {
		found := false
		infos.Range(func(info, _ any) bool {
			found = found || fmt.Sprint(info) == want
			return !found
		})
		if !found {
			t.Errorf("the hook was not asked for the %s", want)
		}
	}
	infos.Range(func(info, _ any) bool {
		if info.(replay.PayloadInfo).Name == "" {
			t.Errorf("the hook was asked for the %v", info)
		}
		return true
	})
}

// expectNoPayloads makes all calls that read.
func expectNoPayloads(t *testing.T, a *API) {
	t.Helper()
	made := 0
	for _, of := range a.readRoutes() {
		path := strings.TrimPrefix(of.pattern, "GET ")
		ids := []string{"holder", "strict", "forwards", "job", "daily"}
		switch {
		case of.stream != nil:
			continue
		case strings.HasPrefix(path, "/jobs/"):
			ids = []string{"job"}
		case strings.HasPrefix(path, "/schedules/"):
			ids = []string{"daily"}
		case strings.Contains(path, "/query/"), strings.Contains(path, "/kv/"):
			ids = []string{"holder"}
		case !strings.Contains(path, "{id}"):
			ids = ids[:1]
		}
		for _, id := range ids {
			for _, path := range pathsOf(t, a, strings.NewReplacer("{id}", id).Replace(path), id) {
				made++
				if !strings.Contains(path, "/stack") { // an ended instance has none
					expectHidden(t, a, "GET", path, "", http.StatusOK)
				}
			}
		}
	}
	if made < 50 {
		t.Errorf("%d calls", made)
	}
	expectHidden(t, a, "GET", "/count?by=attr:tenant", "", http.StatusForbidden)
}

// pathsOf returns the paths of a call with the parameters that show the most.
func pathsOf(t *testing.T, a *API, path, id string) (all []string) {
	switch {
	case strings.HasSuffix(path, "/query/{name}"):
		return []string{strings.Replace(path, "{name}", "step", 1)}
	case strings.HasSuffix(path, "/kv/{name}"):
		return []string{strings.Replace(path, "{name}", "notes", 1)}
	case path == "/filter/complete":
		return []string{path + "?text=attr.tenant%3D", path + "?text=attr.tenant%3Dc", path + "?text=error%3D"}
	case strings.HasSuffix(path, "/history"), strings.HasSuffix(path, "/payload"):
		for _, x := range fetch[instanceView](t, a, "GET", "/instances/"+id, "", http.StatusOK).Executions {
			execution := fmt.Sprint("?execution=", x.Execution)
			if strings.HasSuffix(path, "/history") {
				all = append(all, path+execution+"&payloads=true")
				continue
			}
			for event := range x.LastEventID {
				all = append(all, fmt.Sprint(path, execution, "&event=", event+1))
			}
		}
		return all
	}
	return []string{path}
}

// syncRecorder records what a stream has sent.
type syncRecorder struct {
	header http.Header
	mu     sync.Mutex
	text   bytes.Buffer
	wrote  chan struct{}
}

func (r *syncRecorder) Header() http.Header { return r.header }
func (r *syncRecorder) WriteHeader(int)     {}
func (r *syncRecorder) Flush()              {}

func (r *syncRecorder) Write(text []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case r.wrote <- struct{}{}:
	default:
	}
	return r.text.Write(text)
}

// follow opens a stream. until waits for a text in it, and returns what was sent.
func follow(t *testing.T, a *API, path string) (until func(text string) string) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	recorder := &syncRecorder{header: http.Header{}, wrote: make(chan struct{}, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.ServeHTTP(recorder, httptest.NewRequestWithContext(ctx, "GET", path, nil))
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return func(text string) string {
		for {
			recorder.mu.Lock()
			sent := recorder.text.String()
			recorder.mu.Unlock()
			if strings.Contains(sent, text) {
				return sent
			}
			select {
			case <-recorder.wrote:
			case <-ctx.Done():
				t.Fatalf("the stream lacks %s: %s", text, sent)
			}
		}
	}
}
