package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

const (
	killsMidway = 7 // while files are counted
	killsEarly  = 3 // at a random moment after the start of the process
	killDirs    = 400
	killFiles   = 4000
	killWidth   = 8
)

// killDelay keeps a process from finishing before the test kills it on a busy machine.
const killDelay = 80 * time.Millisecond

var seedFlag = flag.Uint64("seed", 0, "of TestCensus_SurvivesKills: its tree and its kills; 0 for a new one")

// The program is killed repeatedly, and its report must equal that of an undisturbed run.
//
// The test compares the journal on disk, read after each kill, with the ledger, which is
// independent of the journal. The journal lists recorded completions, the ledger lists
// executions.
func TestCensus_SurvivesKills(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: it kills the program ten times")
	}
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	source := randomTree(t, random)
	want := independentReport(t, source)
	binary := programPath(t)

	h := &killTest{
		t: t, binary: binary, source: source, files: int(want.Files),
		dir: t.TempDir(), ledger: filepath.Join(t.TempDir(), "ledger"),
		recorded: make(map[string]int),
	}
	// This is small enough that work remains for the next process.
	most := ledgerBytes(t, source) / (killsMidway + 5)
	for i := range killsMidway + killsEarly {
		if i%3 == 1 && i/3 < killsEarly {
			h.killEarly(time.Duration(random.Int64N(int64(150 * time.Millisecond))))
		} else {
			h.killMidway(1 + random.Int64N(most))
		}
	}
	disturbed := h.finish()
	if len(h.recorded) != h.files {
		t.Errorf("%d files are recorded, want %d", len(h.recorded), h.files)
	}
	t.Logf("%d files, %d executions, %d of them lost by %d kills", h.files, h.executed, h.executed-h.files, killsMidway+killsEarly)

	undisturbed := (&killTest{t: t, binary: binary, source: source, files: h.files, dir: t.TempDir(),
		ledger: filepath.Join(t.TempDir(), "ledger"), recorded: make(map[string]int)}).finish()
	var counted strings.Builder
	want.write(&counted)
	for name, got := range map[string]string{"disturbed": disturbed, "undisturbed": undisturbed} {
		if diff := cmp.Diff(counted.String(), got); diff != "" {
			t.Errorf("report of the %s run, -want +got:\n%s", name, diff)
		}
	}
	h.startAgain(disturbed)
}

// A killTest is a census that is killed and continued.
type killTest struct {
	t           *testing.T
	binary      string
	source      string
	files       int
	dir         string
	ledger      string
	offset      int64          // of the ledger at the end of the last process
	executed    int            // lines of the ledger up to there
	recorded    map[string]int // completions of each file in the journal after the last process
	rootRunning bool           // in the journal after the last process
}

// A processRun is one process of the program.
type processRun struct {
	command          *exec.Cmd
	report, terminal bytes.Buffer
	ended            chan error
}

func (k *killTest) start() *processRun {
	k.t.Helper()
	l := &processRun{ended: make(chan error, 1)}
	l.command = exec.Command(k.binary, "-dir", k.dir, "-src", k.source, "-ledger", k.ledger,
		"-width", fmt.Sprint(killWidth), "-delay", killDelay.String())
	l.command.Stdout, l.command.Stderr = &l.report, &l.terminal
	if err := l.command.Start(); err != nil {
		k.t.Fatal(err)
	}
	go func() { l.ended <- l.command.Wait() }()
	return l
}

// killMidway kills a process after it has written that many bytes to the ledger.
func (k *killTest) killMidway(bytes int64) {
	k.t.Helper()
	l := k.start()
	deadline := time.Now().Add(testTimeout)
	for k.ledgerSize() < k.offset+bytes {
		select {
		case err := <-l.ended:
			k.t.Fatalf("ended before it was killed: %v\n%s%s", err, &l.terminal, &l.report)
		case <-time.After(time.Millisecond):
		}
		if time.Now().After(deadline) {
			_ = l.command.Process.Kill()
			k.t.Fatalf("%d bytes of the ledger after 30 s", k.ledgerSize()-k.offset)
		}
	}
	k.kill(l)
}

// killEarly kills a process after some time, in any phase: opening the journal, replaying,
// counting.
func (k *killTest) killEarly(after time.Duration) {
	k.t.Helper()
	l := k.start()
	select {
	case err := <-l.ended:
		k.t.Fatalf("ended after less than %v: %v\n%s%s", after, err, &l.terminal, &l.report)
	case <-time.After(after):
	}
	k.kill(l)
}

func (k *killTest) kill(l *processRun) {
	k.t.Helper()
	if err := l.command.Process.Kill(); err != nil {
		k.t.Fatal(err)
	}
	if err := <-l.ended; err == nil || err.Error() != "signal: killed" {
		k.t.Fatalf("not killed: %v\n%s%s", err, &l.terminal, &l.report)
	}
	if k.rootRunning && strings.Contains(l.terminal.String(), "begins") {
		k.t.Errorf("a continued census prints that it begins: %s", &l.terminal)
	}
	k.compare()
	if k.executed > 0 && !k.rootRunning {
		k.t.Fatal("files were counted, but the root is not running")
	}
}

// finish runs the program to its end and returns the report without times.
func (k *killTest) finish() string {
	k.t.Helper()
	l := k.start()
	if err := <-l.ended; err != nil {
		k.t.Fatalf("%v\n%s%s", err, &l.terminal, &l.report)
	}
	if k.compare(); k.rootRunning {
		k.t.Error("the program has ended, the root has not")
	}
	return k.reportWithoutTimes(l, "activities in")
}

