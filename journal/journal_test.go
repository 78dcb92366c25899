package journal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tenuto-dev/tenuto/journal/internal/raftlog"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

func TestAppend_IsReadBack(t *testing.T) {
	for name, dir := range map[string]string{"disk": t.TempDir(), "memory": ""} {
		t.Run(name, func(t *testing.T) {
			j := openJournal(t, Config{Dir: dir})
			epoch := awaitLeadership(t, j)
			changed, cancel := j.Watch("a")
			defer cancel()
			mustAppend(t, j, newStartAppend(epoch, "a"))
			mustAppend(t, j, newStepAppend(epoch, "a", 3))
			<-changed
			if last := lastEvent(t, j, "a"); last != 4 {
				t.Errorf("%d events", last)
			}
			if in, ok := j.Instance("a"); !ok || in.LastEventId != 4 || in.Name != "test" {
				t.Errorf("instance %v", in)
			}
			if e, err := j.Event("a", 1, 3); err != nil || e.SourceEventId != 2 {
				t.Errorf("event 3: %v, %v", e, err)
			}
			if _, err := j.Event("b", 1, 3); !errors.Is(err, state.ErrNotFound) {
				t.Error(err)
			}
			wantOpen(t, j, "a/4")
			if node, address := j.Leader(); node != "n1" || address != "n1" {
				t.Errorf("leader %s at %s", node, address)
			}
			if err := j.Barrier(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRestart_KeepsState(t *testing.T) {
	for name, snapshot := range map[string]bool{"from the log": false, "from a snapshot and the log": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			j := openJournal(t, Config{Dir: dir})
			epoch := awaitLeadership(t, j)
			for i := range 20 {
				mustAppend(t, j, newStartAppend(epoch, fmt.Sprintf("i-%02d", i)))
			}
			if snapshot {
				if err := j.raft.Snapshot().Error(); err != nil {
					t.Fatal(err)
				}
			}
			mustAppend(t, j, newStepAppend(epoch, "i-07", 3))
			hash, err := j.Hash("i-07")
			if err != nil {
				t.Fatal(err)
			}
			open := openOperations(j)
			closeJournal(t, j)

			again := openJournal(t, Config{Dir: dir})
			if next := awaitLeadership(t, again); next != epoch+1 {
				t.Errorf("epoch %d after %d", next, epoch)
			}
			if got, err := again.Hash("i-07"); err != nil || got != hash {
				t.Errorf("hash differs: %v", err)
			}
			if got := openOperations(again); fmt.Sprint(got) != fmt.Sprint(open) || len(got) != 20 {
				t.Errorf("open %v, want %v", got, open)
			}
			mustAppend(t, again, newStepAppend(epoch+1, "i-07", 5))
		})
	}
}

func TestAppend_ConcurrentAppendsShareEntries(t *testing.T) {
	j := openJournal(t, Config{Dir: t.TempDir()})
	epoch := awaitLeadership(t, j)
	before := j.AppliedIndex()
	const instances, steps = 100, 10
	var all sync.WaitGroup
	for i := range instances {
		all.Go(func() {
			id := fmt.Sprintf("i-%d", i)
			err := proposeAppend(t, j, newStartAppend(epoch, id))
			for n := uint64(1); err == nil && n < steps; n++ {
				err = proposeAppend(t, j, newStepAppend(epoch, id, 2*n+1))
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	entries := j.AppliedIndex() - before
	t.Logf("%d appends in %d entries", instances*steps, entries)
	if entries > instances*steps/2 {
		t.Errorf("%d appends took %d entries", instances*steps, entries)
	}
	for i := range instances {
		if last := lastEvent(t, j, fmt.Sprintf("i-%d", i)); last != 2*steps {
			t.Errorf("instance %d has %d events", i, last)
		}
	}
}

func TestAppend_KeepsCallerOrder(t *testing.T) {
	j := openJournal(t, Config{})
	epoch := awaitLeadership(t, j)
	const appends = 2000
	results := make(chan error, appends)
	j.Append(newStartAppend(epoch, "a"), func(err error) { results <- err })
	for n := uint64(1); n < appends; n++ {
		j.Append(newStepAppend(epoch, "a", 2*n+1), func(err error) { results <- err })
	}
	for range appends {
		if err := <-results; err != nil {
			t.Fatal(err)
		}
	}
}

func TestAppend_ReturnsStateMachineErrors(t *testing.T) {
	j := openJournal(t, Config{})
	epoch := awaitLeadership(t, j)
	mustAppend(t, j, newStartAppend(epoch, "a"))
	var stale *state.StaleEpochError
	if err := proposeAppend(t, j, newStepAppend(epoch-1, "a", 3)); !errors.As(err, &stale) {
		t.Error(err)
	}
	var conflict *state.ConflictError
	if err := proposeAppend(t, j, newStepAppend(epoch, "a", 2)); !errors.As(err, &conflict) || conflict.Last != 2 {
		t.Error(err)
	}
	var invalid *state.InvalidAppendError
	if err := proposeAppend(t, j, newAppend(epoch, "a", 3, &journalpb.Event{})); !errors.As(err, &invalid) {
		t.Error(err)
	}
	if last := lastEvent(t, j, "a"); last != 2 {
		t.Errorf("%d events", last)
	}
}

func TestAppend_OneOfManyProposersWins(t *testing.T) {
	j := openJournal(t, Config{})
	epoch := awaitLeadership(t, j)
	mustAppend(t, j, newStartAppend(epoch, "a"))
	var won, lost atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			var conflict *state.ConflictError
			switch err := proposeAppend(t, j, newStepAppend(epoch, "a", 3)); {
			case err == nil:
				won.Add(1)
			case errors.As(err, &conflict):
				lost.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if won.Load() != 1 || lost.Load() != 7 {
		t.Errorf("%d won, %d lost", won.Load(), lost.Load())
	}
}

func TestAppend_QueueIsBounded(t *testing.T) {
	j := openJournal(t, Config{QueueRecordsMax: 4, QueueBytesMax: 2000, AppendBytesMax: 1500, InFlightMax: 1, PackRecordsMax: 1})
	epoch := awaitLeadership(t, j)
	var large *TooLargeError
	huge := newStartAppend(epoch, string(make([]byte, 3000)))
	if err := proposeAppend(t, j, huge); !errors.As(err, &large) || large.Max != 1500 {
		t.Error(err)
	}
	// The first done blocks the completer, so nothing leaves the queue.
	hold := make(chan struct{})
	var results []chan error
	for i := range 20 {
		result := make(chan error, 1)
		results = append(results, result)
		j.Append(newStartAppend(epoch, fmt.Sprintf("i-%d", i)), func(err error) {
			if err == nil {
				<-hold
			}
			result <- err
		})
	}
	busy := 0
	close(hold)
	for _, r := range results {
		if err := <-r; errors.Is(err, ErrBusy) {
			busy++
		} else if err != nil {
			t.Error(err)
		}
	}
	if busy == 0 || busy == 20 {
		t.Errorf("%d of 20 rejected", busy)
	}
}

func TestClose_RejectsCallsAndResolvesPending(t *testing.T) {
	ended := make(chan struct{})
	j := openJournal(t, Config{Dir: t.TempDir(), Lead: func(ctx context.Context, _ uint64) {
		<-ctx.Done()
		close(ended)
	}})
	epoch := awaitLeadership(t, j)
	var answered atomic.Int32
	const appends = 500
	for i := range appends {
		j.Append(newStartAppend(epoch, fmt.Sprintf("i-%d", i)), func(err error) {
			if err != nil && !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
			answered.Add(1)
		})
	}
	closeJournal(t, j)
	closeJournal(t, j)
	select {
	case <-ended:
	default:
		t.Error("Close did not wait for Lead")
	}
	if n := answered.Load(); n != appends {
		t.Errorf("%d of %d answered", n, appends)
	}
	if err := proposeAppend(t, j, newStartAppend(epoch, "late")); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := j.Barrier(t.Context()); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := j.TransferLeadership(t.Context()); !errors.Is(err, ErrNotLeader) {
		t.Error(err)
	}
}

func TestOpen_LocksAndStampsDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	j := openJournal(t, Config{Dir: dir})
	var locked *LockedError
	if _, err := Open(t.Context(), testConfig(Config{Dir: dir})); !errors.As(err, &locked) {
		t.Errorf("second open: %v", err)
	}
	closeJournal(t, j)
	var identity *IdentityError
	if _, err := Open(t.Context(), testConfig(Config{Dir: dir, Node: "n2"})); !errors.As(err, &identity) {
		t.Errorf("another node: %v", err)
	}
	for name, want := range map[string]os.FileMode{".": 0o700, ownerFile: 0o600, lockFile: 0o600, raftlog.FileName: 0o600} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, error %v", name, info.Mode(), err)
		}
	}
	stamp := filepath.Join(dir, ownerFile)
	if err := os.WriteFile(stamp, []byte("tenuto journal 1\nnode n1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var format *FormatError
	if _, err := Open(t.Context(), testConfig(Config{Dir: dir})); !errors.As(err, &format) || format.Have != "tenuto journal 1" || format.Want != directoryFormat {
		t.Errorf("a directory of another format: %v", err)
	}
	if err := os.Remove(stamp); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), testConfig(Config{Dir: dir})); !errors.As(err, &identity) {
		t.Errorf("a log without a stamp: %v", err)
	}
}

func TestOpen_ValidatesConfig(t *testing.T) {
	for name, c := range map[string]Config{
		"no node":               {},
		"peers without network": {Node: "a", Peers: []Peer{{Node: "a", Address: "x"}, {Node: "b", Address: "y"}}},
		"not among the peers":   {Node: "a", Peers: []Peer{{Node: "b", Address: "y"}}},
		"lease over heartbeat":  {Node: "a", HeartbeatTimeout: 10, LeaderLease: 20},
		"election too short":    {Node: "a", HeartbeatTimeout: 20, ElectionTimeout: 10},
		"negative limit":        {Node: "a", InFlightMax: -1},
		"append over the queue": {Node: "a", QueueBytesMax: 10, AppendBytesMax: 20},
	} {
		if _, err := Open(t.Context(), c); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
	if err := func() error {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := Open(ctx, Config{Node: "a"})
		return err
	}(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func openOperations(j *Journal) []string {
	var all []string
	for op := range j.OpenOperations() {
		all = append(all, fmt.Sprintf("%s/%d", op.Ref.Instance, op.Ref.EventId))
	}
	return all
}

func wantOpen(t *testing.T, j *Journal, want ...string) {
	t.Helper()
	if got := openOperations(j); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("open %v, want %v", got, want)
	}
}

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
