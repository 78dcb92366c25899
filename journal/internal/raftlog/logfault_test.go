package raftlog

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
	"github.com/tenuto-dev/tenuto/journal/internal/raftlog/raftlogtest"
	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
)

func TestFlippedBit_InLogOrVoteIsNeverServed(t *testing.T) {
	flips := waittest.Repetitions(400, 80)
	dir := t.TempDir()
	l := mustOpenLogs(t, dir)
	l.mustStore(t, 1, 60)
	err := errors.Join(l.DeleteRange(1, 10), l.stable.SetUint64([]byte(KeyTerm), 7),
		l.stable.SetUint64([]byte(keyVoteTerm), 6), l.stable.Set([]byte(keyCandidate), []byte("n2")))
	if err != nil {
		t.Fatal(err)
	}
	l.mustClose(t)
	im, rejected := raftlogtest.ReadDirImage(t, dir), 0
	r := rand.New(rand.NewPCG(1, 4))
	for range flips {
		b := randomBit(r, im)
		im.Flip(b)
		im.Write(t, dir)
		im.Flip(b)
		l, err := openLogs(dir)
		if err != nil {
			wantDefiniteError(t, b, err)
			rejected++
			continue
		}
		if err := l.compareEntries(11, 60); err != nil {
			t.Errorf("%v: %v", b, err)
		}
		term, _ := l.stable.GetUint64([]byte(KeyTerm))
		voteTerm, _ := l.stable.GetUint64([]byte(keyVoteTerm))
		vote, _ := l.stable.Get([]byte(keyCandidate))
		if term != 7 || voteTerm != 6 || string(vote) != "n2" {
			t.Errorf("%v: term %d, vote for %q in %d", b, term, vote, voteTerm)
		}
		l.mustClose(t)
	}
	t.Logf("%d of %d flips were rejected, the others hit unused bytes", rejected, flips)
}

func TestFlippedBit_UnderOpenLogIsNeverServed(t *testing.T) {
	flips := waittest.Repetitions(30, 10)
	r := rand.New(rand.NewPCG(2, 4))
	for range flips {
		dir := t.TempDir()
		l := mustOpenLogs(t, dir)
		l.mustStore(t, 1, 40)
		im := raftlogtest.ReadDirImage(t, dir)
		b := randomBit(r, im)
		f, err := os.OpenFile(filepath.Join(dir, b.Name), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{im[b.Name][b.At] ^ b.Mask}, int64(b.At)); err != nil {
			t.Fatal(err)
		}
		f.Close()
		for i := uint64(1); i <= 40; i++ {
			var log raft.Log
			if err := l.GetLog(i, &log); err != nil {
				wantDefiniteError(t, b, err)
			} else if string(log.Data) != string(raftlogtest.Entry(i).Data) || log.Term != raftlogtest.Entry(i).Term {
				t.Errorf("%v: entry %d differs", b, i)
			}
		}
		_ = l.close() // it may fail
	}
}

func TestOpen_RepairsTornTailRejectsLostTail(t *testing.T) {
	dir := t.TempDir()
	l := mustOpenLogs(t, dir)
	l.mustStore(t, 1, 20)
	before := raftlogtest.ReadDirImage(t, dir)
	l.mustStore(t, 21, 21)
	l.mustClose(t)
	after := raftlogtest.ReadDirImage(t, dir)

	torn := raftlogtest.DirImage{}
	for name := range after {
		torn[name] = tornFile(name, before[name], after[name])
	}
	torn[StableFileName] = before[StableFileName] // it was never acknowledged
	torn.Write(t, dir)
	l = mustOpenLogs(t, dir)
	l.wantEntries(t, 1, 20)
	l.mustStore(t, 21, 30)
	l.mustClose(t)
	l = mustOpenLogs(t, dir)
	l.wantEntries(t, 1, 30)
	l.mustClose(t)

	torn[StableFileName] = after[StableFileName] // it was on disk once
	torn.Write(t, dir)
	_, err := openLogs(dir)
	var damaged *diskfile.DamagedError
	if !errors.As(err, &damaged) || damaged.Index != 21 {
		t.Errorf("opened without entry 21: %v", err)
	}
}