// startAgain starts the program on a completed census.
func (k *killTest) startAgain(before string) {
	k.t.Helper()
	l := k.start()
	if err := <-l.ended; err != nil {
		k.t.Fatalf("%v\n%s%s", err, &l.terminal, &l.report)
	}
	if !strings.Contains(l.terminal.String(), "was taken already") {
		k.t.Errorf("the greeting is %q", &l.terminal)
	}
	if size := k.ledgerSize(); size != k.offset {
		k.t.Errorf("the ledger grew by %d bytes", size-k.offset)
	}
	if diff := cmp.Diff(before, k.reportWithoutTimes(l, "nothing left to do")); diff != "" {
		k.t.Errorf("-first +second report:\n%s", diff)
	}
	k.source = k.t.TempDir()
	l = k.start()
	if err := <-l.ended; err == nil || !strings.Contains(l.terminal.String(), "census of another tree") {
		k.t.Errorf("another tree: %v\n%s", err, &l.terminal)
	}
}

func (k *killTest) reportWithoutTimes(l *processRun, want string) string {
	k.t.Helper()
	report, times, _ := strings.Cut(l.report.String(), "\nIt took")
	if !strings.Contains(times, want) {
		k.t.Errorf("the times are %q, want something about %q", times, want)
	}
	return report
}

// compare compares the ledger of the last process with the journal before and after it.
func (k *killTest) compare() {
	k.t.Helper()
	var executed []string
	if k.ledgerSize() > k.offset {
		executed = ledgerLines(k.t, k.ledger, k.offset)
	}
	for _, path := range executed {
		if k.recorded[path] > 0 {
			k.t.Errorf("%s was executed again, after its completion was recorded", path)
		}
	}
	if twice := duplicates(executed); len(twice) > 0 {
		k.t.Errorf("executed twice by one process: %q", twice)
	}
	k.offset = k.ledgerSize()
	k.executed += len(executed)

	recorded, rootRunning := readJournal(k.t, k.dir)
	for path, times := range recorded {
		if times != 1 {
			k.t.Errorf("%d completions are recorded for %s", times, path)
		}
	}
	for path := range k.recorded {
		if recorded[path] == 0 {
			k.t.Errorf("the completion of %s is lost", path)
		}
	}
	known := make(map[string]bool)
	for _, path := range executed {
		known[path] = true
	}
	for path := range recorded {
		if k.recorded[path] == 0 && !known[path] {
			k.t.Errorf("%s is recorded and was never executed", path)
		}
	}
	k.t.Logf("%4d executed, %4d of %d recorded", len(executed), len(recorded), k.files)
	k.recorded, k.rootRunning = recorded, rootRunning
}

func (k *killTest) ledgerSize() int64 {
	info, err := os.Stat(k.ledger)
	if err != nil {
		return 0
	}
	return info.Size()
}

// readJournal opens the journal without a node. It returns the number of completions for each
// file, and whether the root is running.
func readJournal(t *testing.T, dir string) (recorded map[string]int, rootRunning bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	leads := make(chan struct{})
	j, err := journal.Open(ctx, journal.Config{
		Node: "node", Cluster: "tenuto", Dir: dir, Logger: slog.New(slog.DiscardHandler),
		Lead: func(context.Context, uint64) { close(leads) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	select {
	case <-leads:
	case <-ctx.Done():
		t.Fatal("no leader")
	}
	if err := j.Barrier(ctx); err != nil {
		t.Fatal(err)
	}
	recorded = make(map[string]int)
	for instance := range j.Instances() {
		if instance.Instance == censusID {
			rootRunning = instance.Status == journalpb.Status_STATUS_RUNNING
		}
		readCompletions(t, j, instance.Instance, recorded)
	}
	return recorded, rootRunning
}

func readCompletions(t *testing.T, j *journal.Journal, instance string, recorded map[string]int) {
	t.Helper()
	files := make(map[uint64]string) // by the event_id of their schedule
	next := uint64(1)
	for event, err := range j.Events(instance, 0, 1) {
		if err != nil {
			t.Fatal(err)
		}
		if event.EventId != next {
			t.Errorf("%s has event %d, want %d", instance, event.EventId, next)
		}
		next++
		if scheduled := event.GetActivityScheduled(); scheduled.GetName() == CountFile.Name() {
			var path string
			if err := engine.Decode(scheduled.Input, &path); err != nil {
				t.Fatal(err)
			}
			files[event.EventId] = path
		}
		if event.GetActivityFailed() != nil {
			t.Errorf("%s: %s", instance, engine.Describe(event))
		}
		if path, ok := files[event.SourceEventId]; ok && event.GetActivityCompleted() != nil {
			recorded[path]++
		}
	}
}

// randomTree creates thousands of small files.
func randomTree(t *testing.T, random *rand.Rand) string {
	t.Helper()
	top := t.TempDir()
	dirs := []string{top}
	for i := range killDirs {
		dirs = append(dirs, filepath.Join(dirs[random.IntN(len(dirs))], fmt.Sprintf("dir-%d", i)))
	}
	extensions := []string{".go", ".s", ".md", ".txt", ""}
	for i := range killFiles {
		name := fmt.Sprintf("file-%d%s", i, extensions[random.IntN(len(extensions))])
		content := strings.Repeat(fmt.Sprintf("line of %d\n", i), random.IntN(200))
		writeFile(t, filepath.Join(dirs[random.IntN(len(dirs))], name), content)
	}
	return top
}

// ledgerBytes returns the size of the ledger if each file is executed once.
func ledgerBytes(t *testing.T, top string) int64 {
	t.Helper()
	size := int64(0)
	err := filepath.WalkDir(top, func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			size += int64(len(path) + 1)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return size
}
