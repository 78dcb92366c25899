package journal

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// openStamped opens and closes a journal in a directory.
func openStamped(t *testing.T, dir string, groups, group int) error {
	t.Helper()
	j, err := Open(t.Context(), quiet(Config{Node: "n", Dir: dir, Groups: groups, Group: group}))
	if err != nil {
		return err
	}
	return j.Close()
}

func TestDirectoryStaysWithItsNumberOfGroups(t *testing.T) {
	dir := t.TempDir()
	if err := openStamped(t, dir, 4, 2); err != nil {
		t.Fatal(err)
	}
	var other *GroupsError
	if err := openStamped(t, dir, 8, 2); !errors.As(err, &other) || other.Have != 4 || other.Want != 8 {
		t.Errorf("opened with 8 groups: %v", err)
	}
	if err := openStamped(t, dir, 1, 0); !errors.As(err, &other) && !errors.As(err, new(*IdentityError)) {
		t.Errorf("opened as the only group: %v", err)
	}
	if err := openStamped(t, dir, 4, 1); !errors.As(err, new(*IdentityError)) {
		t.Errorf("opened as another group: %v", err)
	}
	if err := openStamped(t, dir, 4, 2); err != nil {
		t.Errorf("opened again: %v", err)
	}
}

// The stamp of the only group is what it was before there were several.
func TestStampOfTheOnlyGroupSaysNothingOfGroups(t *testing.T) {
	dir := t.TempDir()
	if err := openStamped(t, dir, 1, 0); err != nil {
		t.Fatal(err)
	}
	stamp, err := os.ReadFile(filepath.Join(dir, identityFile))
	if err != nil || strings.Contains(string(stamp), "group") {
		t.Errorf("%q, %v", stamp, err)
	}
	var other *GroupsError
	if err := openStamped(t, dir, 4, 0); !errors.As(err, &other) || other.Have != 1 || other.Want != 4 {
		t.Errorf("opened with 4 groups: %v", err)
	}
}

// A chained start whose instance is in another group waits until it is said to be
// made, over restarts.
func TestChainedStartIsForgottenWhenItWasMadeElsewhere(t *testing.T) {
	dir := t.TempDir()
	j := opened(t, Config{Dir: dir})
	epoch := leading(t, j)
	mustAppend(t, j, begin(epoch, "near"))
	mustAppend(t, j, appendOf(epoch, "near", 3, &journalpb.Event{Body: &journalpb.Event_OrchestrationChained{
		OrchestrationChained: &journalpb.OrchestrationChained{Name: "o", Instance: "far"},
	}}))
	if !j.WaitsToStart("far") {
		t.Fatal("the start does not wait")
	}
	made := make(chan error, 1)
	j.Started(epoch, "far", func(err error) { made <- err })
	if err := within(t, "the record", made); err != nil || j.WaitsToStart("far") {
		t.Errorf("the start still waits: %v", err)
	}
	closed(t, j)
	j = opened(t, Config{Dir: dir})
	leading(t, j)
	if j.WaitsToStart("far") {
		t.Error("the start waits again after a restart")
	}
}
