package journal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"
)

// dirImage is a directory of a journal in memory.
type dirImage map[string][]byte

func readDirImage(t testing.TB, dir string) dirImage {
	t.Helper()
	im := dirImage{}
	for _, name := range filesOf(t, dir) {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		im[name] = content
	}
	return im
}

// write writes the image to a directory and removes everything else from it.
func (im dirImage) write(t testing.TB, dir string) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for name, content := range im {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, content, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// names are the files whose names begin with prefix, sorted.
func (im dirImage) names(prefix string) []string {
	var names []string
	for name := range im {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// bit is one bit of an image.
type bit struct {
	name string
	at   int
	mask byte
}

func (b bit) String() string { return fmt.Sprintf("%s at %d, mask %#x", b.name, b.at, b.mask) }

// randomBit picks a bit of the log or of the stable file. Each file is equally likely, so that
// small files are hit too.
func (im dirImage) randomBit(r *rand.Rand) bit {
	names := append(im.names(logFile), stableFileName)
	for {
		b := bit{name: names[r.IntN(len(names))], mask: 1 << r.IntN(8)}
		if n := len(im[b.name]); n > 0 {
			b.at = r.IntN(n)
			return b
		}
	}
}

func (im dirImage) flip(b bit) { im[b.name][b.at] ^= b.mask }

// wantOpenError checks that an error is one of those that Open documents.
func wantOpenError(t testing.TB, what any, err error) {
	t.Helper()
	var (
		damaged    *DamagedError
		nodeFailed *NodeFailedError
		format     *FormatError
	)
	if !errors.As(err, &damaged) && !errors.As(err, &nodeFailed) && !errors.As(err, &format) {
		t.Errorf("%v: not a definite error: %v", what, err)
	}
}

func TestFlippedBit_InLogOrVoteIsNeverServed(t *testing.T) {
	flips := repetitions(400, 80)
	dir := t.TempDir()
	l := mustOpenLogs(t, dir)
	l.mustStore(t, 1, 60)
	err := errors.Join(l.DeleteRange(1, 10), l.stable.SetUint64([]byte(keyTerm), 7),
		l.stable.SetUint64([]byte(keyVoteTerm), 6), l.stable.Set([]byte(keyCandidate), []byte("n2")))
	if err != nil {
		t.Fatal(err)
	}
	l.mustClose(t)
	im, refused := readDirImage(t, dir), 0
	r := rand.New(rand.NewPCG(1, 4))
	for range flips {
		b := im.randomBit(r)
		im.flip(b)
		im.write(t, dir)
		im.flip(b)
		l, err := openLogs(dir)
		if err != nil {
			wantOpenError(t, b, err)
			refused++
			continue
		}
		if err := l.compareEntries(11, 60); err != nil {
			t.Errorf("%v: %v", b, err)
		}
		term, _ := l.stable.GetUint64([]byte(keyTerm))
		voteTerm, _ := l.stable.GetUint64([]byte(keyVoteTerm))
		vote, _ := l.stable.Get([]byte(keyCandidate))
		if term != 7 || voteTerm != 6 || string(vote) != "n2" {
			t.Errorf("%v: term %d, vote for %q in %d", b, term, vote, voteTerm)
		}
		l.mustClose(t)
	}
	t.Logf("%d of %d flips were refused, the others hit unused bytes", refused, flips)
}

func TestFlippedBit_UnderOpenLogIsNeverServed(t *testing.T) {
	flips := repetitions(30, 10)
	r := rand.New(rand.NewPCG(2, 4))
	for range flips {
		dir := t.TempDir()
		l := mustOpenLogs(t, dir)
		l.mustStore(t, 1, 40)
		im := readDirImage(t, dir)
		b := im.randomBit(r)
		f, err := os.OpenFile(filepath.Join(dir, b.name), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{im[b.name][b.at] ^ b.mask}, int64(b.at)); err != nil {
			t.Fatal(err)
		}
		f.Close()
		for i := uint64(1); i <= 40; i++ {
			var log raft.Log
			if err := l.GetLog(i, &log); err != nil {
				wantOpenError(t, b, err)
			} else if string(log.Data) != string(testEntry(i).Data) || log.Term != testEntry(i).Term {
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
	before := readDirImage(t, dir)
	l.mustStore(t, 21, 21)
	l.mustClose(t)
	after := readDirImage(t, dir)

	torn := dirImage{}
	for name := range after {
		torn[name] = tornFile(name, before[name], after[name])
	}
	torn[stableFileName] = before[stableFileName] // it was never acknowledged
	torn.write(t, dir)
	l = mustOpenLogs(t, dir)
	l.wantEntries(t, 1, 20)
	l.mustStore(t, 21, 30)
	l.mustClose(t)
	l = mustOpenLogs(t, dir)
	l.wantEntries(t, 1, 30)
	l.mustClose(t)

	torn[stableFileName] = after[stableFileName] // it was on disk once
	torn.write(t, dir)
	_, err := openLogs(dir)
	var damaged *DamagedError
	if !errors.As(err, &damaged) || damaged.Index != 21 {
		t.Errorf("opened without entry 21: %v", err)
	}
}

// tornFile returns a file whose last write was cut off: the pages of the log were written and the
// meta page was not.
func tornFile(name string, before, after []byte) []byte {
	torn := slices.Clone(after)
	if name == logFile {
		copy(torn[:8192], before[:8192])
	}
	return torn
}

func TestOpen_RejectsDamagedDirectory(t *testing.T) {
	remove := func(name string) func(dirImage) { return func(im dirImage) { delete(im, name) } }
	cut := func(name string, bytes int) func(dirImage) {
		return func(im dirImage) { im[name] = im[name][:len(im[name])-bytes] }
	}
	dir := t.TempDir()
	l := mustOpenLogs(t, dir)
	l.mustStore(t, 1, 30)
	l.mustClose(t)
	whole := readDirImage(t, dir)
	for name, damage := range map[string]func(dirImage){
		"log removed":               remove(logFile),
		"log emptied":               func(im dirImage) { im[logFile] = nil },
		"log cut to its head":       func(im dirImage) { im[logFile] = im[logFile][:8192] },
		"log cut by one byte":       func(im dirImage) { im[logFile] = im[logFile][:boltUsedBytes(im[logFile])-1] },
		"older meta page zeroed":    func(im dirImage) { clear(im[logFile][:4096]) },
		"newer meta page zeroed":    func(im dirImage) { clear(im[logFile][4096:8192]) },
		"page in the middle zeroed": func(im dirImage) { zeroPages(im[logFile]) },
		"stable file removed":       remove(stableFileName),
		"stable file cut":           cut(stableFileName, 1),
		"stable file emptied":       func(im dirImage) { im[stableFileName] = nil },
	} {
		t.Run(name, func(t *testing.T) {
			im := dirImage{}
			for name, content := range whole {
				im[name] = slices.Clone(content)
			}
			damage(im)
			im.write(t, dir)
			l, err := openLogs(dir)
			if err == nil {
				l.mustClose(t)
				t.Fatal("opened")
			}
			wantOpenError(t, name, err)
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

func TestOpen_RejectsSecondProcess(t *testing.T) {
	if dir := os.Getenv("TENUTO_JOURNAL_SECOND"); dir != "" {
		_, err := Open(context.Background(), testConfig(Config{Dir: dir}))
		var locked *LockedError
		if !errors.As(err, &locked) {
			t.Fatalf("opened: %v", err)
		}
		return
	}
	dir := t.TempDir()
	j := openJournal(t, Config{Dir: dir})
	mustAppend(t, j, newStartAppend(awaitLeadership(t, j), "a"))
	child := exec.Command(os.Args[0], "-test.run=^TestOpen_RejectsSecondProcess$")
	child.Env = append(os.Environ(), "TENUTO_JOURNAL_SECOND="+dir)
	if out, err := child.CombinedOutput(); err != nil {
		t.Errorf("second process: %v\n%s", err, out)
	}
	mustAppend(t, j, newStepAppend(j.Epoch(), "a", 3))
}

func TestStableFile_VoteDoesNotGrowFile(t *testing.T) {
	// The vote is written in place: the file does not grow.
	dir := t.TempDir()
	l := mustOpenLogs(t, dir)
	defer l.mustClose(t)
	long := strings.Repeat("x", candidateMax)
	for term := range uint64(50) {
		err := errors.Join(l.stable.SetUint64([]byte(keyTerm), term), l.stable.Set([]byte(keyCandidate), []byte(long)))
		if err != nil {
			t.Fatal(err)
		}
	}
	var stat syscall.Stat_t
	if err := syscall.Stat(filepath.Join(dir, stableFileName), &stat); err != nil || stat.Size != 2*sectorSize {
		t.Errorf("%d bytes, error %v", stat.Size, err)
	}
	if err := l.stable.Set([]byte(keyCandidate), []byte(long+"x")); err == nil {
		t.Error("a candidate that does not fit was saved")
	}
}

// wantInstances checks that a node has the instances that were begun.
func wantInstances(t testing.TB, j *Journal, instances int) {
	t.Helper()
	for i := range instances {
		if last := lastEvent(t, j, fmt.Sprintf("i-%03d", i)); last != 2 {
			t.Errorf("i-%03d has %d events", i, last)
		}
	}
}