// tornFile returns a file whose last write was cut off: the pages of the log were written and the
// meta page was not.
func tornFile(name string, before, after []byte) []byte {
	torn := slices.Clone(after)
	if name == FileName {
		copy(torn[:8192], before[:8192])
	}
	return torn
}

func TestOpen_RejectsDamagedDirectory(t *testing.T) {
	remove := func(name string) func(raftlogtest.DirImage) {
		return func(im raftlogtest.DirImage) { delete(im, name) }
	}
	cut := func(name string, bytes int) func(raftlogtest.DirImage) {
		return func(im raftlogtest.DirImage) { im[name] = im[name][:len(im[name])-bytes] }
	}
	dir := t.TempDir()
	l := mustOpenLogs(t, dir)
	l.mustStore(t, 1, 30)
	l.mustClose(t)
	whole := raftlogtest.ReadDirImage(t, dir)
	for name, damage := range map[string]func(raftlogtest.DirImage){
		"log removed":               remove(FileName),
		"log emptied":               func(im raftlogtest.DirImage) { im[FileName] = nil },
		"log cut to its head":       func(im raftlogtest.DirImage) { im[FileName] = im[FileName][:8192] },
		"log cut by one byte":       func(im raftlogtest.DirImage) { im[FileName] = im[FileName][:boltUsedBytes(im[FileName])-1] },
		"older meta page zeroed":    func(im raftlogtest.DirImage) { clear(im[FileName][:4096]) },
		"newer meta page zeroed":    func(im raftlogtest.DirImage) { clear(im[FileName][4096:8192]) },
		"page in the middle zeroed": func(im raftlogtest.DirImage) { zeroPages(im[FileName]) },
		"stable file removed":       remove(StableFileName),
		"stable file cut":           cut(StableFileName, 1),
		"stable file emptied":       func(im raftlogtest.DirImage) { im[StableFileName] = nil },
	} {
		t.Run(name, func(t *testing.T) {
			im := raftlogtest.DirImage{}
			for name, content := range whole {
				im[name] = slices.Clone(content)
			}
			damage(im)
			im.Write(t, dir)
			l, err := openLogs(dir)
			if err == nil {
				l.mustClose(t)
				t.Fatal("opened")
			}
			wantDefiniteError(t, name, err)
		})
	}
}

// boltUsedBytes returns how many bytes of a bolt file are in use.
func boltUsedBytes(file []byte) int {
	pages := max(binary.NativeEndian.Uint64(file[16+40:]), binary.NativeEndian.Uint64(file[4096+16+40:]))
	return int(pages) * 4096
}

// zeroPages zeroes every page but the meta pages. A single page might not be in use.
func zeroPages(file []byte) { clear(file[8192:]) }

func TestStableFile_VoteDoesNotGrowFile(t *testing.T) {
	// The vote is written in place: the file does not grow.
	dir := t.TempDir()
	l := mustOpenLogs(t, dir)
	defer l.mustClose(t)
	long := strings.Repeat("x", candidateMax)
	for term := range uint64(50) {
		err := errors.Join(l.stable.SetUint64([]byte(KeyTerm), term), l.stable.Set([]byte(keyCandidate), []byte(long)))
		if err != nil {
			t.Fatal(err)
		}
	}
	var stat syscall.Stat_t
	if err := syscall.Stat(filepath.Join(dir, StableFileName), &stat); err != nil || stat.Size != 2*diskfile.SectorSize {
		t.Errorf("%d bytes, error %v", stat.Size, err)
	}
	if err := l.stable.Set([]byte(keyCandidate), []byte(long+"x")); err == nil {
		t.Error("a candidate that does not fit was saved")
	}
}

// wantDefiniteError checks that an error is one of those that Open documents.
func wantDefiniteError(t testing.TB, what any, err error) {
	t.Helper()
	var (
		damaged *diskfile.DamagedError
		failed  *failure
		format  *diskfile.FormatError
	)
	if !errors.As(err, &damaged) && !errors.As(err, &failed) && !errors.As(err, &format) {
		t.Errorf("%v: not a definite error: %v", what, err)
	}
}

// randomBit picks a bit of the log or of the stable file.
func randomBit(r *rand.Rand, im raftlogtest.DirImage) raftlogtest.Bit {
	return im.RandomBit(r, append(im.Names(FileName), StableFileName))
}
