package browser

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/dashboard"
	"github.com/tenuto-dev/tenuto/internal/harness"
	"github.com/tenuto-dev/tenuto/replay"
)

// prefix is where the dashboard is mounted, beside another handler of the mux.
const prefix = "/ops/tenuto/"

// hostile would set a global variable or open a dialog if a page took it for markup or script. It
// also has characters that reverse or hide text.
const hostile = `<script>window.hostile=1</script>"><img src=x onerror="window.hostile=1"> ` +
	`javascript:window.hostile=1 ${window.hostile=1} ` + "\u202e\u2066\u0007\u0000"

var (
	goAhead   = replay.Event[string]("go-ahead")
	waiter    = replay.Orchestration[string, string]("waiter")
	changed   = replay.Orchestration[string, string]("changed")
	spinner   = replay.Orchestration[string, string]("spinner")
	failing   = replay.Orchestration[string, string]("failing")
	ender     = replay.Orchestration[string, string]("ender")
	fanOut    = replay.Orchestration[int, int]("fan-out")
	long      = replay.Orchestration[int, int]("long")
	family    = replay.Orchestration[int, string]("family")
	onlyOnTwo = replay.Orchestration[string, string]("only-on-two")
	charge    = replay.Activity[string, string]("charge")
	flaky     = replay.Activity[string, string]("flaky")
	double    = replay.Activity[int, int]("double")
	size      = replay.Attribute[int]("size")
)

// A lab is a cluster of three nodes and the dashboard of it, served over HTTP.
type lab struct {
	nodes  []*cluster.Node
	client *cluster.Client // remote, so that it survives each of the nodes
	url    string          // of the overview, with a trailing slash
	log    logBuffer       // of the dashboard
	broken atomic.Bool     // the code of repaired does not fit its histories
}

// A logBuffer keeps what is logged.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(line)
}

func (b *logBuffer) has(line string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Contains(b.text.String(), line)
}

// startFilledLab starts a cluster with instances of all kinds. stop ends it.
func startFilledLab(ctx context.Context, dir string) (l *lab, stop func(), err error) {
	if l, stop, err = startLab(ctx, dir); err != nil {
		return nil, nil, err
	}
	if err := l.fill(ctx); err != nil {
		stop()
		return nil, nil, err
	}
	return l, stop, nil
}

// startLab starts a cluster. stop ends it.
func startLab(ctx context.Context, dir string) (_ *lab, stop func(), err error) {
	l := new(lab)
	released := make(chan struct{})
	var stops []func()
	stop = func() {
		close(released)
		for _, each := range stops {
			defer each()
		}
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	peers, err := freePeers(3)
	if err != nil {
		return nil, nil, err
	}
	if l.nodes, err = l.startNodes(ctx, dir, peers, released); err != nil {
		return nil, nil, err
	}
	for _, node := range l.nodes {
		stops = append(stops, func() { _ = node.Close() })
	}
	var addresses []string
	for _, peer := range peers {
		addresses = append(addresses, peer.Address)
	}
	if l.client, err = cluster.Dial(ctx, cluster.DialConfig{Addresses: addresses}); err != nil {
		return nil, nil, err
	}
	stops = append(stops, func() { _ = l.client.Close() })
	server := serve(l.client, slog.New(slog.NewTextHandler(&l.log, nil)))
	stops = append(stops, func() {
		server.CloseClientConnections() // the streams of open pages do not end by themselves
		server.Close()
	})
	l.url = server.URL + prefix
	return l, stop, nil
}

// serve serves the dashboard of a client to the user ada.
func serve(client *cluster.Client, log *slog.Logger) *httptest.Server {
	mux := http.NewServeMux()
	user := func(*http.Request) (string, error) { return "ada", nil }
	mux.Handle(prefix, http.StripPrefix(strings.TrimSuffix(prefix, "/"),
		dashboard.Handler(client, dashboard.Options{Principal: user, Logger: log})))
	mux.HandleFunc("/", http.NotFound)
	return httptest.NewServer(mux)
}

func freePeers(n int) (peers []cluster.Peer, err error) {
	for i := range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close() // when all ports are known, so that they differ
		peers = append(peers, cluster.Peer{NodeID: fmt.Sprintf("n%d", i+1), Address: listener.Addr().String()})
	}
	return peers, nil
}

