package dashboard_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/cluster/dashboard"
	"github.com/tenuto-dev/tenuto/cluster/schedule"
	"github.com/tenuto-dev/tenuto/replay"
)

const prefix = "/ops/tenuto"

var (
	charge = replay.Activity[string, string]("charge")
	paid   = replay.Event[string]("paid")
	step   = replay.Query[string, string]("step")
	rename = replay.Update[string, string]("rename")
	notes  = replay.KV[string]("notes")
	ship   = replay.Orchestration[string, string]("ship")
	order  = replay.Orchestration[string, string]("order")
)

// orderBody calls what its input says, and then waits for an event.
func orderBody(ctx *replay.Context, kind string) (string, error) {
	name := kind
	if err := errors.Join(
		step.Handle(ctx, func(string) (string, error) { return "step of " + name, nil }),
		rename.Handle(ctx, nil, func(_ *replay.Context, to string) (string, error) {
			old := name
			name = to
			return old, nil
		}),
		notes.Set(ctx, "a", "<script>"), replay.SetStatus(ctx, map[string]string{"html": "<script>alert(1)</script>"}),
	); err != nil {
		return "", err
	}
	if kind == "failing" {
		if _, err := charge.Call(ctx, kind, replay.Retry(replay.RetryPolicy{InitialInterval: time.Hour, MaxInterval: time.Hour})); err != nil {
			return "", err
		}
	}
	if kind == "timer" {
		if err := ctx.Sleep(time.Hour); err != nil {
			return "", err
		}
	}
	if _, err := ship.Call(ctx, kind); err != nil {
		return "", err
	}
	return paid.Wait(ctx)
}

// lab is a dashboard of a node.
type lab struct {
	*clustertest.Cluster
	t      *testing.T
	client *cluster.Client
	server *httptest.Server
}

func newLab(t *testing.T, nodes int, options dashboard.Options) *lab {
	c := clustertest.New(t, nodes, clustertest.Definitions(
		order.Bind(orderBody), ship.Bind(func(*replay.Context, string) (string, error) { return "shipped", nil }),
		charge.Bind(func(_ context.Context, kind string) (string, error) {
			return "", replay.WithCode("bank", errors.New("the bank is down"))
		}),
	))
	mux := http.NewServeMux()
	mux.Handle(prefix+"/", http.StripPrefix(prefix, dashboard.Handler(c.Client(0), options)))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return &lab{c, t, c.Client(0), server}
}

func asAda(*http.Request) (string, error) { return "ada", nil }

// do sends a request to the API and returns the status and the body.
func (l *lab) do(method, path, body string, header ...string) (int, string) {
	l.t.Helper()
	return request(l.t, l.server, method, prefix+"/api/"+path, body, header...)
}

// request sends a request of the user, and returns the status and the body of its answer. It checks
// the headers that every answer has.
func request(t *testing.T, server *httptest.Server, method, path, body string, header ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Tenuto-Request", "1")
	for i := 0; i < len(header); i += 2 {
		if r.Header.Set(header[i], header[i+1]); header[i] == "Host" {
			r.Host = header[i+1]
		}
	}
	answer, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if answer.Header.Get("X-Content-Type-Options") != "nosniff" || !strings.Contains(answer.Header.Get("Content-Security-Policy"), "script-src 'self';") {
		t.Errorf("%s: headers %v", path, answer.Header)
	}
	return answer.StatusCode, string(text)
}

// get returns the answer of a read, which must succeed.
func (l *lab) get(path string) (answer map[string]any) {
	l.t.Helper()
	status, text := l.do(http.MethodGet, path, "")
	if err := json.Unmarshal([]byte(text), &answer); err != nil || status != http.StatusOK {
		l.t.Fatalf("GET %s: %d %s %v", path, status, text, err)
	}
	return answer
}

// post makes a change, which must succeed.
func (l *lab) post(path, body string) string {
	l.t.Helper()
	status, text := l.do(http.MethodPost, path, body)
	if status != http.StatusOK {
		l.t.Fatalf("POST %s: %d %s", path, status, text)
	}
	return text
}

// start starts an order and waits until it has scheduled what its kind says, and the node of the
// dashboard has it.
func (l *lab) start(id, kind string) {
	l.t.Helper()
	l.post("instances", fmt.Sprintf(`{"name":"order","id":%q,"input":%q,"tags":{"shop":"north"},"summary":"an order","reason":"by phone"}`, id, kind))
	l.Eventually("it waits", func() bool {
		open, err := l.client.Pending(l.t.Context(), id)
		_, staleErr := l.client.Get(l.t.Context(), id, cluster.Stale())
		return err == nil && staleErr == nil && len(open) == 1 && (kind != "failing" || open[0].FailedAttempts == 1) && (kind != "paid" || open[0].Name == "paid")
	})
}

