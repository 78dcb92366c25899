package completion

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/actors/activity"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A fakeCluster answers every call with an error, and counts calls.
type fakeCluster struct {
	mu                sync.Mutex
	verifies, ends    int
	verifyErr, endErr error
	value             string
	entered, leave    chan struct{} // if set, a call says that it has begun, and waits
}

var errUnavailable = errors.New("unavailable")

func (f *fakeCluster) end(value string) error {
	if f.entered != nil {
		f.entered <- struct{}{}
		<-f.leave
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ends, f.value = f.ends+1, value
	return f.endErr
}

func (f *fakeCluster) handler() http.Handler { return NewHandler(f.config()) }

func (f *fakeCluster) config() Config {
	return Config{
		Verify: func(_ context.Context, token string) (instance string, err error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.verifies++
			return strings.TrimPrefix(token, "t3."), f.verifyErr
		},
		Complete:      func(_ context.Context, _ string, value json.RawMessage) error { return f.end(string(value)) },
		Fail:          func(_ context.Context, _ string, failure error) error { return f.end(failure.Error()) },
		BodyMax:       func() int { return 100 },
		IsUnavailable: func(err error) bool { return errors.Is(err, errUnavailable) },
	}
}

// An unreadBody fails the test when it is read.
type unreadBody struct{ t *testing.T }

func (b unreadBody) Read([]byte) (int, error) {
	b.t.Error("the body is read")
	return 0, io.EOF
}

func post(h http.Handler, path string, body io.Reader) *http.Response {
	recorder := httptest.NewRecorder()
	h.ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, path, body))
	return recorder.Result()
}

func TestHandler_AnswersByError(t *testing.T) {
	for _, c := range []struct {
		err        error
		status     int
		retryAfter string
	}{
		{nil, http.StatusNoContent, ""},
		{&replay.TokenError{Token: "secret"}, http.StatusNotFound, ""},
		{engine.ErrTokenExpired, http.StatusGone, ""},
		{activity.ErrClosed, http.StatusConflict, ""},
		{&replay.PayloadTooLargeError{Bytes: 2, Max: 1}, http.StatusRequestEntityTooLarge, ""},
		{&actors.BusyError{RetryAfter: 50 * time.Millisecond, Reason: "secret"}, http.StatusServiceUnavailable, "1"},
		{&actors.BusyError{RetryAfter: 1001 * time.Millisecond}, http.StatusServiceUnavailable, "2"},
		{errUnavailable, http.StatusServiceUnavailable, "1"},
		{&replay.InvalidError{Field: "client", Reason: "is secret"}, http.StatusInternalServerError, ""},
		{errors.New("secret"), http.StatusInternalServerError, ""},
	} {
		for _, path := range []string{"/complete/t3.a", "/fail/t3.a"} {
			f := &fakeCluster{endErr: c.err}
			if c.err != nil {
				f.endErr = fmt.Errorf("complete secret: %w", c.err)
			}
			response := post(f.handler(), path, strings.NewReader(`{"message": "m"}`))
			text, _ := io.ReadAll(response.Body)
			if response.StatusCode != c.status || response.Header.Get("Retry-After") != c.retryAfter || strings.Contains(string(text), "secret") ||
				response.Header.Get("Cache-Control") != "no-store" || f.ends != 1 {
				t.Errorf("%s, %v: %d %q, Retry-After %q, %d calls", path, c.err, response.StatusCode, text, response.Header.Get("Retry-After"), f.ends)
			}
		}
	}
}

// A caller without a valid token makes a node read no body and make no call.
func TestHandler_ReadsNoBodyWithoutToken(t *testing.T) {
	f := &fakeCluster{verifyErr: new(replay.TokenError)}
	for _, token := range []string{"t3.forged", "t2.MS8xLzIvMS9h", "t1.MS8yLzEvYQ", "x"} {
		if response := post(f.handler(), "/complete/"+token, unreadBody{t}); response.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", token, response.Status)
		}
	}
	if f.verifies != 1 || f.ends != 0 {
		t.Errorf("%d tokens verified, want only the one that may be signed; %d calls", f.verifies, f.ends)
	}
	f.verifyErr = nil
	request := httptest.NewRequest(http.MethodPost, "/complete/t3.a", unreadBody{t})
	request.ContentLength = 101
	recorder := httptest.NewRecorder()
	f.handler().ServeHTTP(recorder, request)
	if recorder.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("a body that says it is too large: %d", recorder.Code)
	}
	if response := post(f.handler(), "/complete/t3.a", io.MultiReader(strings.NewReader("1"+strings.Repeat(" ", 100)))); response.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a body of unknown size that is too large: %s", response.Status)
	}
	if response := post(f.handler(), "/complete/t3.a", strings.NewReader("1"+strings.Repeat(" ", 99))); response.StatusCode != http.StatusNoContent || strings.TrimSpace(f.value) != "1" {
		t.Errorf("the largest body: %s, %q", response.Status, f.value)
	}
}

