package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/sample"
	"github.com/tenuto-dev/tenuto/replay"
)

var updateGolden = flag.Bool("update", false, "rewrite the golden files")

// checkGolden compares text with a file below testdata.
func checkGolden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *updateGolden {
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s differs (-want +got); go test -update rewrites it:\n%s", path, diff)
	}
}

// A lab is a cluster of three nodes on which commands run in this process.
type lab struct {
	*clustertest.Cluster
	t    *testing.T
	env  map[string]string
	used map[string]bool // commands that have succeeded
	// swapped changes the code of "shifty", so that it does not fit histories any more.
	swapped *atomic.Bool
	// tokens are those of the activity "by-hand".
	tokens chan string
}

var (
	sleeper  = replay.Orchestration[any, string]("sleeper")
	parent   = replay.Orchestration[any, string]("parent")
	external = replay.Orchestration[any, string]("external")
	shifty   = replay.Orchestration[any, string]("shifty")
	two      = replay.Orchestration[any, string]("two")
	noisy    = replay.Orchestration[string, string]("noisy")
	patient  = replay.Orchestration[int, string]("patient")
	callBank = replay.Activity[int, string]("call-bank") // of package sample
	byHand   = replay.Activity[any, string]("by-hand")
	other    = replay.Activity[any, string]("other")
)

func newLab(t *testing.T) *lab {
	t.Helper()
	t.Setenv("TZ", "UTC")
	l := &lab{t: t, env: make(map[string]string), used: make(map[string]bool), swapped: new(atomic.Bool), tokens: make(chan string, 10)}
	definitions := append(sample.Definitions(),
		sleeper.Bind(func(ctx *replay.Context, _ any) (string, error) { return "awake", ctx.Sleep(24 * time.Hour) }),
		never.Bind(func(ctx *replay.Context, _ string) (string, error) { return word.Wait(ctx) }),
		parent.Bind(func(ctx *replay.Context, _ any) (string, error) {
			return never.Call(ctx, "", replay.ChildID(ctx.InstanceID()+"-child"))
		}),
		external.Bind(func(ctx *replay.Context, _ any) (string, error) {
			return byHand.Call(ctx, nil, replay.Retry(replay.RetryPolicy{InitialInterval: time.Millisecond}))
		}),
		shifty.Bind(func(ctx *replay.Context, _ any) (string, error) {
			first := byHand
			if l.swapped.Load() {
				first = other
			}
			return first.Call(ctx, nil)
		}),
		two.Bind(func(ctx *replay.Context, _ any) (string, error) {
			first, second := ctx.Timer(24*time.Hour), ctx.Timer(24*time.Hour)
			_, err := replay.All(ctx, first, second)
			return "", err
		}),
		noisy.Bind(func(ctx *replay.Context, text string) (string, error) {
			return text, replay.SetStatus(ctx, text)
		}),
		// As "flaky" of package sample, whose next attempt begins too soon for a test that looks at
		// the failed one.
		patient.Bind(func(ctx *replay.Context, failures int) (string, error) {
			return callBank.Call(ctx, failures, replay.Retry(replay.RetryPolicy{InitialInterval: time.Hour, MaxInterval: time.Hour}))
		}),
		byHand.Bind(func(ctx context.Context, _ any) (string, error) {
			l.tokens <- replay.ActivityInfo(ctx).Token()
			return "", replay.ErrResultPending
		}),
		other.Bind(func(context.Context, any) (string, error) { return "", nil }),
	)
	l.Cluster = clustertest.New(t, 3, clustertest.InMemory(), clustertest.Timeout(time.Minute), clustertest.Definitions(definitions...))
	l.env["TENUTO_ADDR"] = strings.Join(l.Addresses(), ",")
	l.env["TENUTO_CONFIG"] = filepath.Join(t.TempDir(), "config.json")
	l.Eventually("the cluster speaks the newest protocol", func() bool { return l.tenuto("activity", "pause", "nothing").status == statusOK })
	l.tenuto("activity", "resume", "nothing").expect(t, statusOK)
	clear(l.used)
	return l
}

// tenuto runs a command.
func (l *lab) tenuto(line ...string) outcome { return l.run(l.t.Context(), nil, nil, line...) }

// tenutoWith runs a command with a standard input.
func (l *lab) tenutoWith(input string, line ...string) outcome {
	return l.run(l.t.Context(), strings.NewReader(input), nil, line...)
}