// at returns a part of an answer by its path.
func at(answer any, path ...any) any {
	for _, part := range path {
		switch part := part.(type) {
		case string:
			object, _ := answer.(map[string]any)
			answer = object[part]
		case int:
			list, _ := answer.([]any)
			if part >= len(list) {
				return nil
			}
			answer = list[part]
		}
	}
	return answer
}

func (l *lab) expect(path string, want any, parts ...any) {
	l.t.Helper()
	if got := at(l.get(path), parts...); fmt.Sprint(got) != fmt.Sprint(want) {
		l.t.Errorf("%s, %v: %v, want %v", path, parts, got, want)
	}
}

func TestAPI_ReadsShowTheCluster(t *testing.T) {
	l := newLab(t, 1, dashboard.Options{Principal: asAda})
	const id = "order-1/a:b@c+d"
	path := "instances/" + url.PathEscape(id)
	l.start(id, "paid")
	l.expect("instances?filter="+url.QueryEscape("tag.shop=north name=order")+"&fresh=true", id, "instances", 0, "id")
	l.expect("instances?filter=state%3Dfailed", []any{}, "instances")
	l.expect("count?by=state&by=name", 1, "groups", 1, "count")
	l.expect(path, "an order", "summary")
	l.expect(path, "<script>alert(1)</script>", "custom_status", "json", "html")
	l.expect(path+"/pending", "paid", "operations", 0, "name")
	l.expect(path+"/stack", "paid", "coroutines", 0, "waits_for", 0, "name")
	l.expect(path+"/children", "ship", "children", 0, "name")
	l.expect(path+"/query/step?input=%22x%22", "step of paid", "output", "json")
	l.expect(path+"/kv/notes", "<script>", "values", "a", "json")
	l.expect(path+"/timeline", "child", "rows", 0, "kind")
	l.expect(path+"/timeline", "completed", "rows", 0, "outcome")
	l.expect(path+"/timeline", "paid", "rows", 1, "name")
	l.expect(path+"/history?payloads=true", "paid", "events", 0, "input", "json")
	l.expect(path+"/history", "by phone", "events", 0, "reason")
	l.expect(path+"/history", "node n0 for ada", "events", 0, "principal")
	l.expect("overview", "running", "counts", 1, "state")
	l.expect("cluster", true, "nodes", 0, "voter")
	l.expect("session", "ada", "principal")
	// The pages of a history join without a gap.
	var events []any
	for after := "0"; after != ""; {
		page := l.get(path + "/history?limit=2&after=" + after)
		events = append(events, page["events"].([]any)...)
		if after = ""; page["next"] != nil {
			after = fmt.Sprint(page["next"])
		}
	}
	for i, e := range events {
		if at(e, "event_id") != float64(i+1) {
			t.Fatalf("event %d of the pages: %v", i+1, e)
		}
	}
	if whole := l.get(path + "/history")["events"].([]any); len(whole) != len(events) {
		t.Errorf("%d events in pages, %d at once", len(events), len(whole))
	}
	l.expect(path+"/payload?event=1", "paid", "input", "json")
}

