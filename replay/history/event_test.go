package history_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tenuto-dev/tenuto/internal/eventpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

var eventTypes = []history.EventType{
	history.OrchestrationStarted, history.OrchestrationCompleted, history.OrchestrationFailed, history.OrchestrationCanceled,
	history.OrchestrationTerminated, history.OrchestrationContinuedAsNew, history.OrchestrationCancelRequested,
	history.OrchestrationSuspended, history.OrchestrationResumed, history.ActivityScheduled, history.ActivityCompleted,
	history.ActivityFailed, history.TimerCreated, history.TimerFired, history.ExternalSubscribed, history.ExternalEvent,
	history.SubOrchestrationScheduled, history.SubOrchestrationCompleted, history.SubOrchestrationFailed,
	history.OrchestrationChained, history.CancelRequested, history.SideEffectRecorded, history.StatusSet, history.AttributeSet, history.ValueSet,
	history.MessageSent, history.MessageDelivered, history.MessageRejected, history.OperationControlled, history.HistoryCopied,
}

// filledBody returns an event with the given body, in which names, payloads and errors are set.
func filledBody(field protoreflect.FieldDescriptor) (event *journalpb.Event, names, payloads, failures int) {
	event = &journalpb.Event{EventId: 3, Timestamp: 1e9, SourceEventId: 2}
	body := event.ProtoReflect().Mutable(field).Message()
	fields := body.Descriptor().Fields()
	for i := range fields.Len() {
		switch f := fields.Get(i); {
		case slices.Contains([]protoreflect.Name{"name", "label", "event_name", "map"}, f.Name()):
			body.Set(f, protoreflect.ValueOfString("n"))
			names++
		case f.Message() == nil || f.IsList() || f.IsMap():
		case f.Message().Name() == "ExternalEvent":
			sent := &journalpb.ExternalEvent{Name: "n", Data: &journalpb.Payload{Data: []byte(`"p"`)}}
			body.Set(f, protoreflect.ValueOfMessage(sent.ProtoReflect()))
			names++
			payloads++
		case f.Message().Name() == "Payload" && !(f.Name() == "status" && field.Name() == "orchestration_started"):
			body.Set(f, protoreflect.ValueOfMessage((&journalpb.Payload{Data: []byte(`"p"`)}).ProtoReflect()))
			payloads++
		case f.Message().Name() == "Error":
			body.Set(f, protoreflect.ValueOfMessage((&journalpb.Error{Message: "wrong"}).ProtoReflect()))
			failures++
		}
	}
	return event, names, payloads, failures
}

// Every event type of the schema has a constant, and its name, payload and error can be read.
func TestEvent_EveryType(t *testing.T) {
	bodies := new(journalpb.Event).ProtoReflect().Descriptor().Oneofs().ByName("body").Fields()
	if bodies.Len() != len(eventTypes) {
		t.Errorf("%d event types, %d constants", bodies.Len(), len(eventTypes))
	}
	for i := range bodies.Len() {
		message, names, payloads, failures := filledBody(bodies.Get(i))
		event := eventpb.New(4, message)
		if !slices.Contains(eventTypes, event.Type) {
			t.Errorf("no constant for %s", event.Type)
		}
		if event.Type.EndsExecution() != journalpb.IsTerminal(message.TypeNumber()) {
			t.Errorf("%s ends its execution: %v", event.Type, event.Type.EndsExecution())
		}
		if event.Execution != 4 || event.EventID != 3 || event.SourceEventID != 2 || !event.Time.Equal(time.Unix(1, 0)) {
			t.Errorf("%s has the fields %+v", event.Type, event)
		}
		if event.Name != strings.Repeat("n", names) {
			t.Errorf("%s has the name %q", event.Type, event.Name)
		}
		var text string
		if err := event.Decode(&text); err != nil || text != strings.Repeat("p", payloads) {
			t.Errorf("%s has the payload %q, %v", event.Type, text, err)
		}
		if err := event.Err(); failures > 0 != (err != nil) || err != nil && err.Error() != "wrong" {
			t.Errorf("%s has the error %v", event.Type, err)
		}
		var mismatched *replay.PayloadError
		if err := event.Decode(new(int)); payloads > 0 != errors.As(err, &mismatched) {
			t.Errorf("%s: decoded to a number: %v", event.Type, err)
		}
		if !strings.HasPrefix(event.String(), string(event.Type)) {
			t.Errorf("%s is shown as %s", event.Type, event)
		}
	}
}

