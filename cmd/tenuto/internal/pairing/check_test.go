package pairing_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/pairing"
	"github.com/tenuto-dev/tenuto/replay/history"
)

func TestCheck_RejectsInvalidHistories(t *testing.T) {
	const start = `{"eventId":"1","timestamp":"10","orchestrationStarted":{"name":"hello"}}`
	for _, c := range []struct{ name, events, want string }{
		{"nothing", ``, "no events"},
		{"no start", `{"eventId":"1","timerCreated":{}}`, "must be OrchestrationStarted"},
		{"a gap", start + `,{"eventId":"3","timerCreated":{}}`, "event_id 3 after 1"},
		{"two starts", start + `,{"eventId":"2","orchestrationStarted":{}}`, "a second time"},
		{"no type", start + `,{"eventId":"2"}`, "unknown event type"},
		{"more after the end", start + `,{"eventId":"2","orchestrationCompleted":{}},{"eventId":"3","timerCreated":{}}`, "after the end"},
		{"no source", start + `,{"eventId":"2","sourceEventId":"1","activityCompleted":{}}`, "scheduled no operation"},
		{"another kind", start + `,{"eventId":"2","timerCreated":{}},{"eventId":"3","sourceEventId":"2","activityCompleted":{}}`, "event 2 is TimerCreated"},
		{"closed twice", start + `,{"eventId":"2","timerCreated":{}},{"eventId":"3","sourceEventId":"2","timerFired":{}},{"eventId":"4","sourceEventId":"2","timerFired":{}}`, "closed before"},
		{"completed though canceled", start + `,{"eventId":"2","timerCreated":{}},{"eventId":"3","sourceEventId":"2","cancelRequested":{}},{"eventId":"4","sourceEventId":"2","timerFired":{}}`, "closed before"},
		{"a source of none", start + `,{"eventId":"2","sourceEventId":"1","timerCreated":{}}`, "completes nothing"},
		{"early", start + `,{"eventId":"2","timestamp":"10","timerCreated":{"fireAt":"20"}},{"eventId":"3","timestamp":"19","sourceEventId":"2","timerFired":{"fireAt":"20"}}`, "before it was due"},
		{"", start + `,{"eventId":"2","timestamp":"10","timerCreated":{"fireAt":"20"}},{"eventId":"3","timestamp":"20","sourceEventId":"2","timerFired":{"fireAt":"20"}}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := fmt.Sprintf(`{"format":"tenuto.history/1","instance":"hello-1","execution":1,"events":[%s]}`, c.events)
			h, err := history.Read(strings.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			err = pairing.Check(h)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v; want %q in it", err, c.want)
			}
		})
	}
}