func TestAPI_ChangesAreRecordedWithPrincipalAndReason(t *testing.T) {
	l := newLab(t, 1, dashboard.Options{Principal: asAda})
	l.start("a", "failing")
	operation := func(id string) string {
		return "instances/" + id + "/operations/1/" + fmt.Sprint(at(l.get("instances/"+id+"/pending"), "operations", 0, "event_id")) + "/"
	}
	for _, change := range []struct{ path, body string }{
		{operation("a") + "hold", `{"reason":"wait"}`},
		{operation("a") + "release", `{"reason":"go"}`},
		{operation("a") + "adjust", `{"reason":"longer","start_to_close_seconds":7200,"retry":{"max_attempts":9}}`},
		{"instances/a/suspend", `{"reason":"look"}`},
		{"instances/a/resume", `{"reason":"looked"}`},
		{operation("a") + "complete", `{"reason":"by hand","output":"ok"}`},
		{"instances/a/updates/rename", `{"input":"b","reason":"typo"}`},
		{"instances/a/events/paid", `{"data":"cash","reason":"cashier"}`},
	} {
		l.post(change.path, change.body)
		var body struct{ Reason string }
		_ = json.Unmarshal([]byte(change.body), &body)
		l.Eventually(change.path+" is in the history", func() bool {
			return slices.ContainsFunc(l.get("instances/a/history?limit=1000")["events"].([]any), func(e any) bool {
				return at(e, "reason") == body.Reason && at(e, "principal") == "node n0 for ada"
			})
		})
	}
	l.Eventually("it has completed", func() bool { return l.get("instances/a")["state"] == "completed" })
	l.expect("instances/a", "cash", "output", "json")
	if got := l.post("instances/a/rerun", `{"reason":"again"}`); got != `{"id":"a","execution":2}` {
		t.Errorf("rerun: %s", got)
	}
	if got := l.post("instances/a/fork", `{"event_id":"1","id":"a-fork","execution":1,"reason":"what if"}`); got != `{"id":"a-fork","execution":1}` {
		t.Errorf("fork: %s", got)
	}
	l.start("t", "timer")
	l.post(operation("t")+"fire-now", `{"reason":"now"}`)
	l.post("instances/t/terminate", `{"reason":"end"}`)
	l.Eventually("it is terminated", func() bool { return l.get("instances/t")["state"] == "terminated" })
	if got := l.post("instances/t/purge", `{}`); got != `{"purged":1}` {
		t.Errorf("purge: %s", got)
	}
	if preview := l.post("bulk", `{"filter":"name=order","action":"terminate","dry_run":true}`); !strings.Contains(preview, `"count":2`) {
		t.Errorf("dry run: %s", preview)
	}
	job := l.post("bulk", `{"filter":"name=order","action":"terminate","reason":"closing","id":"job-1"}`)
	if job != `{"id":"job-1"}` {
		t.Errorf("job: %s", job)
	}
	l.Eventually("the job has completed", func() bool { return l.get("jobs/job-1")["state"] == "completed" })
	l.expect("jobs", "closing", "jobs", 0, "reason")
}

func TestAPI_Schedules(t *testing.T) {
	l := newLab(t, 1, dashboard.Options{Principal: asAda})
	if err := schedule.Create(t.Context(), l.client, "nightly", schedule.Spec{Cron: []string{"30 2 * * *"}}, ship, "x"); err != nil {
		t.Fatal(err)
	}
	l.expect("schedules", "nightly", "schedules", 0, "id")
	l.post("schedules/nightly/pause", `{"reason":"holidays"}`)
	l.expect("schedules/nightly", true, "paused")
	l.expect("schedules/nightly", "holidays", "note")
	l.post("schedules/nightly/resume", `{}`)
	l.expect("schedules/nightly", false, "paused")
	if got := l.post("schedules/nightly/trigger", `{"reason":"try"}`); !strings.Contains(got, `"cause":"trigger"`) {
		t.Errorf("trigger: %s", got)
	}
	if got := l.post("schedules/nightly/backfill", `{"from":"2026-01-01T00:00:00Z","until":"2026-01-03T00:00:00Z","overlap":"allow"}`); !strings.Contains(got, `"count":2`) {
		t.Errorf("backfill: %s", got)
	}
}

func TestAPI_InvalidInput(t *testing.T) {
	l := newLab(t, 1, dashboard.Options{Principal: asAda})
	l.start("a", "paid")
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", "instances?filter=state%3Dfaild", "", 400, `"field":"filter"`},
		{"GET", "instances?limit=0", "", 400, `"field":"limit"`},
		{"GET", "instances/b", "", 404, `"code":"not_found"`},
		{"GET", "instances/a/history?execution=7", "", 404, `"code":"not_found"`},
		{"GET", "instances/a/query/weather", "", 404, `"code":"not_registered"`},
		{"GET", "instances/a/query/step?input=nope", "", 400, `"field":"input"`},
		{"GET", "nothing", "", 404, `"code":"not_found"`},
		{"GET", "instances/a/cancel", "", 404, `"code":"not_found"`},
		{"GET", "events", "", 400, `"field":"topics"`},
		{"GET", "events?topics=weather", "", 400, `"field":"topics"`},
		{"POST", "instances", `{"name":"order","id":"a"}`, 409, `"code":"exists"`},
		{"POST", "instances", `{"name":"order","id":"c","colour":1}`, 400, `"field":"body"`},
		{"POST", "instances", `{"name":"order","id":"c","reuse":"often"}`, 400, `"field":"reuse"`},
		{"POST", "instances", `{`, 400, `"field":"body"`},
		{"POST", "instances", `{"input":"` + strings.Repeat("x", 9<<20) + `"}`, 413, `"code":"too_large"`},
		{"POST", "instances/b/cancel", `{}`, 404, `"code":"not_found"`},
		{"POST", "instances/a/operations/1/x/hold", `{}`, 400, `"field":"event"`},
		{"POST", "instances/a/operations/1/1/hold", `{}`, 404, `"code":"unknown_operation"`},
		{"POST", "bulk", `{"action":"dance","dry_run":true}`, 400, `"field":`},
		{"POST", "schedules/a/pause", `{}`, 404, `"code":"not_registered"`},
	} {
		if status, text := l.do(c.method, c.path, c.body); status != c.status || !strings.Contains(text, c.want) {
			t.Errorf("%s %s %.80s: %d %s, want %d %s", c.method, c.path, c.body, status, text, c.status, c.want)
		}
	}
}

