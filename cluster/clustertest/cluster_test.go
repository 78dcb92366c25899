package clustertest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay"
)

var (
	double = replay.Activity[int, int]("double")
	word   = replay.Event[int]("word")
	// doubled waits for a number event and doubles it.
	doubled = replay.Orchestration[string, int]("doubled")
)

func doubledBody(ctx *replay.Context, _ string) (int, error) {
	n, err := word.Wait(ctx)
	if err != nil {
		return 0, err
	}
	return double.Call(ctx, n)
}

func definitions() Option {
	return Definitions(
		double.Bind(func(_ context.Context, n int) (int, error) { return 2 * n, nil }),
		doubled.Bind(doubledBody),
	)
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), timeoutDefault)
	t.Cleanup(cancel)
	return ctx
}

// startInstances starts instances that wait for their event.
func startInstances(t *testing.T, client *cluster.Client, n int) {
	t.Helper()
	for i := range n {
		if _, err := cluster.StartRun(testContext(t), client, doubled, fmt.Sprintf("d-%d", i), ""); err != nil {
			t.Fatal(err)
		}
	}
}

// expectFinished sends the events and checks that all instances end with the right result.
func expectFinished(t *testing.T, client *cluster.Client, n int) {
	t.Helper()
	ctx := testContext(t)
	for i := range n {
		if err := cluster.Send(ctx, client, fmt.Sprintf("d-%d", i), word, i); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		status, err := client.Wait(ctx, fmt.Sprintf("d-%d", i))
		if err != nil {
			t.Fatal(err)
		}
		var got int
		if err := status.Output(&got); err != nil || got != 2*i {
			t.Errorf("d-%d: %d, %v; want %d", i, got, err, 2*i)
		}
	}
}

const instanceCount = 8

func TestKill_InstancesSurviveLeaderDeath(t *testing.T) {
	t.Parallel()
	c := New(t, 3, definitions())
	old := c.Leader()
	other := (old + 1) % 3
	startInstances(t, c.Client(other), instanceCount)
	c.Kill(old)
	if now := c.Leader(); now == old {
		t.Errorf("the killed node %d leads", now)
	}
	expectFinished(t, c.Client(other), instanceCount)

	if _, err := c.Client(old).Get(testContext(t), "d-0"); !errors.Is(err, cluster.ErrClosed) {
		t.Errorf("a killed node answers %v", err)
	}
	c.Restart(old)
	c.Eventually("the restarted node has what it missed", func() bool {
		status, err := c.Client(old).Get(testContext(t), fmt.Sprintf("d-%d", instanceCount-1), cluster.Stale())
		return err == nil && status.State == cluster.Completed
	})
}

func TestIsolate_InstancesSurvive(t *testing.T) {
	t.Parallel()
	c := New(t, 3, definitions())
	old := c.Leader()
	other := (old + 1) % 3
	startInstances(t, c.Client(other), instanceCount)
	c.Isolate(old)
	if now := c.Leader(); now == old {
		t.Errorf("node %d leads although it is isolated", now)
	}
	expectFinished(t, c.Client(other), instanceCount)

	status, err := c.Client(old).Get(testContext(t), "d-0", cluster.Stale())
	if err != nil || status.Ended() {
		t.Errorf("the disconnected node returned %+v, %v; it cannot know the end", status, err)
	}
	c.Heal()
	c.Eventually("the node has what it missed", func() bool {
		status, err := c.Client(old).Get(testContext(t), "d-0", cluster.Stale())
		return err == nil && status.Ended()
	})
}

