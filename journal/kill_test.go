package journal

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
)

// childDir is set in the environment of a child process that appends until it is killed;
// childNoSync makes it not sync.
const (
	childDir    = "TENUTO_JOURNAL_CHILD"
	childStore  = "TENUTO_JOURNAL_STORE"
	childNoSync = "TENUTO_JOURNAL_NOSYNC"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		appendUntilKilled(dir)
	}
	os.Exit(m.Run())
}

const childInstances = 8

// appendUntilKilled appends to several instances concurrently and writes a line for each
// acknowledged append.
func appendUntilKilled(dir string) {
	acknowledged := make(chan string, 1024)
	epochs := make(chan uint64, 1)
	j, err := Open(context.Background(), Config{
		Node: "n1", Dir: dir, Logger: slog.New(slog.DiscardHandler),
		// Often, so that kills hit snapshots and truncations too.
		SnapshotThreshold: 64, SnapshotInterval: 20 * time.Millisecond, TrailingLogs: 32,
		StallLimit: noStallLimit,
		tests:      testHooks{noSync: os.Getenv(childNoSync) != ""},
		Lead:       func(_ context.Context, epoch uint64) { epochs <- epoch },
	})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	epoch := <-epochs
	for i := range childInstances {
		go appendForever(j, epoch, fmt.Sprintf("i-%d", i), acknowledged)
	}
	for line := range acknowledged {
		fmt.Println(line)
	}
}

func appendForever(j *Journal, epoch uint64, id string, acknowledged chan<- string) {
	last := uint64(0)
	if in, ok := j.Instance(id); ok {
		last = in.LastEventId
	}
	result := make(chan error, 1)
	for {
		a := newStartAppend(epoch, id)
		if last > 0 {
			a = newStepAppend(epoch, id, last+1)
		}
		j.Append(a, func(err error) { result <- err })
		if err := <-result; err != nil {
			acknowledged <- fmt.Sprint("error ", err)
			return
		}
		last += 2
		acknowledged <- fmt.Sprintf("ack %s %d", id, last)
	}
}

func TestKill_LosesNothingAcknowledged(t *testing.T) {
	dir := t.TempDir()
	acknowledged := map[string]uint64{}
	rounds := waittest.Repetitions(7, 3)
	for round := range rounds {
		killOneChild(t, dir, acknowledged)
		j := openJournal(t, Config{Dir: dir})
		awaitLeadership(t, j)
		for id, want := range acknowledged {
			if got := lastEvent(t, j, id); got < want {
				t.Fatalf("round %d: %s has %d events, %d were acknowledged", round, id, got, want)
			}
		}
		closeJournal(t, j)
	}
	total := uint64(0)
	for _, n := range acknowledged {
		total += n
	}
	t.Logf("%d events acknowledged over %d kills", total, rounds)
}

// killOneChild runs a child for a while after its first acknowledgment, kills it, and records what
// it acknowledged.
func killOneChild(t *testing.T, dir string, acknowledged map[string]uint64) {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childDir+"="+dir)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	var kill *time.Timer
	n := 0
	for ; lines.Scan(); n++ {
		if kill == nil {
			after := time.Duration(rand.IntN(300)) * time.Millisecond
			kill = time.AfterFunc(after, func() { _ = child.Process.Kill() })
			defer kill.Stop()
		}
		recordAck(t, lines.Text(), acknowledged)
	}
	_ = child.Wait() // it was killed
	if n == 0 {
		t.Fatal("the child has acknowledged nothing")
	}
}

func recordAck(t *testing.T, line string, acknowledged map[string]uint64) {
	t.Helper()
	fields := strings.Fields(line)
	if len(fields) != 3 || fields[0] != "ack" {
		if strings.HasPrefix(line, "error") {
			t.Errorf("child: %s", line)
		}
		return // the last line may be cut off
	}
	// A last line that is cut off within its number shows a smaller number.
	last, err := strconv.ParseUint(fields[2], 10, 64)
	if err == nil && last > acknowledged[fields[1]] {
		acknowledged[fields[1]] = last
	}
}
