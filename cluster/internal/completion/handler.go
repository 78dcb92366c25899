package completion

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/actors/activity"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Bounds of requests.
const (
	requestsMax = 128 // concurrent
	instanceMax = 4   // concurrent, for one instance, or for one token if tokens are not verified
	addressMax  = 32  // concurrent, from one remote address, if tokens are not verified
	bodyTimeout = 10 * time.Second
	callTimeout = 10 * time.Second
	codeMax     = 128      // bytes, as for replay.NewError
	messageMax  = 16 << 10 // bytes, as for recorded errors
)

// reservedCodes begin the codes of the system's own errors, which no caller may pretend.
const reservedCodes = "tenuto."

// Config says how a handler reaches the cluster.
type Config struct {
	// Verify returns the instance of a signed token that this node finds valid. It returns soon.
	Verify func(ctx context.Context, token string) (instance string, err error)
	// IsUnverified says that Verify checks only the form of a token, because a client without a
	// node has no key. Nodes verify the token before anything is recorded.
	IsUnverified bool
	// Complete and Fail end the attempt that a token names. Both verify the token again.
	Complete func(ctx context.Context, token string, value json.RawMessage) error
	Fail     func(ctx context.Context, token string, failure error) error
	// BodyMax returns the size of the largest body, in bytes.
	BodyMax func() int
	// IsUnavailable reports whether an error means that the request may succeed later.
	IsUnavailable func(error) bool
	// Reject answers with an error. Defaults to text.
	Reject func(w http.ResponseWriter, status int, message string)
}

// Reasons for answers that do not come from the cluster.
var (
	errTooManyRequests = errors.New("too many concurrent requests")
	errTooLarge        = errors.New("the body is too large")
	errSlowBody        = errors.New("the body did not arrive in time")
)

// A requestError says what is wrong with a body.
type requestError struct{ reason string }

// Error implements error.
func (e *requestError) Error() string { return e.reason }

// handler serves completions.
type handler struct {
	Config
	slots chan struct{} // one element for each request that is served

	mu      sync.Mutex
	serving map[string]int // how many requests are served, by instance, token or address
}

// NewHandler returns a handler of POST /complete/{token} and POST /fail/{token}.
func NewHandler(config Config) http.Handler {
	if config.Reject == nil {
		config.Reject = func(w http.ResponseWriter, status int, message string) { http.Error(w, message, status) }
	}
	h := &handler{Config: config, slots: make(chan struct{}, requestsMax), serving: make(map[string]int)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /complete/{token}", h.serve(h.complete))
	mux.HandleFunc("POST /fail/{token}", h.serve(h.fail))
	return mux
}

// An action ends the attempt that a verified token names, as a body says.
type action func(ctx context.Context, token string, body []byte) error

func (h *handler) serve(act action) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		if err := h.handle(w, r, act); err != nil {
			h.reject(w, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

func (h *handler) handle(w http.ResponseWriter, r *http.Request, act action) error {
	token := r.PathValue("token")
	if !engine.IsSignedToken(token) { // plain tokens are for callers of the cluster only
		return new(replay.TokenError)
	}
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	default:
		return errTooManyRequests
	}
	instance, err := h.Verify(r.Context(), token)
	if err != nil {
		return err
	}
	leave, ok := h.enter(r, token, instance)
	if !ok {
		return errTooManyRequests
	}
	defer leave()
	body, err := h.readBody(w, r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
	defer cancel()
	return act(ctx, token, body)
}

// enter reports whether a request may be served; the caller must call leave at its end. Without
// these bounds the holder of one token could occupy all slots. A forged token can name any
// instance, so tokens that are not verified are not counted by instance: forged ones would take the
// slots of a genuine one.
func (h *handler) enter(r *http.Request, token, instance string) (leave func(), ok bool) {
	if !h.IsUnverified {
		return h.count("instance "+instance, instanceMax)
	}
	leaveToken, ok := h.count("token "+token, instanceMax)
	if !ok {
		return nil, false
	}
	leaveAddress, ok := h.count("address "+networkOf(r.RemoteAddr), addressMax)
	if !ok {
		leaveToken()
		return nil, false
	}
	return func() {
		leaveAddress()
		leaveToken()
	}, true
}

// count counts a request under a key until leave is called; ok is false if there are too many.
func (h *handler) count(key string, most int) (leave func(), ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.serving[key] == most {
		return nil, false
	}
	h.serving[key]++
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.serving[key]--; h.serving[key] == 0 {
			delete(h.serving, key)
		}
	}, true
}

// networkOf returns the address of a peer without its port. For an IPv6 address it returns the
// network of 64 bits, because one owner has all its addresses.
func networkOf(peer string) string {
	address, err := netip.ParseAddrPort(peer)
	if err != nil {
		return ""
	}
	ip := address.Addr().Unmap().WithZone("")
	if ip.Is6() {
		return netip.PrefixFrom(ip, 64).Masked().String()
	}
	return ip.String()
}

// readBody reads a body of JSON.
func (h *handler) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	most := int64(h.BodyMax())
	if r.ContentLength > most {
		return nil, errTooLarge
	}
	// Not every server can do that. It does not limit the time of the call: net/http removes the
	// deadline after the body.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		return nil, errTooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, errSlowBody
	case err != nil:
		return nil, &requestError{"the body is incomplete"}
	}
	if !utf8.Valid(body) || !json.Valid(body) {
		return nil, &requestError{"the body is not JSON in UTF-8"}
	}
	return body, nil
}