func TestHandler_BoundsRequestsAtOnce(t *testing.T) {
	f := &fakeCluster{entered: make(chan struct{}), leave: make(chan struct{})}
	h := f.handler()
	var serving sync.WaitGroup
	for i := range requestsMax {
		serving.Go(func() {
			if response := post(h, fmt.Sprint("/complete/t3.", i), strings.NewReader("1")); response.StatusCode != http.StatusNoContent {
				t.Error(response.Status)
			}
		})
		<-f.entered
	}
	if response := post(h, "/complete/t3.a", unreadBody{t}); response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") != "1" {
		t.Errorf("one more: %s", response.Status)
	}
	close(f.leave)
	serving.Wait()
	go func() { <-f.entered }()
	if response := post(h, "/complete/t3.a", strings.NewReader("1")); response.StatusCode != http.StatusNoContent {
		t.Errorf("after the others: %s", response.Status)
	}
}

// The holder of one token, valid or used, does not keep others out.
func TestHandler_BoundsRequestsForOneInstance(t *testing.T) {
	f := &fakeCluster{entered: make(chan struct{}), leave: make(chan struct{})}
	h := f.handler()
	var serving sync.WaitGroup
	serve := func(instance string) {
		serving.Go(func() {
			if response := post(h, "/complete/t3."+instance, strings.NewReader("1")); response.StatusCode != http.StatusNoContent {
				t.Error(response.Status)
			}
		})
		<-f.entered
	}
	for range instanceMax {
		serve("a")
	}
	if response := post(h, "/complete/t3.a", unreadBody{t}); response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one more: %s", response.Status)
	}
	serve("b")
	close(f.leave)
	serving.Wait()
	go func() { <-f.entered }()
	if response := post(h, "/complete/t3.a", strings.NewReader("1")); response.StatusCode != http.StatusNoContent {
		t.Errorf("after the others: %s", response.Status)
	}
}

// Without verification, forged tokens that name an instance keep no genuine one out, and one remote
// address does not occupy all slots.
func TestHandler_BoundsUnverifiedRequests(t *testing.T) {
	f := &fakeCluster{entered: make(chan struct{}), leave: make(chan struct{})}
	config := f.config()
	config.IsUnverified = true
	config.Verify = func(context.Context, string) (string, error) { return "a", nil } // whatever is forged
	h := NewHandler(config)
	send := func(token, address string, body io.Reader) int {
		recorder, request := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/complete/t3."+token, body)
		request.RemoteAddr = address
		h.ServeHTTP(recorder, request)
		return recorder.Code
	}
	var serving sync.WaitGroup
	serve := func(token, address string) {
		serving.Go(func() {
			if status := send(token, address, strings.NewReader("1")); status != http.StatusNoContent {
				t.Errorf("%s from %s: %d", token, address, status)
			}
		})
		<-f.entered
	}
	for i := range addressMax {
		serve(fmt.Sprint("forged-", i), fmt.Sprintf("[2001:db8::%x]:%d", i, 1024+i))
	}
	for range instanceMax {
		serve("genuine", "192.0.2.1:443")
	}
	for _, refused := range [][2]string{{"forged", "[2001:db8::1:1]:443"}, {"genuine", "192.0.2.1:443"}} {
		if status := send(refused[0], refused[1], unreadBody{t}); status != http.StatusServiceUnavailable {
			t.Errorf("one more of %s: %d", refused, status)
		}
	}
	serve("other", "[2001:db8:0:1::1]:443")
	close(f.leave)
	serving.Wait()
}

// A pipeListener accepts one connection in memory.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	close  sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.close.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// A body that does not arrive occupies a slot for a bounded time; one that has arrived does not end
// its call later.
func TestHandler_BoundsTimeForBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeCluster{entered: make(chan struct{}), leave: make(chan struct{})}
		listener := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
		contexts := make(chan context.Context, 2)
		h := f.handler()
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			contexts <- r.Context()
			h.ServeHTTP(w, r)
		})}
		go func() { _ = server.Serve(listener) }()
		send := func(body string) net.Conn {
			mine, its := net.Pipe()
			listener.conns <- its
			if _, err := fmt.Fprintf(mine, "POST /complete/t3.a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n%s", body); err != nil {
				t.Error(err)
			}
			return mine
		}
		began := time.Now()
		slow := send("1")
		status := make([]byte, len("HTTP/1.1 408"))
		if _, err := io.ReadFull(slow, status); err != nil || string(status) != "HTTP/1.1 408" || time.Since(began) != bodyTimeout {
			t.Errorf("half a body: %q, %v, after %v", status, err, time.Since(began))
		}
		<-contexts
		complete := send("12")
		<-f.entered
		ctx := <-contexts
		time.Sleep(2 * bodyTimeout)
		synctest.Wait()
		if ctx.Err() != nil {
			t.Errorf("the call of a request whose body has arrived ends: %v", ctx.Err())
		}
		close(f.leave)
		if _, err := io.ReadFull(complete, status); err != nil || string(status) != "HTTP/1.1 204" {
			t.Errorf("a whole body: %q, %v", status, err)
		}
		_ = slow.Close()
		_ = complete.Close()
		_ = server.Close()
	})
}
