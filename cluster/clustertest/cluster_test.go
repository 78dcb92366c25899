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
	// doubled waits for a word and doubles it.
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

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patienceDefault)
	t.Cleanup(cancel)
	return ctx
}

// startSome starts instances that wait for their word.
func startSome(t *testing.T, client *cluster.Client, n int) {
	t.Helper()
	for i := range n {
		if _, err := cluster.StartRun(bounded(t), client, doubled, fmt.Sprintf("d-%d", i), ""); err != nil {
			t.Fatal(err)
		}
	}
}

// finish gives them their word, and expects that all end as they should.
func finish(t *testing.T, client *cluster.Client, n int) {
	t.Helper()
	ctx := bounded(t)
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

const some = 8

func TestOrchestrationsSurviveTheDeathOfTheLeader(t *testing.T) {
	t.Parallel()
	c := New(t, 3, definitions())
	old := c.Leader()
	other := (old + 1) % 3
	startSome(t, c.Client(other), some)
	c.Kill(old)
	if now := c.Leader(); now == old {
		t.Errorf("the killed node %d leads", now)
	}
	finish(t, c.Client(other), some)

	if _, err := c.Client(old).Get(bounded(t), "d-0"); !errors.Is(err, cluster.ErrClosed) {
		t.Errorf("a killed node answers %v", err)
	}
	c.Restart(old)
	c.Eventually("the restarted node has what it missed", func() bool {
		status, err := c.Client(old).Get(bounded(t), fmt.Sprintf("d-%d", some-1), cluster.Stale())
		return err == nil && status.State == cluster.Completed
	})
}

func TestOrchestrationsSurviveAPartition(t *testing.T) {
	t.Parallel()
	c := New(t, 3, definitions())
	old := c.Leader()
	other := (old + 1) % 3
	startSome(t, c.Client(other), some)
	c.Isolate(old)
	if now := c.Leader(); now == old {
		t.Errorf("node %d leads, which reaches nobody", now)
	}
	finish(t, c.Client(other), some)

	status, err := c.Client(old).Get(bounded(t), "d-0", cluster.Stale())
	if err != nil || status.Ended() {
		t.Errorf("the node that was cut off says %+v, %v: the end cannot have come to it", status, err)
	}
	c.Heal()
	c.Eventually("the node has what it missed", func() bool {
		status, err := c.Client(old).Get(bounded(t), "d-0", cluster.Stale())
		return err == nil && status.Ended()
	})
}

func TestOrchestrationsSurviveAPauseOfTheLeader(t *testing.T) {
	t.Parallel()
	c := New(t, 3, definitions())
	client, err := cluster.Dial(bounded(t), cluster.DialConfig{Addresses: c.Addresses()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	startSome(t, client, some)
	old := c.Leader()
	c.Pause(old)
	finish(t, client, some)
	if now := c.Leader(); now == old {
		t.Errorf("node %d leads, which hangs", now)
	}
	c.Resume(old)
	c.Eventually("the node follows", func() bool { return c.Node(old).Leader() == nodeID(c.Leader()) })
}

func TestACallToAPausedNodeWaitsForItsResume(t *testing.T) {
	t.Parallel()
	c := New(t, 1, definitions())
	client, err := cluster.Dial(bounded(t), cluster.DialConfig{Addresses: c.Addresses()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c.Pause(0)
	answered := make(chan error, 1)
	go func() {
		_, err := cluster.StartRun(bounded(t), client, doubled, "d-0", "")
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Fatalf("the paused node has answered: %v", err)
	case <-time.After(20 * time.Millisecond): // a wrong answer gets some time to come
	}
	c.Resume(0)
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

func TestARestartTakesUpOtherCode(t *testing.T) {
	t.Parallel()
	starts := 0
	c := New(t, 1, definitions(), Configure(func(i int, config *cluster.Config) {
		if starts++; starts == 1 {
			config.Definitions = config.Definitions[:1] // without the orchestration
		}
	}))
	if _, err := cluster.StartRun(bounded(t), c.Client(0), doubled, "d-0", ""); !errors.Is(err, cluster.ErrNoCode) {
		t.Errorf("%v; want that there is no code", err)
	}
	c.Restart(0)
	startSome(t, c.Client(0), 1)
	finish(t, c.Client(0), 1)
}

func TestLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	f := newFamily()
	release := make(chan struct{})
	f.do(func() { go func() { <-release }() })
	if left := f.left(0); !strings.Contains(left, "TestLeaveNothingBehind") {
		t.Errorf("the goroutine was not found: %q", left)
	}
	if left := newFamily().left(0); left != "" {
		t.Errorf("another family has it: %s", left)
	}
	close(release)
	if left := f.left(leavePatience); left != "" {
		t.Errorf("left: %s", left)
	}
}

func TestConnectionsThatAnHTTPClientKeepsAreNotLeftBehind(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"HTTP/1.1", "HTTP/2.0"} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		server.EnableHTTP2 = version == "HTTP/2.0"
		server.StartTLS()
		f := newFamily()
		f.do(func() {
			response, err := server.Client().Get(server.URL)
			if err != nil || response.Proto != version {
				t.Errorf("%+v, %v; want an answer by %s", response, err, version)
				return
			}
			if err := response.Body.Close(); err != nil {
				t.Error(err)
			}
		})
		if left := f.left(time.Second); left != "" {
			t.Errorf("%s: the connection that is kept counts as left behind:\n%s", version, left)
		}
		server.Close()
	}
}

// A failing stands for a test that fails.
type failing struct {
	testing.TB
	text strings.Builder
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	fmt.Fprintf(&f.text, format, args...)
	runtime.Goexit()
}

// failureOf returns with what a test fails.
func failureOf(c *Cluster, what func()) string {
	f := &failing{TB: c.t}
	real := c.t
	c.t = f
	defer func() { c.t = real }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		what()
	}()
	<-done
	return f.text.String()
}

func TestFailuresSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	c := New(t, 3, definitions(), InMemory(), Patience(20*time.Second))
	c.Kill(2)
	c.Partition(0, 1)
	c.options.patience = time.Millisecond
	for _, failure := range []struct {
		what func()
		want string
	}{
		{func() { c.Leader() }, "a leader that a majority follows"},
		{func() { c.Leader() }, "node 2: killed"},
		{func() { c.Leader() }, "cut off from 1"},
		{func() { c.Restart(2) }, "node 2 is in memory"},
		{func() { c.Partition(1, 1) }, "node 1 cannot be cut off from itself"},
		{func() { c.Kill(3) }, "node 3: there are 3, counted from 0"},
	} {
		if got := failureOf(c, failure.what); !strings.Contains(got, failure.want) {
			t.Errorf("the test fails with %q; want %q in it", got, failure.want)
		}
	}
}
