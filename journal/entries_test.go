package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/journal/state/pebblestore"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// mustCheckpoint makes a checkpoint at a new cut.
func mustCheckpoint(t *testing.T, j *Journal, dir string) *Checkpoint {
	t.Helper()
	for {
		cut := j.Cut() + 1
		recorded := make(chan error, 1)
		go func() { recorded <- j.RecordCut(t.Context(), cut) }()
		made, err := j.CheckpointAtCut(t.Context(), cut, dir)
		if err := <-recorded; err != nil {
			t.Fatal(err)
		}
		if err == nil {
			return made
		}
		if !errors.Is(err, ErrCutMissed) {
			t.Fatal(err)
		}
	}
}

// restoredDigest restores a checkpoint with entries after it, and returns the digest of that state,
// which it verifies.
func restoredDigest(t *testing.T, from *Checkpoint, files string, entries iter.Seq2[*Entry, error]) [32]byte {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "restored")
	r := &Restore{
		Config: Config{Node: "n1", Dir: dir, Logger: slog.New(slog.DiscardHandler)}, From: from, Entries: entries,
		Lineage: &journalpb.Lineage{Id: "l", Kind: journalpb.Lineage_KIND_RESTORED},
		Fill: func(to string) error {
			for _, f := range from.Files {
				content, err := os.ReadFile(filepath.Join(files, f.Name))
				if err := errors.Join(err, os.WriteFile(filepath.Join(to, f.Name), content, 0o600)); err != nil {
					return err
				}
			}
			return nil
		},
	}
	if _, err := r.Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := VerifyState(t.Context(), dir, r.Config.Logger); err != nil {
		t.Fatal(err)
	}
	c := r.Config.withDefaults()
	machine, err := openMachine(pebblestore.Options{Dir: filepath.Join(dir, stateDir), FS: noLockFS{pebblestore.OwnerOnly}, Logger: c.Logger, CacheBytes: 1 << 20}, c.stateOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := machine.Close(); err != nil {
			t.Error(err)
		}
	}()
	return machine.Digest()
}

// changeAtRandom proposes changes of all kinds, some of which are rejected.
func changeAtRandom(t *testing.T, j *Journal, random *rand.Rand, rounds int) {
	t.Helper()
	epoch := awaitLeadership(t, j)
	for range rounds {
		id := fmt.Sprint("i", random.IntN(20))
		switch last := lastEvent(t, j, id); {
		case last == 0:
			mustAppend(t, j, newStartAppend(epoch, id))
		case random.IntN(8) == 0:
			_ = proposeAppend(t, j, newStepAppend(epoch, id, last)) // rejected: the event exists
		case random.IntN(8) == 0:
			if err := j.ChangeSettings(t.Context(), 7, []byte(id)); err == nil {
				t.Error("another version of the settings was replaced")
			}
		default:
			mustAppend(t, j, newStepAppend(epoch, id, last+1))
		}
	}
}

// A checkpoint with the entries after it, which were kept across snapshots and a restart, is the
// state of the node that has applied them, and of a checkpoint there.
func TestEntries_RestoreStateOfLaterCheckpoint(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	dir, checkpoints := t.TempDir(), t.TempDir()
	config := Config{Dir: dir, SnapshotThreshold: 10, SnapshotInterval: time.Hour, TrailingLogs: 3, Logger: slog.New(slog.DiscardHandler)}
	j := openJournal(t, config)
	changeAtRandom(t, j, random, 50)
	base := mustCheckpoint(t, j, filepath.Join(checkpoints, "base"))
	if err := j.RetainLog(base.Index, 0); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		changeAtRandom(t, j, random, 30)
		if err := j.snapshot(); err != nil {
			t.Fatal(err)
		}
	}
	closeJournal(t, j)
	j = openJournal(t, config)
	changeAtRandom(t, j, random, 30)
	if err := j.snapshot(); err != nil {
		t.Fatal(err)
	}
	later := mustCheckpoint(t, j, filepath.Join(checkpoints, "later"))
	var copied bytes.Buffer
	if err := j.WriteEntries(t.Context(), &copied, base.Index, later.Index); err != nil {
		t.Fatal(err)
	}
	size := int64(copied.Len())
	want := restoredDigest(t, later, filepath.Join(checkpoints, "later"), nil)
	if got := restoredDigest(t, base, filepath.Join(checkpoints, "base"), ReadEntries(&copied, size)); got != want {
		t.Errorf("the state is %x, that of the checkpoint %x", got, want)
	}
	if err := j.WriteEntries(t.Context(), io.Discard, 0, later.Index); !errors.Is(err, ErrNoEntries) {
		t.Errorf("entries before those that were kept: %v", err)
	}
	// Kept no longer, they are removed with the next snapshot.
	if err := j.RetainLog(later.Index, base.Index); err != nil {
		t.Fatal(err)
	}
	changeAtRandom(t, j, random, 30)
	if err := j.snapshot(); err != nil {
		t.Fatal(err)
	}
	if err := j.WriteEntries(t.Context(), io.Discard, base.Index, later.Index); !errors.Is(err, ErrNoEntries) {
		t.Errorf("entries that are kept no longer: %v", err)
	}
	if err := j.WriteEntries(t.Context(), io.Discard, later.Index, j.AppliedIndex()); err != nil {
		t.Errorf("entries that are kept now: %v", err)
	}
}