func TestHandler_RefusesChangesThatMayNotBeMade(t *testing.T) {
	for name, c := range map[string]struct {
		options dashboard.Options
		header  []string
		status  int
		want    string
	}{
		"without users":         {dashboard.Options{}, nil, 403, "read_only"},
		"read-only":             {dashboard.Options{Principal: asAda, ReadOnly: true}, nil, 403, "read_only"},
		"unknown user":          {dashboard.Options{Principal: func(*http.Request) (string, error) { return "", errors.New("log in") }}, nil, 401, "log in"},
		"empty user":            {dashboard.Options{Principal: func(*http.Request) (string, error) { return "", nil }}, nil, 401, "unauthenticated"},
		"another site's script": {dashboard.Options{Principal: asAda}, []string{"Sec-Fetch-Site", "cross-site"}, 403, `"code":"cross_origin"`},
		"another site's origin": {dashboard.Options{Principal: asAda}, []string{"Origin", "https://evil.example"}, 403, `"code":"cross_origin"`},
		"a form":                {dashboard.Options{Principal: asAda}, []string{"Tenuto-Request", ""}, 403, "Tenuto-Request"},
		"another site's name":   {dashboard.Options{Principal: asAda}, []string{"Host", "evil.example"}, 421, `"code":"host_not_allowed"`},
		"a host not listed":     {dashboard.Options{Principal: asAda, Hosts: []string{"ops.example"}}, nil, 421, `"code":"host_not_allowed"`},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 1, c.options)
			status, text := l.do(http.MethodPost, "instances", `{"name":"order","id":"a","input":"paid"}`, c.header...)
			if status != c.status || !strings.Contains(text, c.want) {
				t.Errorf("%d %s, want %d %s", status, text, c.status, c.want)
			}
			if n, err := l.client.Count(t.Context(), cluster.Filter{}); n != 0 || err != nil {
				t.Errorf("%d instances, %v", n, err)
			}
		})
	}
}

// A redirect of the handler would lack the prefix under which it is mounted.
func TestHandler_PathOfTheAPIWithoutSlashIsNoRedirect(t *testing.T) {
	l := newLab(t, 1, dashboard.Options{})
	if status, text := request(t, l.server, http.MethodGet, prefix+"/api", ""); status != http.StatusNotFound || !strings.Contains(text, `"code":"not_found"`) {
		t.Errorf("%d %s", status, text)
	}
}

// Pages show times relative to the clock of the server, whatever the browser's says.
func TestAPI_SessionHasTheTimeOfTheServer(t *testing.T) {
	l := newLab(t, 1, dashboard.Options{})
	before := time.Now()
	_, text := l.do(http.MethodGet, "session", "")
	var answer struct{ Time time.Time }
	if err := json.Unmarshal([]byte(text), &answer); err != nil || answer.Time.Before(before.Round(0)) || answer.Time.After(time.Now()) {
		t.Errorf("%s: %v", text, err)
	}
}

func TestHandler_AcceptsListedHost(t *testing.T) {
	l := newLab(t, 1, dashboard.Options{Hosts: []string{"ops.example"}})
	if status, text := l.do(http.MethodGet, "session", "", "Host", "OPS.example:8443"); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
}

func TestAPI_RedactsPayloads(t *testing.T) {
	l := newLab(t, 1, dashboard.Options{Principal: asAda, Redact: func(p replay.PayloadInfo) bool { return p.Part != "output" }})
	l.start("a", "paid")
	for _, path := range []string{"instances/a", "instances/a/history?payloads=true", "instances/a/payload?event=1", "instances/a/query/step", "instances/a/kv/notes"} {
		status, text := l.do(http.MethodGet, path, "")
		if status != http.StatusOK || !strings.Contains(text, `{"redacted":true}`) || strings.Contains(text, `"json":"<`) || strings.Contains(text, "step of") {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}

// stream reads server-sent events.
type stream struct {
	t      *testing.T
	lines  *bufio.Scanner
	cancel context.CancelFunc
	status int
}

func (l *lab) stream(path string) *stream {
	l.t.Helper()
	return openStream(l.t, l.server, prefix+"/api/"+path)
}

// openStream follows a stream until the test ends.
func openStream(t *testing.T, server *httptest.Server, path string) *stream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		answer.Body.Close()
	})
	return &stream{t, bufio.NewScanner(answer.Body), cancel, answer.StatusCode}
}

