package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
	"github.com/tenuto-dev/tenuto/replay"
)

// A process whose reader has ended ends quietly.
func TestProcess_BrokenPipe(t *testing.T) {
	address, client := startCluster(t)
	for i := range 20 {
		if _, err := cluster.StartRun(t.Context(), client, never, fmt.Sprintf("never-%02d", i), ""); err != nil {
			t.Fatal(err)
		}
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), os.Args[0], "list", "-json")
	command.Env = append(os.Environ(), asCommand+"=1", addressVariable+"="+address, "XDG_CONFIG_HOME="+t.TempDir())
	var stderr bytes.Buffer
	command.Stdout, command.Stderr = writer, &stderr
	err = command.Run()
	_ = writer.Close()
	if err == nil || stderr.Len() > 0 {
		t.Errorf("%v, errors: %q", err, stderr.String())
	}
}

// Signals end a process with their status.
func TestProcess_Signals(t *testing.T) {
	address, _ := startCluster(t)
	for signal, want := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		command := exec.CommandContext(t.Context(), os.Args[0], "history", "-follow", "never-1")
		command.Env = append(os.Environ(), asCommand+"=1", addressVariable+"="+address, "XDG_CONFIG_HOME="+t.TempDir())
		out, err := command.StdoutPipe()
		var stderr bytes.Buffer
		command.Stderr = &stderr
		if err == nil {
			err = command.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil { // it has begun
			t.Fatal(err)
		}
		if err := command.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		_ = command.Wait()
		if got := command.ProcessState.ExitCode(); got != want || stderr.Len() > 0 {
			t.Errorf("after %v: status %d; want %d; errors: %q", signal, got, want, stderr.String())
		}
	}
}

// A blockedFile tells that it is read, and has nothing.
type blockedFile struct {
	*os.File
	begun, end chan struct{}
}

func (f *blockedFile) Read([]byte) (int, error) {
	close(f.begun)
	<-f.end
	return 0, io.EOF
}