// A repaired replica differs from what the entries make of an earlier state of it. So the entries
// are not used if a quarantine has ended between the two.
func TestWriteEntries_QuarantineEnded(t *testing.T) {
	j := openJournal(t, Config{Dir: t.TempDir()})
	awaitLeadership(t, j)
	if err := j.RaiseProtocol(t.Context(), ComparisonProtocol); err != nil {
		t.Fatal(err)
	}
	before := j.AppliedIndex()
	if err := j.Quarantine(t.Context(), &journalpb.Quarantine{Instance: "i", Node: "n1"}); err != nil {
		t.Fatal(err)
	}
	quarantined := j.AppliedIndex()
	if err := j.WriteEntries(t.Context(), io.Discard, before, quarantined); err != nil {
		t.Error(err)
	}
	if err := j.LiftQuarantine(t.Context(), "i", "n1"); err != nil {
		t.Fatal(err)
	}
	lifted := j.AppliedIndex()
	if err := j.RecordCut(t.Context(), j.Cut()+1); err != nil {
		t.Fatal(err)
	}
	for _, after := range []uint64{before, quarantined, lifted - 1} {
		if err := j.WriteEntries(t.Context(), io.Discard, after, j.AppliedIndex()); !errors.Is(err, ErrNoEntries) {
			t.Errorf("entries after %d: %v", after, err)
		}
	}
	if err := j.WriteEntries(t.Context(), io.Discard, lifted, j.AppliedIndex()); err != nil {
		t.Error(err)
	}
}

// More than the allowed bytes are not kept.
func TestRetainLog_Bound(t *testing.T) {
	j := openJournal(t, Config{Dir: t.TempDir(), SnapshotInterval: time.Hour, TrailingLogs: 3, RetainBytes: 100 << 10})
	epoch := awaitLeadership(t, j)
	kept := func() bool {
		if err := j.snapshot(); err != nil {
			t.Fatal(err)
		}
		return j.WriteEntries(t.Context(), io.Discard, 1, j.AppliedIndex()) == nil
	}
	if err := j.RetainLog(1, 0); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		mustAppend(t, j, newLargeStartAppend(epoch, fmt.Sprint("i", i)))
		if i == 2 && !kept() {
			t.Error("60 kB are not kept")
		}
	}
	if kept() {
		t.Error("400 kB are kept")
	}
}

// The partitions of a node share what it keeps.
func TestRetainLog_BoundOfPartition(t *testing.T) {
	for partitions, want := range map[int]uint64{0: 2 << 30, 1: 2 << 30, 4: 1 << 29, 64: 1 << 25} {
		if got := (Config{Partitions: partitions}).withDefaults().RetainBytes; got != want {
			t.Errorf("%d partitions: each keeps %d bytes, want %d", partitions, got, want)
		}
	}
}

// Of the indexes after which the log is kept, the newest four count, for eight days each.
func TestRetainLog_Indexes(t *testing.T) {
	dir := t.TempDir()
	j := openJournal(t, Config{Dir: dir})
	awaitLeadership(t, j)
	for _, step := range []struct {
		after, instead uint64
		want           []uint64
	}{
		{10, 0, []uint64{10}}, {5, 0, []uint64{5, 10}}, {20, 10, []uint64{5, 20}}, {20, 0, []uint64{5, 20}},
		{30, 0, []uint64{5, 20, 30}}, {40, 0, []uint64{5, 20, 30, 40}}, {50, 0, []uint64{20, 30, 40, 50}},
	} {
		if err := j.RetainLog(step.after, step.instead); err != nil {
			t.Fatal(err)
		}
		kept, err := readRetained(dir)
		var got []uint64
		for _, e := range kept.entries() {
			if got = append(got, e.After); time.Until(e.Until) > retainedFor || time.Until(e.Until) < retainedFor-waittest.Timeout {
				t.Errorf("entries are kept until %v", e.Until)
			}
		}
		if err != nil || !slices.Equal(got, step.want) {
			t.Errorf("after %d instead of %d: %d, %v; want %d", step.after, step.instead, got, err, step.want)
		}
	}
	for _, damaged := range []string{"", "x", "[{]"} {
		if err := os.WriteFile(filepath.Join(dir, retainedFile), []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := j.RetainLog(60, 0); err != nil {
			t.Errorf("%q: %v", damaged, err)
		}
	}
}

// Entries that are damaged or not in order are noticed.
func TestReadEntries_Damaged(t *testing.T) {
	j := openJournal(t, Config{Dir: t.TempDir()})
	epoch := awaitLeadership(t, j)
	for i := range 3 {
		mustAppend(t, j, newStartAppend(epoch, fmt.Sprint("i", i)))
	}
	var copied bytes.Buffer
	if err := j.WriteEntries(t.Context(), &copied, 1, j.AppliedIndex()); err != nil {
		t.Fatal(err)
	}
	content := copied.Bytes()
	twice := append(bytes.Clone(content), content...)
	cases := map[string][]byte{"twice": twice}
	for at := range content {
		flipped := bytes.Clone(content)
		flipped[at] ^= 4
		cases[fmt.Sprint("flipped ", at)] = flipped
		cases[fmt.Sprint("truncated ", at)] = content[:at]
	}
	for what, damaged := range cases {
		var err error
		for _, readErr := range ReadEntries(bytes.NewReader(damaged), max(int64(len(damaged)), int64(len(content)))) {
			err = readErr
		}
		if !errors.Is(err, state.ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
	entries := 0
	for e, err := range ReadEntries(bytes.NewReader(content), int64(len(content))) {
		if entries++; err != nil || time.Since(e.AppendedAt).Abs() > waittest.Timeout {
			t.Errorf("%+v, %v", e, err)
		}
	}
	if entries < 3 {
		t.Errorf("%d entries", entries)
	}
}
