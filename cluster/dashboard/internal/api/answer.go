package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/filter"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/replay"
)

// statusError is an error with its HTTP status.
type statusError struct {
	status               int
	code, field, message string
}

func (e *statusError) Error() string { return e.message }

func notFound(message string) error {
	return &statusError{status: http.StatusNotFound, code: "not_found", message: message}
}

// errorAnswer is the body of an answer that is an error.
type errorAnswer struct {
	Error errorDetail `json:"error"`
}

type errorDetail struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Field   string `json:"field,omitempty"`   // that is not valid, or that asks for too much
	Outcome string `json:"outcome,omitempty"` // "none": nothing was done; "unknown"
	Offset  *int   `json:"offset,omitempty"`  // in the text of a filter
}

// errorStatuses are the answers for errors without a type of their own.
var errorStatuses = []struct {
	err    error
	status int
	code   string
}{
	{cluster.ErrNotFound, http.StatusNotFound, "not_found"},
	{cluster.ErrNotAuthorized, http.StatusForbidden, "not_authorized"},
	{cluster.ErrInstanceExists, http.StatusConflict, "exists"},
	{cluster.ErrEnded, http.StatusConflict, "ended"},
	{cluster.ErrStalled, http.StatusConflict, "stalled"},
	{cluster.ErrNotStalled, http.StatusConflict, "not_stalled"},
	{cluster.ErrActivityClosed, http.StatusConflict, "closed"},
	{operate.ErrClosed, http.StatusConflict, "closed"},
	{operate.ErrHeld, http.StatusConflict, "held"},
	{operate.ErrNotBackingOff, http.StatusConflict, "not_backing_off"},
	{operate.ErrUnknownOperation, http.StatusNotFound, "unknown_operation"},
	{cluster.ErrNotMember, http.StatusNotFound, "not_member"},
	{cluster.ErrLastVoter, http.StatusConflict, "last_voter"},
	{operate.ErrTransferFailed, http.StatusConflict, "transfer_failed"},
	{cluster.ErrBusy, http.StatusTooManyRequests, "busy"},
	{cluster.ErrProtocol, http.StatusConflict, "protocol"},
	{cluster.ErrRequestIDReused, http.StatusConflict, "request_id_reused"},
	{cluster.ErrUpdateAborted, http.StatusConflict, "aborted"},
	{cluster.ErrMembershipChanging, http.StatusConflict, "membership_changing"},
}

// writeError writes an error as the answer, and returns its status.
func writeError(w http.ResponseWriter, err error) (status int) {
	status, detail := answerOf(err)
	var busy *cluster.BusyError
	if errors.As(err, &busy) {
		w.Header().Set("Retry-After", strconv.Itoa(int(max(busy.RetryAfter.Round(time.Second)/time.Second, 1))))
	} else if detail.Code == "too_many_streams" || detail.Code == "too_many_topics" {
		w.Header().Set("Retry-After", "5")
	}
	writeJSON(w, status, errorAnswer{detail})
	return status
}

func answerOf(err error) (status int, detail errorDetail) {
	detail = errorDetail{Code: "internal", Message: err.Error()}
	var (
		own         *statusError
		invalid     *replay.InvalidError
		syntax      *filter.SyntaxError
		unavailable *cluster.UnavailableError
		large       *http.MaxBytesError
		tooLarge    *replay.PayloadTooLargeError
	)
	switch {
	case errors.As(err, &own):
		detail.Code, detail.Field = own.code, own.field
		return own.status, detail
	case errors.As(err, &large), errors.As(err, &tooLarge):
		detail.Code = "too_large"
		return http.StatusRequestEntityTooLarge, detail
	case errors.As(err, &syntax):
		detail.Code, detail.Field, detail.Offset = "invalid", "filter", &syntax.Offset
		return http.StatusBadRequest, detail
	case errors.As(err, &invalid):
		detail.Code, detail.Field = "invalid", invalid.Field
		return http.StatusBadRequest, detail
	case errors.As(err, &unavailable):
		detail.Code, detail.Outcome = "unavailable", "none"
		if !unavailable.NotExecuted {
			detail.Outcome = "unknown"
		}
		return http.StatusServiceUnavailable, detail
	}
	for _, known := range errorStatuses {
		if errors.Is(err, known.err) {
			detail.Code = known.code
			return known.status, detail
		}
	}
	if status, code := refusalOf(err); status != 0 {
		detail.Code = code
		return status, detail
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, cluster.ErrClosed) {
		detail.Code, detail.Outcome = "unavailable", "unknown"
		return http.StatusServiceUnavailable, detail
	}
	return http.StatusInternalServerError, detail
}

// refusalOf returns the answer for an error of a type of its own that says why a call was not
// served, or that the code of an instance returned; 0 for others.
func refusalOf(err error) (status int, code string) {
	switch {
	case errors.As(err, new(*operate.KindError)):
		return http.StatusConflict, "wrong_kind"
	case errors.As(err, new(*operate.CopyError)):
		return http.StatusConflict, "cannot_copy"
	case errors.As(err, new(*operate.NoSuccessorError)):
		return http.StatusConflict, "no_successor"
	case errors.As(err, new(*cluster.RejectedError)): // by the validation of an update
		return http.StatusConflict, "rejected"
	case errors.As(err, new(*replay.NotRegisteredError)): // an orchestration, a query or an update
		return http.StatusNotFound, "not_registered"
	case errors.As(err, new(*replay.Error)):
		return http.StatusConflict, "failed"
	}
	return 0, ""
}

func writeJSON(w http.ResponseWriter, status int, answer any) {
	text, err := json.Marshal(answer)
	if err != nil {
		status, text = http.StatusInternalServerError, []byte(`{"error":{"code":"internal","message":"the answer cannot be encoded"}}`)
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(text) // an error means that the client has gone
}

// decodeBody reads the body of a change, which must have no other fields. An empty body is valid.
func (r *request) decodeBody(into any) error {
	text, err := io.ReadAll(r.Body)
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		return err
	case err != nil:
		return &replay.InvalidError{Field: "body", Reason: err.Error()}
	case len(text) == 0:
		return nil
	case !utf8.Valid(text):
		return &replay.InvalidError{Field: "body", Reason: "must be UTF-8"}
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return &replay.InvalidError{Field: "body", Reason: err.Error()}
	}
	if !errors.Is(decoder.Decode(&json.RawMessage{}), io.EOF) {
		return &replay.InvalidError{Field: "body", Reason: "must be one JSON object"}
	}
	return nil
}

// timeOf returns a time as answers have it, nil for the zero time.
func timeOf(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// errorView is an error of a run or an operation.
type errorView struct {
	Code    string `json:"code,omitempty"`
	Message string `json:"message"`
}
