package recovery_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/backup"
	"github.com/tenuto-dev/tenuto/cluster/recovery"
	"github.com/tenuto-dev/tenuto/internal/shorttest"
	"github.com/tenuto-dev/tenuto/journal"
)

// With asCommand set, the test binary makes a directory from others or from a backup, and ends.
const asCommand = "TENUTO_TEST_MAKES_DIRECTORY"

// A making is what makes a directory: Recover from Dirs, or Restore from Backup.
type making struct {
	To     string
	Dirs   []string
	Backup string
}

func (m *making) run() error {
	ctx, logger := context.Background(), slog.New(slog.DiscardHandler)
	if m.Backup == "" {
		_, err := recovery.Recover(ctx, recovery.Target{Dir: m.To, Logger: logger}, m.Dirs...)
		return err
	}
	file, err := os.Open(m.Backup)
	if err != nil {
		return err
	}
	_, err = backup.Restore(ctx, backup.Target{Dir: m.To, NodeID: "n1", Logger: logger}, file)
	return errors.Join(err, file.Close())
}

func TestMain(tests *testing.M) {
	if encoded := os.Getenv(asCommand); encoded != "" {
		var m making
		err := json.Unmarshal([]byte(encoded), &m)
		if err == nil {
			err = m.run()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(shorttest.Main(tests))
}

// changing has the system calls that change files, and the ones that make changes durable. For
// those that are true the first argument is a file, which must be below the directory of the test.
var changing = map[uint64]bool{
	syscall.SYS_WRITE: true, syscall.SYS_PWRITE64: true, syscall.SYS_WRITEV: true, syscall.SYS_FSYNC: true, syscall.SYS_FDATASYNC: true,
	syscall.SYS_FTRUNCATE: true, syscall.SYS_FALLOCATE: true, syscall.SYS_SYNC_FILE_RANGE: true, syscall.SYS_SENDFILE: true,
	sysCopyFileRange: true, syscall.SYS_OPENAT: false, syscall.SYS_RENAME: false, syscall.SYS_RENAMEAT: false, sysRenameat2: false,
	syscall.SYS_UNLINK: false, syscall.SYS_UNLINKAT: false, syscall.SYS_RMDIR: false, syscall.SYS_LINK: false, syscall.SYS_LINKAT: false,
	syscall.SYS_MKDIR: false, syscall.SYS_MKDIRAT: false,
}

const (
	sysCopyFileRange = 326
	sysRenameat2     = 316

	traceSyscalls = 0x80     // added to the signal of a stop at a system call
	exitKill      = 0x100000 // the child is killed if the test ends
)

// A tracer runs a child process and kills it before one of its file operations.
type tracer struct {
	root string // of the files that count
	// The numbers of the operation among all and among those after the directory has got its name,
	// counted from 1. 0: never.
	stopAt, stopAfter int

	count, after int
	inCall       map[int]bool // threads that are within a system call
	publishing   int          // the thread that gives the directory its name
	published    bool         // it has its name
}

// run runs the child until it ends or is killed, and reports whether it was killed.
func (tr *tracer) run(t *testing.T, m *making) (killed bool) {
	t.Helper()
	encoded, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	output, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), asCommand+"="+string(encoded), "GODEBUG=asyncpreemptoff=1")
	child.Stderr, child.SysProcAttr = output, &syscall.SysProcAttr{Ptrace: true}
	if err := child.Start(); err != nil {
		t.Skipf("SKIPPED: processes cannot be traced here: %v", err)
	}
	pid := child.Process.Pid
	status := tr.follow(t, pid, m.To)
	_ = child.Process.Release()
	if status.Signaled() && status.Signal() == syscall.SIGKILL && tr.stopAt+tr.stopAfter > 0 {
		return true
	}
	if status.ExitStatus() != 0 {
		text, _ := os.ReadFile(output.Name())
		t.Fatalf("the child ended with %d: %s", status.ExitStatus(), text)
	}
	return false
}

// follow traces the threads of a process, which makes the directory to, until it ends.
func (tr *tracer) follow(t *testing.T, pid int, to string) (status syscall.WaitStatus) {
	t.Helper()
	*tr = tracer{root: tr.root, stopAt: tr.stopAt, stopAfter: tr.stopAfter, inCall: make(map[int]bool)}
	if _, err := syscall.Wait4(pid, &status, syscall.WALL, nil); err != nil {
		t.Fatal(err)
	}
	if err := syscall.PtraceSetOptions(pid, syscall.PTRACE_O_TRACESYSGOOD|syscall.PTRACE_O_TRACECLONE|exitKill); err != nil {
		t.Fatal(err)
	}
	_ = syscall.PtraceSyscall(pid, 0)
	for {
		thread, err := syscall.Wait4(-1, &status, syscall.WALL, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			t.Fatal(err)
		case status.Exited() || status.Signaled():
			if thread == pid {
				return status
			}
			continue
		}
		signal := 0
		switch stop := status.StopSignal(); stop {
		case syscall.SIGTRAP | traceSyscalls:
			if tr.atSystemCall(thread, to) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		case syscall.SIGTRAP, syscall.SIGSTOP: // a new thread
		default:
			signal = int(stop)
		}
		_ = syscall.PtraceSyscall(thread, signal) // fails once the process is killed
	}
}

