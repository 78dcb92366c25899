package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/filter"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
	"github.com/tenuto-dev/tenuto/replay/history"
)

const (
	readInterval    = time.Second      // between two reads for a topic, at least
	readIntervalMax = 10 * time.Second // at most
	readPart        = 50               // topics pause so that all together read for a fiftieth of the time
	retryInterval   = 2 * time.Second  // after an error
	eventsAtOnce    = 500              // of a history in one message
)

// producer returns what publishes a topic, if the user may follow it. Streams share the work for
// topics with the same key; users who may not see members follow an overview with another key.
// Topics are "overview", "cluster", "code", "instance:ID" and "list:FILTER".
func (a *API) producer(r *request, name string) (key string, produce func(context.Context, publisher), err error) {
	kind, argument, _ := strings.Cut(name, ":")
	switch {
	case strings.ContainsAny(name, "\r\n"):
		return "", nil, &replay.InvalidError{Field: "topics", Reason: "must not contain line breaks"}
	case kind == "instance" && !engine.ValidInstanceID(argument):
		return "", nil, &replay.InvalidError{Field: "topics", Reason: fmt.Sprintf("names the instance %.140q, which is no valid ID", argument)}
	case kind != name && kind != "list" && kind != "instance":
		kind = "" // the others have no argument
	}
	switch kind {
	case "overview":
		if !r.seesMembers() {
			read := func(ctx context.Context) (*overviewAnswer, error) { return a.cluster.overviewOf(ctx, overviewTimeout) }
			return "overview without members", followState(read), r.authorize(cluster.ActionList, "")
		}
		return name, followState(a.cluster.overview), r.authorize(cluster.ActionList, "")
	case "cluster":
		return name, followState(a.cluster.cluster), r.authorize(cluster.ActionSeeMembers, "")
	case "code":
		return name, followState(a.cluster.code), r.authorize(cluster.ActionSeeMembers, "")
	case "list":
		f, err := filter.Parse(argument, time.Now())
		if err != nil {
			return "", nil, err
		}
		return name, func(ctx context.Context, publish publisher) { a.followList(ctx, argument, f, publish) }, r.authorize(cluster.ActionList, "")
	case "instance":
		return name, func(ctx context.Context, publish publisher) { a.followInstance(ctx, argument, publish) },
			r.authorize(cluster.ActionHistory, argument)
	}
	return "", nil, &replay.InvalidError{Field: "topics", Reason: `must be "overview", "cluster", "code", "instance:ID" or "list:FILTER"`}
}

// A comparison detects changes of what a topic shows.
type comparison struct{ last []byte }

// next encodes what is shown now, and reports whether it differs from the last text, or is the
// first.
func (c *comparison) next(shown any) (text []byte, changed bool) {
	text, _ = json.Marshal(shown) // views are always valid
	changed = !bytes.Equal(text, c.last)
	c.last = text
	return text, changed
}

// publish publishes what is shown now if it differs from the last.
func (c *comparison) publish(publish publisher, kind string, shown any) {
	if text, changed := c.next(shown); changed {
		publish(kind, json.RawMessage(text))
	}
}

// followState returns a producer that publishes a state whenever it has changed.
func followState[A any](read func(ctx context.Context) (A, error)) func(context.Context, publisher) {
	return func(ctx context.Context, publish publisher) {
		var states comparison
		for {
			state, err := read(ctx)
			pause := readInterval // such a read mostly waits for other nodes, and there are few of these topics
			if err != nil {
				pause = max(pause, retryInterval)
				publish("error", errorAnswerOf(err))
			} else {
				states.publish(publish, "state", state)
			}
			if !wait(ctx, pause) {
				return
			}
		}
	}
}

// listState is the first page of a list, as a topic has it.
type listState struct {
	Instances []*instanceView `json:"instances"`
	Next      string          `json:"next"`
}

// followList publishes the first page of a list and its count, as bounded as those of pages,
// whenever they have changed. It publishes the first of some equal errors.
func (a *API) followList(ctx context.Context, text string, f cluster.Filter, publish publisher) {
	var pages, counts comparison
	for {
		began := time.Now()
		if page, err := a.config.Client.List(ctx, f, "", pageDefault, cluster.Stale()); err != nil {
			pages.publish(publish, "error", errorAnswerOf(err))
		} else {
			pages.publish(publish, "state", listState{a.viewsOf(page), page.Next})
		}
		if count, err := a.counts.get(ctx, text, countMax); err == nil {
			counts.publish(publish, "count", count)
		}
		if !wait(ctx, a.streams.pause(time.Since(began))) {
			return
		}
	}
}

