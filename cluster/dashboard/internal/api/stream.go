package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

const (
	topicsMax     = 20               // of one stream
	sendInterval  = time.Second / 2  // between two messages of a topic
	aliveInterval = 15 * time.Second // between two messages of a stream, at most
	writeTimeout  = 10 * time.Second
)

// streams are the topics that are followed now. Streams of one topic share its work.
type streams struct {
	max, topicsMax int // of open streams, and of topics with different keys

	mu     sync.Mutex
	open   int
	topics map[string]*topic
}

// pause returns how long a topic waits after a read that took some time. All topics together read
// for 1/readPart of the time, or for more of it if the pauses would be longer than readIntervalMax.
func (s *streams) pause(took time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return min(max(readInterval, time.Duration(readPart*len(s.topics))*took), readIntervalMax)
}

func newStreams(most, topics int) *streams {
	return &streams{max: most, topicsMax: topics, topics: map[string]*topic{}}
}

// enter counts a stream until release is called. The error says that there are too many.
func (s *streams) enter() (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open >= s.max {
		return nil, &statusError{
			status: http.StatusServiceUnavailable, code: "too_many_streams", message: fmt.Sprintf("%d streams are open, the maximum", s.max),
		}
	}
	s.open++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open--
	}, nil
}

// topic is what some streams follow. Its producer runs while it has subscribers.
type topic struct {
	cancel      context.CancelFunc
	ended       chan struct{} // closed when the producer has returned
	mu          sync.Mutex
	subscribers map[*subscriber]bool
	latest      []message // of each kind that new subscribers get
}

// message is an event of a stream.
type message struct {
	kind string // the last part of its name
	data []byte
}

// publisher passes messages of a topic to its subscribers.
type publisher func(kind string, data any)

func (t *topic) publish(kind string, data any) {
	text, err := json.Marshal(data)
	if err != nil {
		return // views are always valid
	}
	m := message{kind, text}
	t.mu.Lock()
	defer t.mu.Unlock()
	if kind == "state" || kind == "changed" || kind == "count" {
		t.latest = append(slices.DeleteFunc(t.latest, func(old message) bool { return old.kind == kind }), m)
	}
	for s := range t.subscribers {
		s.add(t, m)
	}
}

// follow subscribes to the topic with a key, whose events get the name, and begins its producer if
// it is the first to do so. leave ends the subscription, and waits for the end of the producer if
// it was the last. The error says that there are too many topics: each has a producer that reads.
func (s *streams) follow(key, name string, to *subscriber, produce func(context.Context, publisher)) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[key]
	if t == nil && hasArgument(key) && s.bounded() >= s.topicsMax {
		return nil, &statusError{http.StatusServiceUnavailable, "too_many_topics", "topics",
			fmt.Sprintf("topics: streams already follow %d different topics, the maximum", s.topicsMax)}
	}
	if t == nil {
		ctx, cancel := context.WithCancel(context.Background())
		t = &topic{cancel: cancel, ended: make(chan struct{}), subscribers: map[*subscriber]bool{}}
		s.topics[key] = t
		go func() {
			defer close(t.ended)
			produce(ctx, t.publish)
		}()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	to.join(t, name)
	t.subscribers[to] = true
	for _, m := range t.latest {
		to.add(t, m)
	}
	return func() { s.leave(key, t, to) }, nil
}

// hasArgument reports whether there are many topics of the kind of one with a key.
func hasArgument(key string) bool { return strings.Contains(key, ":") }

// bounded returns how many topics count to topicsMax: not the few that all users share, which can
// then always be followed. The caller holds the mutex.
func (s *streams) bounded() (n int) {
	for key := range s.topics {
		if hasArgument(key) {
			n++
		}
	}
	return n
}

// followAll subscribes to all topics, or to none if there is an error.
func (s *streams) followAll(topics map[string]followedTopic, to *subscriber) (leave func(), err error) {
	var leaves []func()
	leave = func() {
		for _, each := range leaves {
			each()
		}
	}
	for name, topic := range topics {
		each, err := s.follow(topic.key, name, to, topic.produce)
		if err != nil {
			leave()
			return nil, err
		}
		leaves = append(leaves, each)
	}
	return leave, nil
}

func (s *streams) leave(key string, t *topic, to *subscriber) {
	s.mu.Lock()
	t.mu.Lock()
	delete(t.subscribers, to)
	last := len(t.subscribers) == 0
	if last {
		delete(s.topics, key)
	}
	t.mu.Unlock()
	s.mu.Unlock()
	if last {
		t.cancel()
		<-t.ended
	}
}

// recovering returns a producer that ends with an error if code of the user, such as a codec or
// Options.Redact, panics. No HTTP server recovers panics of goroutines that streams share.
func recovering(logger *slog.Logger, produce func(context.Context, publisher)) func(context.Context, publisher) {
	return func(ctx context.Context, publish publisher) {
		defer func() {
			if cause := recover(); cause != nil {
				logger.Error("stream of the dashboard panicked, and its topic has ended", "panic", cause, "stack", string(debug.Stack()))
				publish("error", errorAnswer{errorDetail{Code: "internal", Message: "the topic has ended: its reader panicked"}})
			}
		}()
		produce(ctx, publish)
	}
}

// subscriber is a stream. It holds at most one message for each kind of each topic: a reader that
// is slow gets the latest state.
type subscriber struct {
	wake chan struct{} // holds one value while there are messages

	mu      sync.Mutex
	names   map[*topic]string
	waiting map[string]json.RawMessage // by the name of the event
	order   []string
}

func newSubscriber() *subscriber {
	return &subscriber{names: map[*topic]string{}, wake: make(chan struct{}, 1), waiting: map[string]json.RawMessage{}}
}

