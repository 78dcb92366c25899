package api

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tenuto-dev/tenuto/cluster/internal/bulk"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// hides reports whether a payload is hidden.
func (c *Config) hides(info replay.PayloadInfo) bool { return c.Redact != nil && c.Redact(info) }

// hidesAttribute reports whether the values of an attribute are hidden.
func (c *Config) hidesAttribute(name string) bool {
	return c.hides(replay.PayloadInfo{Kind: "attribute", Name: name, Part: "value"})
}

// attributesOf returns the attributes that are shown, and the names of the others.
func (a *API) attributesOf(all map[string]string) (shown map[string]string, hidden []string) {
	if a.config.Redact == nil {
		return all, nil
	}
	shown = maps.Clone(all)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if a.config.hidesAttribute(name) {
			delete(shown, name)
			hidden = append(hidden, name)
		}
	}
	return shown, hidden
}

// hidesData reports whether the data of the event that a bulk job sends is hidden.
func (c *Config) hidesData(arguments map[string]string) bool {
	_, ok := arguments[bulk.ArgumentData]
	return ok && c.hides(replay.PayloadInfo{Kind: "event", Name: arguments[bulk.ArgumentEvent], Part: "data"})
}

// argumentsOf returns the arguments of a bulk job that are shown, and the names of the others.
func (a *API) argumentsOf(all map[string]string) (shown map[string]string, hidden []string) {
	if !a.config.hidesData(all) {
		return all, nil
	}
	shown = maps.Clone(all)
	delete(shown, bulk.ArgumentData)
	return shown, []string{bulk.ArgumentData}
}

// errorViewOf returns an error of a run or an operation. If its text would show a part of a hidden
// payload, the view says only which payload it concerns.
func (a *API) errorViewOf(err error) *errorView {
	if err == nil {
		return nil
	}
	view := &errorView{Message: err.Error()}
	var recorded *replay.Error
	if errors.As(err, &recorded) {
		view.Code = recorded.Code
	}
	var refused *replay.PayloadError
	if errors.As(err, &refused) && a.config.hides(refused.PayloadInfo) {
		view.Message = "cannot " + refused.Verb + " " + refused.PayloadInfo.String() + ": the reason is hidden"
	}
	return view
}

// An eventViewer makes views of the events of an instance, which must be passed in order.
// Options.Redact needs the names of activities and orchestrations also for results and outputs.
// Their events do not have these names, so the viewer reads them from earlier events.
type eventViewer struct {
	api             *API
	watch           func(ctx context.Context, from history.Position) iter.Seq2[history.Event, error]
	payloads, whole bool

	execution uint64
	// names has the name of the orchestration by orchestrationKey, those of operations by the
	// event_id of their scheduling events, and those of updates by the label of their results.
	names map[string]string
}

func (a *API) newEventViewer(id string, payloads, whole bool) *eventViewer {
	return &eventViewer{api: a, payloads: payloads, whole: whole, names: map[string]string{},
		watch: func(ctx context.Context, from history.Position) iter.Seq2[history.Event, error] {
			return a.config.Client.Watch(ctx, id, from)
		}}
}

// payloadOf returns the payload of an event. It hides one whose name cannot be found.
func (v *eventViewer) payloadOf(ctx context.Context, e history.Event, p part) *payload {
	if v.api.config.Redact == nil {
		return v.api.payloadOf(replay.PayloadInfo{}, v.whole, e.Decode)
	}
	v.note(e)
	info, ok := v.infoOf(ctx, e, p)
	if !ok {
		return &payload{Redacted: true}
	}
	return v.api.payloadOf(info, v.whole, e.Decode)
}

const orchestrationKey = "orchestration"

// note keeps the names that an event has.
func (v *eventViewer) note(e history.Event) {
	if e.Execution != v.execution {
		v.execution = e.Execution
		clear(v.names)
	}
	switch {
	case e.Type == history.OrchestrationStarted:
		v.names[orchestrationKey] = e.Name
	case e.Type == history.ActivityScheduled, e.Type == history.SubOrchestrationScheduled:
		v.names[strconv.FormatUint(e.EventID, 10)] = e.Name
	case e.Type == history.ExternalEvent && strings.HasPrefix(e.Name, engine.UpdatePrefix):
		v.names[engine.UpdatePrefix+e.RequestID()] = strings.TrimPrefix(e.Name, engine.UpdatePrefix)
	}
}

// infoOf returns what the payload of an event is; ok is false if its name cannot be found.
func (v *eventViewer) infoOf(ctx context.Context, e history.Event, p part) (info replay.PayloadInfo, ok bool) {
	info = replay.PayloadInfo{Kind: p.kind, Name: e.Name, Part: cmp.Or(p.part, p.field)}
	key, from := "", uint64(1)
	switch update := strings.HasPrefix(e.Name, engine.UpdatePrefix); {
	case update && e.Type == history.ExternalEvent:
		return replay.PayloadInfo{Kind: "update", Name: strings.TrimPrefix(e.Name, engine.UpdatePrefix), Part: "input"}, true
	case update && e.Type == history.SideEffectRecorded:
		info.Kind, info.Part, key = "update", "result", e.Name
	case e.Type == history.ActivityCompleted, e.Type == history.SubOrchestrationCompleted:
		key, from = strconv.FormatUint(e.SourceEventID, 10), e.SourceEventID
		defer delete(v.names, key) // an operation has one result
	case e.Type == history.OrchestrationCompleted, e.Type == history.OrchestrationContinuedAsNew, e.Type == history.StatusSet:
		key = orchestrationKey
	default:
		return info, true
	}
	if _, known := v.names[key]; !known {
		v.readNames(ctx, key, history.Position{Execution: e.Execution, EventID: from}, e.EventID)
	}
	info.Name, ok = v.names[key]
	return info, ok
}

// namesAhead is how many events readNames reads after the scheduling event of an operation.
const namesAhead = 256

// readNames reads names from the events of an execution from a position on and before the event
// that was passed. It stops at the name with the key; after that of an operation it reads
// namesAhead more events.
func (v *eventViewer) readNames(ctx context.Context, key string, from history.Position, before uint64) {
	for e, err := range v.watch(ctx, from) {
		if err != nil || e.Execution != from.Execution || e.EventID >= before {
			return
		}
		v.note(e)
		_, known := v.names[key]
		if known && (from.EventID == 1 || e.EventID >= from.EventID+namesAhead) {
			return
		}
	}
}