// eventsMessage holds new events of an instance.
type eventsMessage struct {
	Events []*eventView `json:"events"`
}

// followInstance publishes the events of an instance as they are committed. It publishes "changed"
// when something has changed that the history does not show: attempts of open activities, or why
// the instance does not proceed. It does so at the beginning too, so that pages read the events
// before the first one that it publishes.
func (a *API) followInstance(ctx context.Context, id string, publish publisher) {
	from, ok := a.nextPosition(ctx, id, publish)
	if !ok {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	events := make(chan *eventView, eventsAtOnce)
	defer func() {
		cancel()
		<-watched
	}()
	go func() {
		defer close(watched)
		recovering(a.config.Logger, func(ctx context.Context, _ publisher) { a.watchEvents(ctx, id, from, events) })(ctx, publish)
	}()
	publish("changed", struct{}{})
	read := time.NewTicker(2 * readInterval)
	defer read.Stop()
	var unrecorded comparison
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			publish("events", eventsMessage{collect(e, events)})
		case <-read.C:
			shown, err := a.unrecorded(ctx, id)
			if err != nil {
				unrecorded.publish(publish, "error", errorAnswerOf(err))
			} else if shown != nil {
				if _, changed := unrecorded.next(shown); changed {
					publish("changed", struct{}{})
				}
			}
		}
	}
}

// collect returns an event and those that wait after it.
func collect(first *eventView, events <-chan *eventView) []*eventView {
	all := []*eventView{first}
	for len(all) < eventsAtOnce {
		select {
		case e := <-events:
			all = append(all, e)
		default:
			return all
		}
	}
	return all
}

// nextPosition returns the position of the next event of an instance, once it exists; false if the
// context ends before. Until then it publishes the errors of reading.
func (a *API) nextPosition(ctx context.Context, id string, publish publisher) (history.Position, bool) {
	var errs comparison
	for {
		status, err := a.config.Client.Get(ctx, id, cluster.Stale())
		switch {
		case err == nil && status.Ended():
			return history.Position{Execution: status.Execution + 1, EventID: 1}, true
		case err == nil:
			return history.Position{Execution: status.Execution, EventID: status.LastEventID + 1}, true
		case !errors.Is(err, cluster.ErrNotFound):
			errs.publish(publish, "error", errorAnswerOf(err))
		}
		if !wait(ctx, retryInterval) {
			return history.Position{}, false
		}
	}
}

// watchEvents passes the events from a position on, also those of later runs, until the context
// ends.
func (a *API) watchEvents(ctx context.Context, id string, from history.Position, events chan<- *eventView) {
	viewer := a.newEventViewer(id, true, false)
	for {
		for e, err := range a.config.Client.Watch(ctx, id, from) {
			if err != nil {
				break
			}
			if from = e.Next(); e.Type.EndsExecution() && e.Type != history.OrchestrationContinuedAsNew {
				from = history.Position{Execution: e.Execution + 1, EventID: 1}
			}
			select {
			case events <- viewer.view(ctx, e):
			case <-ctx.Done():
				return
			}
		}
		if !wait(ctx, retryInterval) {
			return
		}
	}
}

// unrecordedState is what the history does not show of an instance.
type unrecordedState struct {
	State   cluster.State
	Pending [][]any
}

// unrecorded returns what the history does not show of an instance; nil if the leader does not say
// it. The error is that of reading the instance.
func (a *API) unrecorded(ctx context.Context, id string) (*unrecordedState, error) {
	status, err := a.config.Client.Get(ctx, id, cluster.Stale())
	if err != nil {
		return nil, err
	}
	shown := &unrecordedState{State: status.State}
	if status.Ended() {
		return shown, nil
	}
	ctx, cancel := context.WithTimeout(ctx, retryInterval)
	defer cancel()
	open, err := a.config.Client.Pending(ctx, id)
	if err != nil {
		return nil, nil
	}
	for _, o := range open[:min(len(open), eventsAtOnce)] {
		shown.Pending = append(shown.Pending, []any{o.EventID, o.State, o.FailedAttempts, o.AttemptStarted, o.Held, o.PausedBy, o.NextAttempt, o.Buffered})
	}
	return shown, nil
}
