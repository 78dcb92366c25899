package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

func applyCut(t testing.TB, m *Machine, cut uint64) {
	t.Helper()
	_, err := applyRecord(m, must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_MetadataChange{
		MetadataChange: &journalpb.MetadataChange{Epoch: m.Epoch(), Cut: cut},
	}})))
	if err != nil {
		t.Fatal(err)
	}
}

// hashesOf returns the chain hash of every instance.
func hashesOf(t testing.TB, m *Machine, ids []string) (text string) {
	t.Helper()
	for _, id := range ids {
		if hash, err := m.Hash(id); err == nil {
			text += fmt.Sprintf("%s %x\n", id, hash)
		}
	}
	return text
}

// The checkpoint contains every entry up to the cut and none after it, whatever the sizes of
// flushes.
func TestCheckpointAtCut_ContainsEntriesUpToCut(t *testing.T) {
	made := 0
	for seed := range uint64(16) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			o := tinyOptions(vfs.NewMem())
			o.machine.FlushBytes = 1 + random.IntN(4000)
			m := openMachine(t, o)
			applyEpoch(t, m)
			ids, last := []string{"a", "b", "c", "d"}, map[string]uint64{}
			step := func() {
				id := ids[random.IntN(len(ids))]
				events := []*journalpb.Event{activity()}
				if last[id] == 0 {
					events = append([]*journalpb.Event{started(id)}, events...)
				}
				if err := applyAppend(m, id, segmentOf(1, last[id]+1, events...)); err != nil {
					t.Fatal(err)
				}
				last[id] += uint64(len(events))
			}
			for range random.IntN(60) {
				step()
			}
			type result struct {
				info CheckpointInfo
				err  error
			}
			results := make(chan result, 1)
			go func() {
				info, err := m.CheckpointAtCut(t.Context(), 7, "cut")
				results <- result{info, err}
			}()
			synctest.Wait()
			applyCut(t, m, 7)
			at, _ := m.Applied()
			want := hashesOf(t, m, ids)
			for range random.IntN(60) {
				step()
			}
			got := <-results
			if errors.Is(got.err, ErrCutMissed) {
				return // a flush was in progress
			}
			if got.err != nil || got.info.Index != at {
				t.Fatalf("%+v, %v; want entry %d", got.info, got.err, at)
			}
			made++
			o.Dir = "restored"
			of := openMachine(t, o)
			if err := of.Install(func(to string) error { return copyFiles(o.FS, "cut", to) }); err != nil {
				t.Fatal(err)
			}
			if hashes := hashesOf(t, of, ids); hashes != want {
				t.Errorf("the checkpoint has\n%swant\n%s", hashes, want)
			}
			if index, _ := of.Applied(); index != at || of.Cut() != 7 {
				t.Errorf("entry %d, cut %d; want entry %d, cut 7", index, of.Cut(), at)
			}
		})
	}
	if made < 4 {
		t.Errorf("%d of 16 checkpoints were made", made)
	}
}

func TestCheckpointAtCut_MissedCuts(t *testing.T) {
	m := openMachine(t, tinyOptions(vfs.NewMem()))
	applyEpoch(t, m)
	applyCut(t, m, 3)
	if _, err := m.CheckpointAtCut(t.Context(), 3, "cut"); !errors.Is(err, ErrCutMissed) {
		t.Errorf("recorded before: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.CheckpointAtCut(ended, 4, "cut"); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v", err)
	}
	r := &cutRequest{cut: 4, done: make(chan struct{})}
	if err := m.requestCut(r); err != nil {
		t.Fatal(err)
	}
	if _, err := m.CheckpointAtCut(t.Context(), 5, "cut"); !errors.Is(err, ErrCutMissed) {
		t.Errorf("two at once: %v", err)
	}
	applyCut(t, m, 6)
	if <-r.done; !errors.Is(r.err, ErrCutMissed) {
		t.Errorf("a later cut: %v", r.err)
	}
	applyCut(t, m, 2)
	if m.Cut() != 6 {
		t.Errorf("the cut went back to %d", m.Cut())
	}
}

