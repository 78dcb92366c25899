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