func TestEvent_FieldsOfSomeTypes(t *testing.T) {
	failed := eventpb.New(1, &journalpb.Event{Body: &journalpb.Event_ActivityFailed{ActivityFailed: &journalpb.ActivityFailed{Attempts: 3}}})
	completed := eventpb.New(1, &journalpb.Event{Body: &journalpb.Event_ActivityCompleted{ActivityCompleted: &journalpb.ActivityCompleted{Attempts: 2}}})
	child := eventpb.New(1, &journalpb.Event{Body: &journalpb.Event_SubOrchestrationScheduled{SubOrchestrationScheduled: &journalpb.SubOrchestrationScheduled{Instance: "c"}}})
	chained := eventpb.New(1, &journalpb.Event{Body: &journalpb.Event_OrchestrationChained{OrchestrationChained: &journalpb.OrchestrationChained{Instance: "d"}}})
	created := eventpb.New(1, &journalpb.Event{Body: &journalpb.Event_TimerCreated{TimerCreated: &journalpb.TimerCreated{FireAt: 5e9}}})
	fired := eventpb.New(1, &journalpb.Event{Body: &journalpb.Event_TimerFired{TimerFired: &journalpb.TimerFired{FireAt: 6e9}}})
	resumed := eventpb.New(1, &journalpb.Event{Body: &journalpb.Event_OrchestrationResumed{OrchestrationResumed: &journalpb.OrchestrationResumed{RequestId: "r"}}})
	for i, event := range []history.Event{failed, completed, child, chained, created, fired, resumed, {}} {
		got := fmt.Sprint(event.Attempts(), event.Child(), event.FireAt().Unix(), event.RequestID())
		none := time.Time{}.Unix()
		want := []string{
			fmt.Sprint(3, "", none, ""), fmt.Sprint(2, "", none, ""), fmt.Sprint(0, "c", none, ""), fmt.Sprint(0, "d", none, ""),
			fmt.Sprint(0, "", 5, ""), fmt.Sprint(0, "", 6, ""), fmt.Sprint(0, "", none, "r"), fmt.Sprint(0, "", none, ""),
		}[i]
		if got != want {
			t.Errorf("%s: %s; want %s", event.Type, got, want)
		}
	}
}

func TestEvent_Zero(t *testing.T) {
	var zero history.Event
	encoded, err := zero.MarshalJSON()
	if zero.String() != "Unknown" || zero.Decode(new(int)) != nil || zero.Err() != nil || string(encoded) != "{}" || err != nil {
		t.Errorf("%s, %v, %v, %s, %v", zero, zero.Decode(new(int)), zero.Err(), encoded, err)
	}
	if opened, err := zero.Open(replay.PayloadConverter{}); err != nil || !opened.Equal(zero) {
		t.Errorf("opened: %v, %v", opened, err)
	}
}

func TestEvent_JSONRoundTrip(t *testing.T) {
	for _, h := range histories(t) {
		lines := strings.Split(write(t, h), "\n")[1:]
		for i, event := range h.Events {
			encoded, err := event.MarshalJSON()
			if err != nil || string(encoded) != strings.TrimSuffix(lines[i], ",") {
				t.Errorf("event %d is %s, %v; Write wrote %s", i+1, encoded, err, lines[i])
			}
			reread := history.Event{Execution: event.Execution}
			if err := json.Unmarshal(encoded, &reread); err != nil || !reread.Equal(event) {
				t.Errorf("%s was read as %v, %v", encoded, reread, err)
			}
		}
	}
	event := history.Event{EventID: math.MaxUint64}
	if err := json.Unmarshal([]byte(`{"unknown":1}`), &event); err == nil || event.EventID != math.MaxUint64 {
		t.Errorf("an unknown field: %v, %v", event, err)
	}
}

func TestEvent_Equal(t *testing.T) {
	message := &journalpb.Event{EventId: 1, Timestamp: 2}
	event, same := eventpb.New(1, message), eventpb.New(1, proto.CloneOf(message))
	other, later := eventpb.New(1, &journalpb.Event{EventId: 1, Timestamp: 3}), eventpb.New(2, message)
	if !event.Equal(same) || event.Equal(other) || event.Equal(later) || event.Equal(history.Event{}) {
		t.Errorf("%v, %v, %v, %v", event.Equal(same), event.Equal(other), event.Equal(later), event.Equal(history.Event{}))
	}
}

func ExampleRead() {
	recorded := `{"format":"tenuto.history/1","instance":"order-17","execution":1,"events":[
{"eventId":"1","timestamp":"1767225600000000000","orchestrationStarted":{"name":"checkout","input":{"json":"book"}}},
{"eventId":"2","timestamp":"1767225600000000000","activityScheduled":{"name":"charge","input":{"json":"book"}}},
{"eventId":"3","timestamp":"1767225602000000000","sourceEventId":"2","activityCompleted":{"result":{"json":12},"attempts":1}}
]}`
	h, err := history.Read(strings.NewReader(recorded))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, event := range h.Events {
		if event.Type == history.ActivityCompleted {
			var price int
			err := event.Decode(&price)
			fmt.Println("the activity scheduled by event", event.SourceEventID, "returned", price, err)
		}
	}
	fmt.Print(h)
	// Output:
	// the activity scheduled by event 2 returned 12 <nil>
	//     1         +0s  OrchestrationStarted name="checkout" input="book"
	//     2         +0s  ActivityScheduled name="charge" input="book"
	//     3         +2s  ActivityCompleted source_event_id=2 result=12 attempts=1
}