// Lineages and the cut survive a snapshot and a store; the oldest lineages are dropped.
func TestMetadata_LineagesSurvive(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		for i := range uint64(lineagesMax + 2) {
			_, err := applyRecord(m, must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_MetadataChange{
				MetadataChange: &journalpb.MetadataChange{Epoch: m.Epoch(), Lineage: &journalpb.Lineage{
					Id: fmt.Sprint("l", i), Kind: journalpb.Lineage_KIND_RECOVERED, Source: "n1", Index: i, Time: 5, Clock: 6,
				}},
			}})))
			if err != nil {
				t.Fatal(err)
			}
		}
		applyCut(t, m, 9)
		before := m.Lineages()
		replaceState(t, m)
		after := m.Lineages()
		if len(after) != lineagesMax || after[0].Id != "l2" || m.Cut() != 9 {
			t.Fatalf("%d lineages from %v, cut %d", len(after), after[0], m.Cut())
		}
		for i := range after {
			if !proto.Equal(before[i], after[i]) || !bytes.Equal(encodeLineage(after[i]), must(proto.MarshalOptions{Deterministic: true}.Marshal(after[i]))) {
				t.Errorf("lineage %d: %v, want %v", i, after[i], before[i])
			}
		}
	})
}

// The outcomes of scheduled backups are counted once each, survive a snapshot and a store, and end
// with the lineage.
func TestMetadata_BackupOutcomes(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		apply := func(c *journalpb.MetadataChange) {
			t.Helper()
			c.Epoch = m.Epoch()
			record := &journalpb.Record{Command: &journalpb.Record_MetadataChange{MetadataChange: c}}
			if _, err := applyRecord(m, must(proto.Marshal(record))); err != nil {
				t.Fatal(err)
			}
		}
		failure := &journalpb.BackupRecord{Error: "disk full", Failures: 70}
		success := &journalpb.BackupRecord{Id: "b1", Time: 5, Duration: 6, Bytes: 7, StateBytes: 8, Succeeded: 70}
		for _, outcome := range []*journalpb.BackupRecord{failure, success, success, failure, failure} {
			apply(&journalpb.MetadataChange{Backup: outcome})
		}
		want := &journalpb.BackupRecord{
			Id: "b1", Time: 5, Duration: 6, Bytes: 7, StateBytes: 8, Succeeded: 1, Failed: 3, Failures: 2, Error: "disk full",
		}
		replaceState(t, m)
		got := BackupRecord(m)
		if !proto.Equal(got, want) || !bytes.Equal(encodeBackup(got), must(proto.MarshalOptions{Deterministic: true}.Marshal(want))) {
			t.Errorf("%v, want %v", got, want)
		}
		apply(&journalpb.MetadataChange{Backup: &journalpb.BackupRecord{Id: "b2"}})
		if got := BackupRecord(m); got.Id != "b2" || got.Succeeded != 2 || got.Failures != 0 || got.Error != "" {
			t.Errorf("after another success: %v", got)
		}
		apply(&journalpb.MetadataChange{Lineage: &journalpb.Lineage{Id: "l"}})
		if got := BackupRecord(m); got != nil {
			t.Errorf("in another lineage: %v", got)
		}
	})
}

// The recomputed chain of an instance with several executions is the recorded one, in memory and in
// a store. If another hash is recorded, that is noticed.
func TestVerifyHistories(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		mustApply(t, m, segmentOf(1, 1, started("a"), activity(), activityDone(2), continued()), segmentOf(2, 1, started("a")))
		mustApply(t, m, segmentOf(2, 2, activity(), activity()))
		for i := range 2 {
			executions, events, err := VerifyHistories(m, "a")
			if executions != 2 || events != 7 || err != nil {
				t.Errorf("%d executions, %d events, %v", executions, events, err)
			}
			if i == 0 {
				replaceState(t, m)
			}
		}
		if m.store == nil { // a flush would notice it, too
			m.instances["a"].chainHash ^= 1
			if _, _, err := VerifyHistories(m, "a"); !errors.Is(err, ErrCorrupt) {
				t.Errorf("with another hash recorded: %v", err)
			}
		}
		if _, _, err := VerifyHistories(m, "b"); !errors.Is(err, ErrNotFound) {
			t.Errorf("an unknown instance: %v", err)
		}
	})
}