// atSystemCall counts the operation of a thread that begins or ends a system call, and reports
// whether the process has to be killed before it.
func (tr *tracer) atSystemCall(thread int, to string) (kill bool) {
	tr.inCall[thread] = !tr.inCall[thread]
	if !tr.inCall[thread] {
		tr.published = tr.published || tr.publishing == thread
		return false
	}
	var registers syscall.PtraceRegs
	if syscall.PtraceGetRegs(thread, &registers) != nil || !tr.changesFile(thread, &registers) {
		return false
	}
	if renamesTo(thread, &registers, to) {
		tr.publishing = thread
	}
	tr.count++
	if tr.published {
		tr.after++
	}
	return tr.count == tr.stopAt || tr.published && tr.after == tr.stopAfter
}

// renamesTo reports whether a system call gives a file the name to.
func renamesTo(thread int, registers *syscall.PtraceRegs, to string) bool {
	address := registers.R10
	switch registers.Orig_rax {
	case syscall.SYS_RENAME:
		address = registers.Rsi
	case syscall.SYS_RENAMEAT, sysRenameat2:
	default:
		return false
	}
	name := make([]byte, len(to)+1)
	n, err := syscall.PtracePeekData(thread, uintptr(address), name)
	return err == nil && n == len(name) && string(name) == to+"\x00"
}

// changesFile reports whether the system call that a thread begins changes a file of the test.
func (tr *tracer) changesFile(thread int, registers *syscall.PtraceRegs) bool {
	ofFile, known := changing[registers.Orig_rax]
	switch {
	case !known:
		return false
	case registers.Orig_rax == syscall.SYS_OPENAT:
		return registers.Rdx&syscall.O_CREAT != 0
	case !ofFile:
		return true
	}
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", thread, registers.Rdi))
	return err == nil && strings.HasPrefix(path, tr.root)
}