// An interrupt also ends a command that waits for its standard input.
func TestInput_Interrupted(t *testing.T) {
	address, _ := startCluster(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	file := &blockedFile{begun: make(chan struct{}), end: make(chan struct{})}
	limit := time.AfterFunc(20*time.Second, func() { close(file.end) })
	env := map[string]string{"TENUTO_ADDR": address, "XDG_CONFIG_HOME": t.TempDir()}
	var out, stderr bytes.Buffer
	status := make(chan int)
	go func() {
		status <- run(ctx, []string{"get", "never-1", "-"}, streams{
			in: &interruptibleInput{ctx, file}, out: &out, err: &stderr, env: func(name string) string { return env[name] }, written: new(*output.Documents),
		})
	}()
	<-file.begun
	cancel(&signalError{syscall.SIGINT})
	if got := <-status; got != 130 || out.Len()+stderr.Len() > 0 {
		t.Errorf("status %d, output: %q, errors: %q", got, out.String(), stderr.String())
	}
	if limit.Stop() {
		close(file.end)
	} else {
		t.Error("the command has waited for the end of its input")
	}
}

// IDs come from a pipe without "-", and the standard input of a script is left alone.
func TestProcess_PipedIDs(t *testing.T) {
	address, _ := startCluster(t)
	t.Setenv("TENUTO_ADDR", address)
	t.Setenv("TENUTO_CONFIG", "/nowhere")
	shell := installed(t, "sh")
	for _, c := range []struct{ script, want string }{
		{"tenuto list -o ids | tenuto get -o json | wc -l", "2\n"},
		{"tenuto list -o ids | tenuto suspend -dry-run - 2>/dev/null || echo $?", "would suspend never-1 (running)\n1\n"},
		{"tenuto list -o ids | while read id; do tenuto list -prefix $id -o ids; done", "hello-1\nnever-1\n"},
		{"tenuto get </dev/null 2>/dev/null || echo $?", "2\n"},
		{`printf '"Bo"' | tenuto start hello hello-2 - -wait`, "\"hello Bo\"\n"},
	} {
		command := exec.CommandContext(t.Context(), shell, "-c", c.script)
		command.Env = asTenuto(t)
		out, err := command.Output()
		if err != nil || string(out) != c.want {
			t.Errorf("%s: %q, %v; want %q", c.script, out, err, c.want)
		}
	}
}

// reversing is a codec that the command does not have.
type reversing struct{}

func (reversing) Encode(data []byte) ([]byte, string, error) {
	return reversed(data), "test/reversed", nil
}

func (reversing) Decode(encoded []byte, _ string) ([]byte, error) { return reversed(encoded), nil }

func reversed(data []byte) []byte {
	turned := make([]byte, len(data))
	for i, b := range data {
		turned[len(data)-1-i] = b
	}
	return turned
}

// Payloads that only a codec can read are shown as such, and inputs are sent without it.
func TestCodec_EncodedPayloads(t *testing.T) {
	c := clustertest.New(t, 1, clustertest.InMemory(), clustertest.Configure(func(_ int, config *cluster.Config) {
		config.PayloadConverter = replay.PayloadConverter{Codec: reversing{}}
	}), clustertest.Definitions(
		hello.Bind(func(ctx *replay.Context, name string) (string, error) {
			if name == "" {
				return "", replay.NewError("no-name", "secret text")
			}
			return "hello " + name, replay.SetStatus(ctx, "greeting")
		}),
	))
	env := map[string]string{"TENUTO_ADDR": c.Addresses()[0], "XDG_CONFIG_HOME": t.TempDir()}
	do := func(line ...string) outcome { return runAlone(t, env, line...) }
	do("start", "hello", "hello-1", `"Ada"`, "-wait").expect(t, statusOK, `{"data":"`, `"contentType":"test/reversed"}`)
	status, err := c.Client(0).Get(t.Context(), "hello-1")
	var greeting string
	if err == nil {
		err = status.Output(&greeting)
	}
	if err != nil || greeting != "hello Ada" {
		t.Errorf("the node has %q, %v", greeting, err)
	}
	do("get", "hello-1").expect(t, statusOK, "output         (11 bytes of test/reversed)", "custom-status  (10 bytes of test/reversed)")
	do("get", "hello-1", "-json").expect(t, statusOK, `"output":{"data":"`)
	do("history", "hello-1").expect(t, statusOK, "output=(11 bytes of test/reversed)")
	do("history", "hello-1", "-o", "yaml").expect(t, statusOK, "contentType: test/reversed\n")
	do("watch", "hello-1", "-from", "1/1", "-o", "json").expect(t, statusOK, `"value":{"data":"`)
	do("start", "hello", "hello-2", `""`, "-wait").expect(t, statusRejected, "hello-2 has failed")
	for _, o := range []outcome{do("get", "hello-2"), do("history", "hello-2"), do("watch", "hello-2", "-from", "1/1")} {
		if o.status != statusOK || strings.Contains(o.out+o.err, "secret text") {
			t.Errorf("status %d, %s%s", o.status, o.out, o.err)
		}
	}
}

// A command that nobody answers ends within its timeout.
func TestTimeout_BoundsCalls(t *testing.T) {
	l := newLab(t)
	leader := l.Leader()
	l.Kill((leader + 1) % 3)
	l.Kill((leader + 2) % 3)
	// Until its lease ends, the leader answers.
	l.Eventually("no node leads", func() bool { return !l.Node(leader).IsLeader() })
	reads := [][]string{{"get", "a"}, {"list"}, {"count"}, {"pending", "a"}, {"settings"}, {"token", "-list"}, {"schedule", "list"}, {"audit"}, {"activity", "list"}}
	changes := [][]string{{"cancel", "a"}, {"start", "greet", "a"}, {"send", "a", "b"}, {"retry", "a"}, {"token"}, {"settings", "PayloadMax=9999"}}
	for i, line := range append(reads, changes...) {
		begun := time.Now()
		o := l.tenuto(append(line, "-timeout", "200ms")...)
		isOutcome := o.status == statusUnavailable || o.status == statusUnknown && i >= len(reads)
		if took := time.Since(begun); !isOutcome || took > 10*time.Second {
			t.Errorf("%q: status %d after %s: %s", line, o.status, took, o.err)
		}
	}
}

// The answer of the attempt that deletes an instance may be lost. The command has deleted it all
// the same.
func TestPurge_AnswerIsLost(t *testing.T) {
	var first *cluster.Client // makes the attempt whose answer is lost
	c := clustertest.New(t, 1, clustertest.InMemory(), clustertest.Configure(func(_ int, config *cluster.Config) {
		config.ClientInterceptors = []replay.ClientInterceptor{func(ctx context.Context, call replay.ClientCall, next func(context.Context) error) error {
			if call.Kind == string(cluster.ActionPurge) {
				_, _ = first.Purge(ctx, "hello-1")
			}
			return next(ctx)
		}}
	}), clustertest.Definitions(hello.Bind(func(_ *replay.Context, name string) (string, error) { return name, nil })))
	first, err := cluster.Dial(t.Context(), cluster.DialConfig{Addresses: c.Addresses()})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if _, err := cluster.Call(t.Context(), first, hello, "hello-1", "Ada"); err != nil {
		t.Fatal(err)
	}
	s := &session{Client: c.Client(0)}
	if err := s.purge(t.Context(), "hello-1"); err != nil {
		t.Error(err)
	}
	if err := s.purge(t.Context(), "hello-1"); !errors.Is(err, cluster.ErrNotFound) {
		t.Errorf("purged again: %v", err)
	}
}
