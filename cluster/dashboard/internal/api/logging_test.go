package api

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/cluster/clustertest"
)

// Requests that fail with an internal error are logged; those that the caller can mend are not.
func TestHandler_LogsInternalErrors(t *testing.T) {
	for err, logged := range map[error]bool{
		errors.New("disk on fire"): true,
		&statusError{status: 404, code: "not_found", message: "none such"}:   false,
		&statusError{status: 500, code: "internal", message: "out of order"}: true,
	} {
		var log bytes.Buffer
		a := &API{config: Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}}
		serve := a.handler(route{service: answers(func(context.Context, *request) (*accepted, error) { return nil, err })})
		serve(httptest.NewRecorder(), httptest.NewRequest("GET", "/session", nil))
		if got := strings.Contains(log.String(), err.Error()); got != logged {
			t.Errorf("%v: logged %t; want %t", err, got, logged)
		}
	}
}

// Changes that no history records are logged with principal and reason, also those that fail.
func TestHandler_LogsChangesThatNoHistoryRecords(t *testing.T) {
	c := clustertest.New(t, 1, clustertest.Definitions(welcomeDefinitions()...))
	var log bytes.Buffer
	a := newAPI(c.Client(0))
	a.config.Logger = slog.New(slog.NewTextHandler(&log, nil))
	fetch[startAnswer](t, a, "POST", "/instances", `{"name": "welcome", "id": "w", "input": "x"}`, http.StatusOK)
	for _, call := range []struct {
		path, says string
		status     int
	}{
		{"/instances/w/retry", `action=retry principal=alice reason="because of retry" instance=w error=`, http.StatusConflict},
		{"/instances/w/purge", `action=purge principal=alice reason="because of purge" instance=w`, http.StatusOK},
		{"/activities/greet/pause", `action="pause activity" principal=alice reason="because of pause" activity=greet`, http.StatusOK},
		{"/activities/greet/resume", `action="resume activity" principal=alice reason="because of resume" activity=greet`, http.StatusOK},
		{"/cluster/nodes/n0/remove", `action="remove member" principal=alice reason="because of remove" node=n0 error=`, http.StatusConflict},
		{"/cluster/nodes/n9/drain", `action="transfer leadership" principal=alice reason="because of drain" drained=n9 error=`, http.StatusNotFound},
		{"/cluster/partitions/0/transfer", `action="transfer leadership" principal=alice reason="because of transfer" partition=0 from=n0 to=n9 error=`, http.StatusNotFound},
	} {
		log.Reset()
		verb := call.path[strings.LastIndex(call.path, "/")+1:]
		to := map[string]string{"transfer": `"to": "n9", `}[verb]
		fetch[any](t, a, "POST", call.path, `{`+to+`"reason": "because of `+verb+`"}`, call.status)
		if got := log.String(); !strings.Contains(got, "level=INFO") || !strings.Contains(got, call.says) {
			t.Errorf("%s logged %q; want %q", call.path, got, call.says)
		}
	}
	log.Reset()
	fetch[errorAnswer](t, a, "POST", "/cluster/nodes/n0/drain", `{"dry_run": true, "reason": "to see"}`, http.StatusConflict)
	fetch[errorAnswer](t, a, "POST", "/instances/w/retry", `{"reason": "`+strings.Repeat("x", reasonMax+1)+`"}`, http.StatusBadRequest)
	if log.Len() > 0 {
		t.Errorf("what changes nothing logged %q", log.String())
	}
}