// heartbeatTimeout is longer than a busy machine delays a leader: during an election the pages show
// errors.
const heartbeatTimeout = 2 * time.Second

// startNodes starts the nodes at the same time: the cluster is founded when all run.
func (l *lab) startNodes(ctx context.Context, dir string, peers []cluster.Peer, released <-chan struct{}) ([]*cluster.Node, error) {
	nodes := make([]*cluster.Node, len(peers))
	errs := make([]error, len(peers))
	ended := make(chan int)
	ctx = harness.NewContext(ctx, harness.Overrides{HeartbeatTimeout: heartbeatTimeout})
	for i, peer := range peers {
		go func() {
			nodes[i], errs[i] = cluster.Start(ctx, cluster.Config{
				NodeID: peer.NodeID, Listen: peer.Address, Peers: peers, Dir: fmt.Sprintf("%s/%s", dir, peer.NodeID),
				Definitions: l.definitions(peer.NodeID, released), HungAfter: 200 * time.Millisecond,
				StopGrace: time.Second, Logger: slog.New(slog.DiscardHandler),
			})
			ended <- i
		}()
	}
	for range peers {
		<-ended
	}
	return nodes, errors.Join(errs...)
}

// definitions are the code of a node. On n3 the code of changed differs; n2 alone has only-on-two.
func (l *lab) definitions(nodeID string, released <-chan struct{}) []replay.Definition {
	all := []replay.Definition{
		charge.Bind(func(_ context.Context, input string) (string, error) { return "charged " + input, nil }),
		flaky.Bind(func(_ context.Context, input string) (string, error) {
			return "", replay.NewError("declined", "declined: "+input)
		}),
		double.Bind(func(_ context.Context, n int) (int, error) { return 2 * n, nil }),
		waiter.Bind(waitForEvent),
		changed.Bind(func(ctx *replay.Context, input string) (string, error) {
			if nodeID == "n3" {
				if err := ctx.Sleep(time.Hour); err != nil {
					return "", err
				}
			}
			return waitForEvent(ctx, input)
		}),
		spinner.Bind(func(*replay.Context, string) (string, error) {
			<-released // blocks outside durable calls, as faulty code does
			return "", nil
		}),
		failing.Bind(func(ctx *replay.Context, input string) (string, error) {
			return flaky.Call(ctx, input, replay.Retry(replay.RetryPolicy{InitialInterval: time.Hour}))
		}),
		ender.Bind(func(_ *replay.Context, input string) (string, error) {
			if strings.HasPrefix(input, "fail") {
				return "", replay.NewError("refused", input)
			}
			return input, nil
		}),
		fanOut.Bind(func(ctx *replay.Context, n int) (int, error) {
			results, err := replay.Map(ctx, 0, make([]int, n), func(ctx *replay.Context, i int) (int, error) { return double.Call(ctx, i) })
			return len(results), err
		}),
		long.Bind(longHistory),
		family.Bind(func(ctx *replay.Context, depth int) (string, error) {
			if depth == 0 {
				return waitForEvent(ctx, "leaf")
			}
			first, second := family.Start(ctx, depth-1), family.Start(ctx, depth-1)
			_, err := replay.All(ctx, first, second)
			return "", err
		}),
	}
	all = append(append(all, l.actionDefinitions()...), l.hostileDefinitions()...)
	if nodeID == "n2" {
		all = append(all, onlyOnTwo.Bind(waitForEvent))
	}
	return all
}

func waitForEvent(ctx *replay.Context, input string) (string, error) {
	if err := size.Set(ctx, len(input)); err != nil {
		return "", err
	}
	if err := replay.SetStatus(ctx, "waits: "+input); err != nil {
		return "", err
	}
	if _, err := charge.Call(ctx, input); err != nil {
		return "", err
	}
	return goAhead.Wait(ctx)
}

// longHistory records n events in few turns: a side effect costs no round trip.
func longHistory(ctx *replay.Context, n int) (int, error) {
	const perTurn = 2000
	for done := 0; done < n; done++ {
		if _, err := replay.SideEffect(ctx, "step", func() (int, error) { return done, nil }); err != nil {
			return 0, err
		}
		if done%perTurn == perTurn-1 {
			if _, err := double.Call(ctx, done); err != nil {
				return 0, err
			}
		}
	}
	_, err := goAhead.Wait(ctx)
	return n, err
}
