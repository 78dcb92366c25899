package bulk

import (
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

// Histories that earlier builds have recorded: never change them, only add to them.
func TestHistories_OfEarlierBuildsReplay(t *testing.T) {
	replaytest.Replay(t, "testdata/*.json", Definitions(Control{})...)
}

// The history of a job with every kind of event. If it changes on purpose, add it as another file.
func TestHistory_IsRecordedAsBefore(t *testing.T) {
	f := newFake(30)
	f.errors["i00001"] = []string{"stalled"}
	env, _ := start(t, f, newJob(func(j *Job) { j.Rate = 10 }))
	env.Advance(500 * time.Millisecond)
	update(t, env, PauseUpdate, "a note")
	env.Advance(time.Second)
	update(t, env, ResumeUpdate, "")
	env.Advance(500 * time.Millisecond)
	update(t, env, StopUpdate, "enough")
	env.ExpectHistory("j", "testdata/bulk-1.json")
}