func TestPause_InstancesSurvivePausedLeader(t *testing.T) {
	t.Parallel()
	c := New(t, 3, definitions())
	client, err := cluster.Dial(testContext(t), cluster.DialConfig{Addresses: c.Addresses()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	startInstances(t, client, instanceCount)
	old := c.Leader()
	c.Pause(old)
	expectFinished(t, client, instanceCount)
	if now := c.Leader(); now == old {
		t.Errorf("node %d leads, which hangs", now)
	}
	c.Resume(old)
	c.Eventually("the node follows", func() bool { return c.Node(old).Leader() == nodeID(c.Leader()) })
}

func TestPause_CallWaitsForResume(t *testing.T) {
	t.Parallel()
	c := New(t, 1, definitions())
	client, err := cluster.Dial(testContext(t), cluster.DialConfig{Addresses: c.Addresses()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c.Pause(0)
	answered := make(chan error, 1)
	go func() {
		_, err := cluster.StartRun(testContext(t), client, doubled, "d-0", "")
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Fatalf("the paused node has answered: %v", err)
	case <-time.After(20 * time.Millisecond): // time for a wrong answer to arrive
	}
	c.Resume(0)
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

func TestRestart_UsesNewCode(t *testing.T) {
	t.Parallel()
	starts := 0
	c := New(t, 1, definitions(), Configure(func(i int, config *cluster.Config) {
		if starts++; starts == 1 {
			config.Definitions = config.Definitions[:1] // without the orchestration
		}
	}))
	if _, err := cluster.StartRun(testContext(t), c.Client(0), doubled, "d-0", ""); !errors.As(err, new(*replay.NotRegisteredError)) {
		t.Errorf("%v; want that there is no code", err)
	}
	c.Restart(0)
	startInstances(t, c.Client(0), 1)
	expectFinished(t, c.Client(0), 1)
}

func TestGoroutineSet_FindsLeak(t *testing.T) {
	t.Parallel()
	f := newGoroutineSet()
	release := make(chan struct{})
	f.run(func() { go func() { <-release }() })
	if leaked := f.leaked(0); !strings.Contains(leaked, "TestGoroutineSet_FindsLeak") {
		t.Errorf("the goroutine was not found: %q", leaked)
	}
	if leaked := newGoroutineSet().leaked(0); leaked != "" {
		t.Errorf("another family has it: %s", leaked)
	}
	close(release)
	if leaked := f.leaked(leakTimeout); leaked != "" {
		t.Errorf("left: %s", leaked)
	}
}

func TestGoroutineSet_IgnoresPooledHTTPConns(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"HTTP/1.1", "HTTP/2.0"} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		server.EnableHTTP2 = version == "HTTP/2.0"
		server.StartTLS()
		f := newGoroutineSet()
		f.run(func() {
			response, err := server.Client().Get(server.URL)
			if err != nil || response.Proto != version {
				t.Errorf("%+v, %v; want an answer by %s", response, err, version)
				return
			}
			if err := response.Body.Close(); err != nil {
				t.Error(err)
			}
		})
		if leaked := f.leaked(time.Second); leaked != "" {
			t.Errorf("%s: the connection that is kept counts as left behind:\n%s", version, leaked)
		}
		server.Close()
	}
}

// A fakeTB stands in for a test that fails.
type fakeTB struct {
	testing.TB
	message strings.Builder
}

func (f *fakeTB) Helper() {}

func (f *fakeTB) Fatalf(format string, args ...any) {
	fmt.Fprintf(&f.message, format, args...)
	runtime.Goexit()
}

// fatalMessage returns the message with which a test fails.
func fatalMessage(c *Cluster, what func()) string {
	f := &fakeTB{TB: c.t}
	real := c.t
	c.t = f
	defer func() { c.t = real }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		what()
	}()
	<-done
	return f.message.String()
}

func TestCluster_FailureNamesCause(t *testing.T) {
	t.Parallel()
	c := New(t, 3, definitions(), InMemory(), Timeout(20*time.Second))
	c.Kill(2)
	c.Disconnect(0, 1)
	c.options.timeout = time.Millisecond
	for _, failure := range []struct {
		what func()
		want string
	}{
		{func() { c.Leader() }, "a leader that a majority follows"},
		{func() { c.Leader() }, "node 2: killed"},
		{func() { c.Leader() }, "disconnected from 1"},
		{func() { c.Restart(2) }, "node 2 is in memory"},
		{func() { c.Disconnect(1, 1) }, "node 1 cannot be disconnected from itself"},
		{func() { c.Kill(3) }, "node 3: there are 3, counted from 0"},
	} {
		if got := fatalMessage(c, failure.what); !strings.Contains(got, failure.want) {
			t.Errorf("the test fails with %q; want %q in it", got, failure.want)
		}
	}
}
