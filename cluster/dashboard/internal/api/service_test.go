package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/cluster/clustertest"
)

// curl -d states a form as the type of its body, which is JSON all the same.
func TestHandler_BodyOfAnyType(t *testing.T) {
	c := clustertest.New(t, 1, clustertest.Definitions(welcomeDefinitions()...))
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/instances", strings.NewReader(`{"name":"welcome","id":"w","input":"x"}`))
	r.Header.Set("Tenuto-Request", "1")
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	newAPI(c.Client(0)).ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
}

func TestHandler_RefusesUnknownParameters(t *testing.T) {
	a := New(Config{})
	for path, field := range map[string]string{
		"GET /instances?fliter=state%3Dfailed": "fliter",
		"GET /session?a=1":                     "a",
		"GET /instances?filter=%zz":            "query",
	} {
		method, target, _ := strings.Cut(path, " ")
		r := httptest.NewRequestWithContext(t.Context(), method, "/", nil)
		r.URL.Path, r.URL.RawQuery, _ = strings.Cut(target, "?")
		w := httptest.NewRecorder()
		a.ServeHTTP(w, r)
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), `"field":"`+field+`"`) {
			t.Errorf("%s: status %d: %s", path, w.Code, w.Body)
		}
	}
}

// A request that cannot mean what it does is refused, and answers forbid to cache them.
func TestHandler_RefusesAmbiguousRequests(t *testing.T) {
	a := newAPI(clustertest.New(t, 1, clustertest.Definitions(welcomeDefinitions()...)).Client(0))
	for _, c := range []struct{ method, path, body, field string }{
		{"GET", "/instances?fresh=1", "", "fresh"},
		{"GET", "/instances/i?fresh=True", "", "fresh"},
		{"GET", "/instances?fresh=true&fresh=false", "", "fresh"},
		{"GET", "/instances/i/history?payloads=yes", "", "payloads"},
		{"GET", "/jobs?soon=", "", "soon"},
		{"POST", "/instances/i/events/approved", `{"input":true}`, "body"},
		{"POST", "/instances/i/updates/add", `{"data":1}`, "body"},
		{"POST", "/instances", "{\"name\":\"welcome\",\"id\":\"u\",\"input\":\"\xff\"}", "body"},
	} {
		answer := fetch[errorAnswer](t, a, c.method, c.path, c.body, http.StatusBadRequest)
		if answer.Error.Code != "invalid" || answer.Error.Field != c.field {
			t.Errorf("%s %s %s: %+v; want field %s", c.method, c.path, c.body, answer.Error, c.field)
		}
	}
	for path, status := range map[string]int{"/none": http.StatusNotFound, "/session": http.StatusOK, "/instances/i": http.StatusNotFound} {
		w := httptest.NewRecorder()
		a.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		if w.Code != status || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s: status %d, Cache-Control %q", path, w.Code, w.Header().Get("Cache-Control"))
		}
	}
}

// No call has a path that is that of an instance, whatever ID it has.
func TestHandler_InstanceWithTheIDOfACall(t *testing.T) {
	c := clustertest.New(t, 1, clustertest.Definitions(welcomeDefinitions()...))
	a := newAPI(c.Client(0))
	for _, of := range a.routes() {
		id, ok := strings.CutPrefix(of.pattern, "GET /instances/")
		if !ok || strings.ContainsAny(id, "/{") {
			continue
		}
		t.Errorf("%s hides the instance %q", of.pattern, id)
	}
	fetch[startAnswer](t, a, "POST", "/instances", `{"name":"welcome","id":"count","input":"x"}`, http.StatusOK)
	if got := fetch[instanceView](t, a, "GET", "/instances/count?fresh=true", "", http.StatusOK); got.ID != "count" {
		t.Errorf("the instance count: %+v", got)
	}
}

// A job for all instances is asked for in so many words: a body that lacks the filter starts none.
func TestBulk_NeedsFilter(t *testing.T) {
	a := newAPI(clustertest.New(t, 1, clustertest.Definitions(welcomeDefinitions()...)).Client(0))
	for _, body := range []string{`{"action":"cancel"}`, `{"action":"cancel","filter":null}`, `{"action":"cancel","dry_run":true}`} {
		if got := fetch[errorAnswer](t, a, "POST", "/bulk", body, http.StatusBadRequest); got.Error.Field != "filter" {
			t.Errorf("%s: %+v", body, got.Error)
		}
	}
	fetch[object](t, a, "POST", "/bulk", `{"action":"cancel","filter":"","dry_run":true}`, http.StatusOK)
}