// backUpEight runs eight instances and writes a backup to a file in dir.
func backUpEight(t *testing.T, client *cluster.Client, dir string) (path string) {
	t.Helper()
	for i := range 8 {
		if _, err := cluster.Call(t.Context(), client, doubled, fmt.Sprint("before-", i), i); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.Create(filepath.Join(dir, "full.backup"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := backup.Write(t.Context(), client, file, backup.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	return file.Name()
}

// Recover and Restore are killed before any of their file operations. Then the new directory is
// missing or complete, the old ones are as before, and the command can be repeated.
func TestCrash_BeforeAnyFileOperation(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	members := newCluster(t, 3, 2)
	client := members[2].node.Client()
	root := t.TempDir()
	full := backUpEight(t, client, root)
	if _, err := cluster.StartRun(ctx, client, waiter, "open", "order"); err != nil {
		t.Fatal(err)
	}
	stop(t, members...)
	dirs := []string{members[1].config.Dir, members[2].config.Dir}
	for name, m := range map[string]*making{
		"recover": {To: filepath.Join(root, "recovered"), Dirs: dirs},
		"restore": {To: filepath.Join(root, "restored"), Backup: full},
	} {
		t.Run(name, func(t *testing.T) { crashBeforeOperations(t, m, filepath.Dir(root), dirs) })
	}
}

// crashPoints returns the operations before which a command with that many is killed: with
// TENUTO_FAULTS every one, otherwise some of them.
func crashPoints(total int) (points []int) {
	count := 6
	switch {
	case os.Getenv("TENUTO_FAULTS") != "":
		count = total
	case testing.Short():
		count = 3
	}
	step := (total + count - 1) / count
	for at := 1 + rand.IntN(step); at <= total; at += step {
		points = append(points, at)
	}
	return points
}

func crashBeforeOperations(t *testing.T, m *making, root string, sources []string) {
	before := inspect(t, sources)
	tr := &tracer{root: root}
	tr.run(t, m)
	total, want := tr.count, completeDirectory(t, m.To)
	if total < 100 || want < 8 {
		t.Fatalf("%d file operations, %d instances", total, want)
	}
	missing, complete := 0, 0
	crash := func() (killed, published bool) {
		killed, published = crashOnce(t, tr, m)
		if got := completeDirectory(t, m.To); got != want {
			t.Fatalf("after a crash before operation %d of %d: %d instances, want %d", tr.count, total, got, want)
		}
		switch {
		case !killed: // this run needed fewer operations
		case published:
			complete++
		default:
			missing++
		}
		return killed, published
	}
	for _, tr.stopAt = range crashPoints(total) {
		crash()
	}
	tr.stopAt = 0
	for tr.stopAfter = range 4 { // 0: it is not killed
		if killed, published := crash(); killed != (tr.stopAfter > 0) || !published {
			t.Errorf("before operation %d after the directory has its name: killed %v, a directory %v", tr.stopAfter, killed, published)
		}
	}
	if missing == 0 {
		t.Error("no crash came before the directory had its name")
	}
	if after := inspect(t, sources); after != before {
		t.Errorf("the old directories have\n%s, and had\n%s", after, before)
	}
	t.Logf("%d file operations; %d crashes left no directory, %d a complete one", total, missing, complete)
	startsAlone(t, m.To)
}

// crashOnce runs the command, kills it before an operation, and runs it again if it has left no
// directory. It is not killed if this run needs fewer operations.
func crashOnce(t *testing.T, tr *tracer, m *making) (killed, published bool) {
	if err := os.RemoveAll(m.To); err != nil {
		t.Fatal(err)
	}
	killed = tr.run(t, m)
	if _, err := os.Stat(m.To); !errors.Is(err, fs.ErrNotExist) {
		return killed, true
	}
	if !killed {
		t.Fatal("the command has ended without an error and made nothing")
	}
	if err := m.run(); err != nil {
		t.Fatalf("again, after a crash before operation %d: %v", tr.count, err)
	}
	return true, false
}

// inspect returns what directories have.
func inspect(t *testing.T, dirs []string) string {
	t.Helper()
	report, err := recovery.Inspect(t.Context(), dirs...)
	if err != nil {
		t.Fatal(err)
	}
	return report.String()
}

// completeDirectory checks the directory of a node that is the only member, and returns how many
// instances it has.
func completeDirectory(t *testing.T, dir string) (instances int) {
	t.Helper()
	report, err := recovery.Inspect(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	for number, p := range report.Partitions {
		if len(p.Members) != 1 {
			t.Fatalf("partition %d has the members %v", number, p.Members)
		}
		verified, err := journal.VerifyState(t.Context(), journal.PartitionDir(dir, number), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		instances += int(verified.Instances)
	}
	return instances
}

// startsAlone starts a node with a directory that was made.
func startsAlone(t *testing.T, dir string) {
	t.Helper()
	report, err := recovery.Inspect(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	made := &member{config: cluster.Config{NodeID: report.Partitions[0].Members[0], Dir: dir, Partitions: len(report.Partitions)}}
	start(t, made)
	if status, err := made.node.Client().Get(t.Context(), "before-7"); err != nil || status.Continued == "" {
		t.Errorf("%+v, %v", status, err)
	}
	stop(t, made)
}

// A disk that becomes full while the directory is made: nothing is left of it, and the command can
// be repeated when there is room.
func TestFullDisk_CommandCanBeRepeated(t *testing.T) {
	switch {
	case os.Getenv("CI") == "true":
		t.Skip("SKIPPED: nothing is mounted in CI")
	case os.Geteuid() != 0:
		t.Skip("SKIPPED: filling a disk needs root, to mount one that is small")
	}
	members := newCluster(t, 2, 1)
	client := members[0].node.Client()
	full := backUpEight(t, client, t.TempDir())
	stop(t, members...)
	for name, m := range map[string]*making{"recover": {Dirs: []string{members[0].config.Dir}}, "restore": {Backup: full}} {
		t.Run(name, func(t *testing.T) {
			disk := t.TempDir()
			const least = 4 << 10
			if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, fmt.Sprint("size=", least)); err != nil {
				t.Skipf("SKIPPED: a small disk cannot be mounted: %v", err)
			}
			// A state store that has failed keeps its files open until the process ends.
			t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
			m.To = filepath.Join(disk, "node")
			failures := 0
			for size := least; ; size += size / 2 {
				if err := syscall.Mount("tmpfs", disk, "tmpfs", syscall.MS_REMOUNT, fmt.Sprint("size=", size)); err != nil {
					t.Fatal(err)
				}
				err := m.run()
				if err == nil {
					break
				}
				failures++
				if !journal.IsDiskFull(err) || size > 1<<30 {
					t.Fatalf("with %d bytes: %v", size, err)
				}
				if left, err := os.ReadDir(disk); err != nil || len(left) > 0 {
					t.Fatalf("with %d bytes: %v, %v are left", size, err, left)
				}
			}
			// To open the directory takes some space too.
			if err := syscall.Mount("tmpfs", disk, "tmpfs", syscall.MS_REMOUNT, "size=256m"); err != nil {
				t.Fatal(err)
			}
			if failures < 3 || completeDirectory(t, m.To) < 8 {
				t.Errorf("the disk was full %d times", failures)
			}
			startsAlone(t, m.To)
		})
	}
}