func (l *lab) run(ctx context.Context, in io.Reader, change func(*streams), line ...string) outcome {
	var out, stderr bytes.Buffer
	s := streams{in: in, out: &out, err: &stderr, env: func(name string) string { return l.env[name] }, written: new(*output.Documents)}
	if change != nil {
		change(&s)
	}
	o := outcome{status: run(ctx, line, s)}
	o.out, o.err = out.String(), stderr.String()
	if c, _ := findCommand(line); c != nil && o.status == statusOK {
		l.used[c.name] = true
	}
	return o
}

// ok runs a command that must succeed, and returns its output.
func (l *lab) ok(line ...string) string {
	l.t.Helper()
	o := l.tenuto(line...)
	if o.status != statusOK {
		l.t.Fatalf("%q: status %d\n%s%s", line, o.status, o.out, o.err)
	}
	return o.out
}

// state waits until an instance is in a state.
func (l *lab) state(id string, want cluster.State) {
	l.t.Helper()
	l.Eventually(id+" is "+string(want), func() bool {
		status, err := l.Client(l.Leader()).Get(l.t.Context(), id)
		return err == nil && status.State == want
	})
}

// normalizers replace what differs between runs.
var normalizers = []struct {
	pattern     *regexp.Regexp
	replacement string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "ADDRESS"},
	{regexp.MustCompile(`\b([0-9.]+(ms|s|m|h|d))+\b`), "DURATION"},
	{regexp.MustCompile(`[0-9a-f]{32,}`), "IDENTITY"},
	{regexp.MustCompile(`[A-Za-z0-9_/+-]{40,}=?`), "KEY"},
	{regexp.MustCompile(`tenuto\.update/[A-Z0-9]{20,}`), "tenuto.update/ID"},
	{regexp.MustCompile(`  +`), "  "},
	{regexp.MustCompile(`n\d  ADDRESS  (leader|follower)  -  alive  DURATION  \d+`), "NODE  ADDRESS  ROLE  -  alive  DURATION  BEHIND"},
	{regexp.MustCompile(`[0-9.]+ per second`), "SPEED"},
	{regexp.MustCompile(`leader  n\d`), "leader  NODE"},
}

func normalize(text string) string {
	for _, n := range normalizers {
		text = n.pattern.ReplaceAllString(text, n.replacement)
	}
	return text
}

// golden runs a command that must succeed and compares its output with a golden file.
func (l *lab) golden(name string, line ...string) {
	l.t.Helper()
	checkGolden(l.t, filepath.Join("tables", name+".txt"), "$ tenuto "+strings.Join(line, " ")+"\n"+normalize(l.ok(line...)))
}

// A script is a sequence of commands, and of a text for each that it must write.
type script [][]string

// eventually runs commands until all of them have succeeded one after the other, each with its
// text. On a busy machine a node may lead no more, or be silent, between two of them. next returns
// the commands, from the leader of the moment.
func (l *lab) eventually(what string, next func(leader int) script) {
	l.t.Helper()
	var unexpected string
	defer func() {
		if unexpected != "" {
			l.t.Log(unexpected)
		}
	}()
	l.Eventually(what, func() bool {
		for _, step := range next(l.Leader()) {
			text, line := step[0], step[1:]
			if o := l.tenuto(line...); o.status != statusOK || !strings.Contains(o.out+o.err, text) {
				unexpected = fmt.Sprintf("%q: status %d; %q is missing in\n%s%s", line, o.status, text, o.out, o.err)
				return false
			}
		}
		unexpected = ""
		return true
	})
}

// A running command.
type running struct {
	l        *lab
	out, err lockedBuffer
	cancel   context.CancelCauseFunc
	status   chan int
}

// begin runs a command in the background.
func (l *lab) begin(line ...string) *running {
	r := &running{l: l, status: make(chan int, 1)}
	ctx, cancel := context.WithCancelCause(l.t.Context())
	r.cancel = cancel
	go func() {
		r.status <- run(ctx, line, streams{out: &r.out, err: &r.err, env: func(name string) string { return l.env[name] }, written: new(*output.Documents)})
	}()
	c, _ := findCommand(line)
	l.used[c.name] = true
	return r
}

// await waits until the command has written a text.
func (r *running) await(text string) {
	r.l.t.Helper()
	r.l.Eventually("the output has "+text, func() bool { return strings.Contains(r.out.String(), text) })
}

func (r *running) end() outcome { return outcome{<-r.status, r.out.String(), r.err.String()} }

// A lockedBuffer may be read while it is written.
type lockedBuffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}