// next reads up to an event with one of these names.
func (s *stream) next(names ...string) (name, data string) {
	s.t.Helper()
	for s.lines.Scan() {
		line := s.lines.Text()
		if n, ok := strings.CutPrefix(line, "event: "); ok {
			name = n
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok && slices.Contains(names, name) {
			return name, data
		}
	}
	s.t.Fatalf("the stream has ended before %q: %v", names, s.lines.Err())
	return "", ""
}

// await reads up to an event with that name, and data that contains a text.
func (s *stream) await(name, text string) string {
	s.t.Helper()
	for {
		if _, data := s.next(name); strings.Contains(data, text) {
			return data
		}
	}
}

func TestEvents_ShowChanges(t *testing.T) {
	l := newLab(t, 3, dashboard.Options{Principal: asAda})
	l.start("a", "paid")
	s := l.stream("events?topics=overview&topics=instance:a&topics=cluster")
	s.await("overview-state", `"running"`)
	list := l.stream("events?topics=list:name%3Dorder")
	list.await("list:name=order-state", `[{"id":"a"`)
	list.await("list:name=order-count", `{"count":1}`)
	l.start("b", "paid")
	list.await("list:name=order-state", `{"id":"b"`)
	leader := l.Leader()
	if leader != 0 {
		l.Kill(leader) // the stream is that of node 0, and goes on
	}
	l.post("instances/a/events/paid", `{"data":"cash"}`)
	for isShown := false; !isShown; {
		name, data := s.next("instance:a-events", "instance:a-changed")
		// Of events that follow others before those are sent, a page is only told to read them.
		isShown = strings.Contains(data, "OrchestrationCompleted") || name == "instance:a-changed" && l.get("instances/a")["state"] == "completed"
	}
}

// A page reads an instance or a list before it follows it: what changed in between must not be
// missed, also by a page that joins later.
func TestEvents_NewStreamIsToldToReadAgain(t *testing.T) {
	l := newLab(t, 1, dashboard.Options{Principal: asAda})
	l.start("a", "paid")
	for range 2 {
		s := l.stream("events?topics=instance:a")
		s.await("instance:a-changed", "{}")
		s = l.stream("events?topics=list:name%3Dorder")
		s.await("list:name=order-state", `[{"id":"a"`)
		s = l.stream("events?topics=overview")
		s.await("overview-state", `"running"`)
	}
}

func TestEvents_StreamsAreBounded(t *testing.T) {
	l := newLab(t, 1, dashboard.Options{Principal: asAda, StreamsMax: 2})
	l.start("a", "paid")
	first, second := l.stream("events?topics=overview"), l.stream("instances/a/watch")
	if third := l.stream("events?topics=overview"); third.status != http.StatusServiceUnavailable {
		t.Errorf("a third stream: %d", third.status)
	}
	first.cancel()
	l.Eventually("a stream is free", func() bool {
		s := l.stream("events?topics=overview")
		s.cancel()
		return s.status == http.StatusOK
	})
	second.await("event", "OrchestrationStarted")
}

func TestEvents_TopicsAreBounded(t *testing.T) {
	l := newLab(t, 1, dashboard.Options{Principal: asAda, TopicsMax: 2})
	two := l.stream("events?topics=list:name%3Da&topics=list:name%3Db")
	two.await("list:name=a-state", `"instances":[`)
	if third := l.stream("events?topics=list:name%3Dc"); third.status != http.StatusServiceUnavailable {
		t.Errorf("a third topic: %d", third.status)
	}
	if same := l.stream("events?topics=list:name%3Da"); same.status != http.StatusOK {
		t.Errorf("a topic that is followed already: %d", same.status)
	}
}

func TestWatch_EndsWithTheRun(t *testing.T) {
	l := newLab(t, 1, dashboard.Options{Principal: asAda})
	l.start("a", "paid")
	s := l.stream("instances/a/watch")
	s.await("event", "ExternalSubscribed")
	l.post("instances/a/events/paid", `{"data":"cash"}`)
	s.await("event", "OrchestrationCompleted")
	s.await("end", "")
}
