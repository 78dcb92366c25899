package api

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
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