// join names the events of a topic. Producers of other topics may add messages meanwhile.
func (s *subscriber) join(t *topic, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names[t] = name
}

// add keeps a message until it is sent. Events of a history that meet others become the note that
// the history has changed, so that the reader reads it.
func (s *subscriber) add(t *topic, m message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := s.names[t] + "-" + m.kind
	if _, waits := s.waiting[name]; waits && m.kind == "events" {
		name, m.data = s.names[t]+"-changed", []byte("{}")
	}
	if _, waits := s.waiting[name]; !waits {
		s.order = append(s.order, name)
	}
	s.waiting[name] = m.data
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take returns what waits, in order.
func (s *subscriber) take() (names []string, data map[string]json.RawMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	names, data = s.order, s.waiting
	s.order, s.waiting = nil, map[string]json.RawMessage{}
	return names, data
}

// eventWriter writes server-sent events.
type eventWriter struct {
	w    http.ResponseWriter
	rest *http.ResponseController
	text bytes.Buffer
}

// newEventWriter begins a stream. The error says that it cannot be one: nothing was written.
func newEventWriter(w http.ResponseWriter) (*eventWriter, error) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // a proxy must not hold events back
	out := &eventWriter{w: w, rest: http.NewResponseController(w)}
	_ = out.rest.SetWriteDeadline(time.Now().Add(writeTimeout))
	if err := out.rest.Flush(); errors.Is(err, http.ErrNotSupported) {
		return nil, fmt.Errorf("a handler around the dashboard passes a %T, which has neither Flush nor Unwrap: %w", w, err)
	}
	out.comment()
	return out, nil
}

func (o *eventWriter) comment() error {
	o.text.WriteString(":\n\n")
	return o.flush()
}

// send writes an event. The error means that the client has gone.
func (o *eventWriter) send(name, id string, data any) error {
	text, err := json.Marshal(data)
	if err != nil {
		return err
	}
	o.write(name, id, text)
	return o.flush()
}

func (o *eventWriter) write(name, id string, data []byte) {
	if id != "" {
		fmt.Fprintf(&o.text, "id: %s\n", id)
	}
	fmt.Fprintf(&o.text, "event: %s\ndata: %s\n\n", name, data)
}

func (o *eventWriter) flush() error {
	_ = o.rest.SetWriteDeadline(time.Now().Add(writeTimeout)) // some writers have no deadline
	_, err := o.w.Write(o.text.Bytes())
	o.text.Reset()
	if err != nil {
		return err
	}
	return o.rest.Flush()
}

func errorAnswerOf(err error) errorAnswer {
	_, detail := answerOf(err)
	return errorAnswer{detail}
}

func positionText(p history.Position) string { return fmt.Sprintf("%d,%d", p.Execution, p.EventID) }

// followedTopic is a topic of one stream.
type followedTopic struct {
	key     string
	produce func(context.Context, publisher)
}

// followed returns topics, if the user may follow all of them.
func (a *API) followed(r *request, names []string) (map[string]followedTopic, error) {
	topics := map[string]followedTopic{}
	for _, name := range names {
		key, produce, err := a.producer(r, name)
		if err != nil {
			return nil, err
		}
		topics[name] = followedTopic{key, recovering(a.config.Logger, produce)}
	}
	return topics, nil
}

// whilePermitted returns a context for a stream. It ends when the request does, or when its user is
// no longer known, may do less, or a check fails: a client that connects again is told why. end
// waits for the last check.
func (a *API) whilePermitted(r *request, check func(*request) error) (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancel(r.context())
	ended := make(chan struct{})
	sawMembers := r.seesMembers()
	go func() {
		defer close(ended)
		defer cancel()
		for wait(ctx, a.recheck) {
			again, err := a.identify(r.Request)
			if err != nil || again.user != r.user || again.seesMembers() != sawMembers || check(again) != nil {
				return
			}
		}
	}()
	return ctx, func() {
		cancel()
		<-ended
	}
}

// serveEvents serves the topics that a page follows.
func (a *API) serveEvents(w http.ResponseWriter, r *request) error {
	if err := r.ParseForm(); err != nil {
		return &replay.InvalidError{Field: "topics", Reason: err.Error()}
	}
	names := r.Form["topics"]
	if len(names) == 0 || len(names) > topicsMax {
		return &replay.InvalidError{Field: "topics", Reason: fmt.Sprintf("must occur 1 to %d times", topicsMax)}
	}
	topics, err := a.followed(r, names)
	if err != nil {
		return err
	}
	if r.Method == http.MethodHead {
		_, err := newEventWriter(w)
		return err
	}
	release, err := a.streams.enter()
	if err != nil {
		return err
	}
	defer release()
	ctx, end := a.whilePermitted(r, func(r *request) error {
		_, err := a.followed(r, names)
		return err
	})
	defer end()
	s := newSubscriber()
	leave, err := a.streams.followAll(topics, s)
	if err != nil {
		return err
	}
	defer leave()
	out, err := newEventWriter(w)
	if err == nil {
		s.sendTo(ctx, out)
	}
	return err
}

// sendTo sends what the subscriber gets, until the context ends or the client has gone.
func (s *subscriber) sendTo(ctx context.Context, out *eventWriter) {
	alive := time.NewTicker(aliveInterval)
	defer alive.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-alive.C:
			if out.comment() != nil {
				return
			}
		case <-s.wake:
			names, data := s.take()
			for _, name := range names {
				out.write(name, "", data[name])
			}
			if out.flush() != nil || !wait(ctx, sendInterval) {
				return
			}
		}
	}
}

// wait waits, false if the context ends meanwhile.
func wait(ctx context.Context, d time.Duration) bool { return admission.Sleep(ctx, nil, d) == nil }
