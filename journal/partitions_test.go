package journal

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// openWithPartition opens and closes a journal in a directory.
func openWithPartition(t *testing.T, dir string, partitions, partition int) error {
	t.Helper()
	j, err := Open(t.Context(), testConfig(Config{Node: "n", Dir: dir, Partitions: partitions, Partition: partition}))
	if err != nil {
		return err
	}
	return j.Close()
}

func TestOpen_RejectsOtherPartitionCount(t *testing.T) {
	dir := t.TempDir()
	if err := openWithPartition(t, dir, 4, 2); err != nil {
		t.Fatal(err)
	}
	var other *PartitionCountError
	if err := openWithPartition(t, dir, 8, 2); !errors.As(err, &other) || other.Have != 4 || other.Want != 8 {
		t.Errorf("opened with 8 partitions: %v", err)
	}
	if err := openWithPartition(t, dir, 1, 0); !errors.As(err, &other) && !errors.As(err, new(*IdentityError)) {
		t.Errorf("opened as the only partition: %v", err)
	}
	if err := openWithPartition(t, dir, 4, 1); !errors.As(err, new(*IdentityError)) {
		t.Errorf("opened as another partition: %v", err)
	}
	if err := openWithPartition(t, dir, 4, 2); err != nil {
		t.Errorf("opened again: %v", err)
	}
}

// The stamp of a single partition is the same as before there were several.
func TestStamp_SinglePartitionOmitsCount(t *testing.T) {
	dir := t.TempDir()
	if err := openWithPartition(t, dir, 1, 0); err != nil {
		t.Fatal(err)
	}
	stamp, err := os.ReadFile(filepath.Join(dir, ownerFile))
	if err != nil || strings.Contains(string(stamp), "group") {
		t.Errorf("%q, %v", stamp, err)
	}
	var other *PartitionCountError
	if err := openWithPartition(t, dir, 4, 0); !errors.As(err, &other) || other.Have != 1 || other.Want != 4 {
		t.Errorf("opened with 4 partitions: %v", err)
	}
}

// A chained start whose instance is in another partition waits, across restarts, until a record
// says that it was started.
func TestChainedStart_RemovedOnceStartedInOtherPartition(t *testing.T) {
	dir := t.TempDir()
	j := openJournal(t, Config{Dir: dir})
	epoch := awaitLeadership(t, j)
	mustAppend(t, j, newStartAppend(epoch, "near"))
	mustAppend(t, j, newAppend(epoch, "near", 3, &journalpb.Event{Body: &journalpb.Event_OrchestrationChained{
		OrchestrationChained: &journalpb.OrchestrationChained{Name: "o", Instance: "far"},
	}}))
	if !j.HasChainedStart("far") {
		t.Fatal("the start does not wait")
	}
	created := make(chan error, 1)
	j.ForgetChainedStart(epoch, "far", func(err error) { created <- err })
	if err := waittest.Receive(t, "the record", created); err != nil || j.HasChainedStart("far") {
		t.Errorf("the start still waits: %v", err)
	}
	closeJournal(t, j)
	j = openJournal(t, Config{Dir: dir})
	awaitLeadership(t, j)
	if j.HasChainedStart("far") {
		t.Error("the start waits again after a restart")
	}
}
