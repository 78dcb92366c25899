package instances

import (
	"errors"
	"testing"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

func TestCheckOperable(t *testing.T) {
	for name, refused := range map[string]bool{"tenuto.bulk.page": true, "tenuto.schedule.stop": true, "charge": false, "tenutos": false} {
		err := checkOperable(&journalpb.Event{Body: &journalpb.Event_ActivityScheduled{ActivityScheduled: &journalpb.ActivityScheduled{Name: name}}})
		if errors.As(err, new(*replay.InvalidError)) != refused {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := checkOperable(&journalpb.Event{Body: &journalpb.Event_TimerCreated{}}); err != nil {
		t.Error(err)
	}
}