func (h *handler) complete(ctx context.Context, token string, body []byte) error {
	return h.Complete(ctx, token, body)
}

func (h *handler) fail(ctx context.Context, token string, body []byte) error {
	failure, err := decodeFailure(body)
	if err != nil {
		return err
	}
	return h.Fail(ctx, token, failure)
}

// decodeFailure returns the error that a body describes.
func decodeFailure(body []byte) (*replay.Error, error) {
	var fields struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&fields); err != nil {
		return nil, &requestError{`the body must be {"code": TEXT, "message": TEXT}`}
	}
	switch {
	case fields.Code == "" && fields.Message == "":
		return nil, &requestError{"code and message are empty: at least one is required"}
	case len(fields.Code) > codeMax:
		return nil, &requestError{fmt.Sprintf("code has %d bytes: at most %d are allowed", len(fields.Code), codeMax)}
	case len(fields.Message) > messageMax:
		return nil, &requestError{fmt.Sprintf("message has %d bytes: at most %d are allowed", len(fields.Message), messageMax)}
	case strings.HasPrefix(fields.Code, reservedCodes):
		return nil, &requestError{fmt.Sprintf("code begins with %q, which is reserved", reservedCodes)}
	}
	return &replay.Error{Code: fields.Code, Message: fields.Message}, nil
}

// reject answers a request that did nothing, or whose outcome is unknown.
func (h *handler) reject(w http.ResponseWriter, err error) {
	status, message := h.answer(err)
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", retryAfter(err))
	}
	h.Reject(w, status, message)
}

func (h *handler) answer(err error) (status int, message string) {
	var wrong *requestError
	var large *replay.PayloadTooLargeError
	switch {
	case errors.As(err, new(*replay.TokenError)):
		return http.StatusNotFound, "no such token"
	case errors.Is(err, engine.ErrTokenExpired):
		return http.StatusGone, "the token has expired"
	case errors.Is(err, activity.ErrClosed):
		return http.StatusConflict, "the attempt has already ended, or does not exist any more"
	case errors.As(err, &wrong):
		return http.StatusBadRequest, wrong.reason
	case errors.Is(err, errTooLarge), errors.As(err, &large):
		most := h.BodyMax()
		if large != nil {
			most = large.Max // of the leader, which may be smaller
		}
		return http.StatusRequestEntityTooLarge, fmt.Sprintf("the value is too large: at most %d bytes are allowed", most)
	case errors.Is(err, errSlowBody):
		return http.StatusRequestTimeout, errSlowBody.Error()
	case errors.Is(err, errTooManyRequests), errors.Is(err, actors.ErrBusy), h.IsUnavailable(err):
		return http.StatusServiceUnavailable, "not available now: repeat the request"
	}
	return http.StatusInternalServerError, "internal error"
}

// retryAfter returns when to repeat a request, in seconds.
func retryAfter(err error) string {
	var busy *actors.BusyError
	if !errors.As(err, &busy) {
		return "1"
	}
	return strconv.Itoa(max(1, int(math.Ceil(busy.RetryAfter.Seconds()))))
}
