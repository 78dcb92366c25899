package schedules

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

// Histories that earlier builds have recorded: never change them, only add to them. A change of the
// parser or of the time zone database does not contradict them, because plans are recorded.
func TestHistories_OfEarlierBuildsReplay(t *testing.T) {
	definitions := Definitions(Control{})
	replaytest.Replay(t, "testdata/*.json", definitions...)
}

// A plan is recorded with the times that the node computed. What another node would compute, here
// because the zone is another one, does not contradict it.
func TestHistory_FitsAnotherTimeZoneDatabase(t *testing.T) {
	recorded, err := os.ReadFile("testdata/schedule-1.json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(recorded, []byte("Europe/Berlin")) {
		t.Fatal("the history has no time zone")
	}
	file := filepath.Join(t.TempDir(), "schedule.json")
	if err := os.WriteFile(file, bytes.ReplaceAll(recorded, []byte("Europe/Berlin"), []byte("Asia/Kathmandu")), 0o600); err != nil {
		t.Fatal(err)
	}
	replaytest.Replay(t, file, Definitions(Control{})...)
}

// The history of a schedule with every kind of event. If it changes on purpose, add it as another
// file.
func TestHistory_IsRecordedAsBefore(t *testing.T) {
	env := newEnv(t)
	create(t, env, Spec{Cron: []string{"@hourly", "30 2 * * *"}, TimeZone: "Europe/Berlin", Overlap: Terminate}, 90*time.Minute)
	env.Advance(2*time.Hour + time.Minute)
	update(t, env, PauseUpdate, "a note")
	update(t, env, TriggerUpdate, Allow)
	update(t, env, ResumeUpdate, "")
	update(t, env, ReplaceUpdate, Replacement{Spec: Spec{Every: time.Hour, Overlap: Cancel}})
	update(t, env, BackfillUpdate, Range{From: env.Now().Add(-6 * time.Hour), Before: env.Now().Add(-4 * time.Hour)})
	env.Advance(2 * time.Hour)
	update(t, env, DeleteUpdate, struct{}{})
	env.ExpectHistory("s", "testdata/schedule-1.json")
	for _, id := range env.Instances() {
		if status, err := env.Get(id); err == nil && status.Name == runOnce.Name() && status.Ended() {
			env.ExpectHistory(id, "testdata/run-1.json")
			break
		}
	}
}
