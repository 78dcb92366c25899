package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/tenuto-dev/tenuto/cluster/internal/server"
	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// dialSecured returns a remote client with a certificate.
func dialSecured(t *testing.T, a authority, certificate *tls.Certificate, nodes ...*Node) *Client {
	t.Helper()
	return dialNodes(t, DialConfig{TLS: a.keys(certificate)}, nodes...)
}

func TestTLS_RejectsUnusableKeysAtStart(t *testing.T) {
	trusted, others := newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	for name, keys := range map[string]KeySource{
		"no files":            KeyFiles(dir+"/a", dir+"/b", dir+"/c"),
		"nil":                 new(replaceableKeys),
		"nothing":             &replaceableKeys{keys: new(Keys)},
		"another node's":      trusted.keys(trusted.Node("n2")),
		"a client's":          trusted.keys(trusted.Client("n1")),
		"another authority's": trusted.keys(others.Node("n1")),
		"another cluster's":   trusted.keys(trusted.Issue([]string{"tenuto://other/node/n1"})),
		"expired ones":        trusted.keys(trusted.Issue([]string{"tenuto://tenuto/node/n1"}, withValidity(-2*time.Hour, -time.Hour))),
		"no private key":      trusted.keys(&tls.Certificate{Certificate: trusted.Node("n1").Certificate}),
		"another private key": trusted.keys(&tls.Certificate{Certificate: trusted.Node("n1").Certificate, PrivateKey: trusted.Node("n1").PrivateKey}),
		"a panic":             keySourceFunc(func() (*Keys, error) { panic("as wanted") }),
	} {
		config := Config{InMemory: true, NodeID: "n1", Listen: "127.0.0.1:0", TLS: keys, Logger: testLogger()}
		var wrong *replay.InvalidError
		if _, err := Start(testContext(t), config); !errors.As(err, &wrong) || wrong.Field != "Config.TLS" {
			t.Errorf("%s: %v; want an InvalidError of TLS", name, err)
		}
	}
}

// A keySourceFunc is a KeySource.
type keySourceFunc func() (*Keys, error)

func (f keySourceFunc) Keys() (*Keys, error) { return f() }

// Keys that are not usable do not replace the ones of a node that runs: a source that panics, and a
// certificate whose private key is missing or another one's.
func TestTLS_KeepsKeysUntilOthersAreUsable(t *testing.T) {
	checkGoroutineLeaks(t)
	trusted := newAuthority(t)
	good := trusted.Node("n1")
	var next atomic.Pointer[func() *Keys]
	source := keySourceFunc(func() (*Keys, error) {
		if ask := next.Load(); ask != nil {
			return (*ask)(), nil
		}
		return trusted.keys(good).Keys()
	})
	log := new(logRecorder)
	node := startNode(t, Config{InMemory: true, NodeID: "n1", Listen: loopbackAddress(t), TLS: source, Logger: log.logger(), Definitions: definitions()})
	for name, ask := range map[string]func() *Keys{
		"panic":  func() *Keys { panic("as wanted") },
		"no-key": func() *Keys { return &Keys{&tls.Certificate{Certificate: good.Certificate}, trusted.Roots()} },
		"another-key": func() *Keys {
			return &Keys{&tls.Certificate{Certificate: good.Certificate, PrivateKey: trusted.Node("n1").PrivateKey}, trusted.Roots()}
		},
	} {
		next.Store(&ask)
		client := dialSecured(t, trusted, trusted.Client("app"), node)
		if got, err := Call(testContext(t), client, doubled, name, 21); err != nil || got != 42 {
			t.Errorf("%s: a call over a new connection: %d, %v", name, got, err)
		}
	}
	if log.countLines("new TLS keys rejected") < 2 { // each reason in sequence once
		t.Errorf("the log of what was rejected:\n%s", log.all())
	}
}

// A source of keys that hangs does not keep a node from closing.
func TestTLS_KeySourceHangs(t *testing.T) {
	trusted := newAuthority(t)
	var hangs atomic.Bool
	asked, release := make(chan struct{}, 100), make(chan struct{})
	defer close(release)
	good := trusted.keys(trusted.Node("n1"))
	source := keySourceFunc(func() (*Keys, error) {
		if hangs.Load() {
			asked <- struct{}{}
			<-release
		}
		return good.Keys()
	})
	node := startNode(t, Config{InMemory: true, NodeID: "n1", Listen: loopbackAddress(t), TLS: source, Definitions: definitions()})
	hangs.Store(true)
	dialing := make(chan error, 1)
	go func() {
		conn, err := tls.Dial("tcp", node.config.Listen, &tls.Config{InsecureSkipVerify: true})
		if err == nil {
			err = conn.Close()
		}
		dialing <- err
	}()
	<-asked
	closed := make(chan error, 1)
	go func() { closed <- node.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the node does not close")
	}
	<-dialing
}

func TestTLS_RejectsConflictingConfig(t *testing.T) {
	keys := newAuthority(t)
	allow := func(context.Context, Principal, Action, string) error { return nil }
	for field, config := range map[string]Config{
		"Listen":    {InMemory: true, Listen: "0.0.0.0:0"},
		"NodeID":    {InMemory: true, NodeID: "a/b", TLS: keys.keys(keys.Node("n1"))},
		"ClusterID": {InMemory: true, ClusterID: "a b"},
		"Authorize": {InMemory: true, Listen: "127.0.0.1:0", Authorize: allow},
	} {
		config.Logger = testLogger()
		var wrong *replay.InvalidError
		if _, err := Start(testContext(t), config); !errors.As(err, &wrong) || wrong.Field != "Config."+field {
			t.Errorf("%v; want an InvalidError of %s", err, field)
		}
	}
}

func TestConfig_RejectsUnworkable(t *testing.T) {
	two := []Peer{{NodeID: "n1", Address: "127.0.0.1:7001"}, {NodeID: "n2", Address: "127.0.0.1:7001"}}
	remotePeers := []Peer{{NodeID: "n1", Address: "127.0.0.1:7001"}, {NodeID: "n2", Address: "192.0.2.1:7001"}}
	for _, test := range []struct {
		field  string
		config Config
	}{
		{"NodeID", Config{NodeID: "a\xff"}},
		{"NodeID", Config{NodeID: "a b"}},
		{"NodeID", Config{NodeID: strings.Repeat("n", nodeIDMax+1)}},
		{"Peers", Config{NodeID: "n1", Listen: "127.0.0.1:0", Peers: two}},
		{"Peers", Config{NodeID: "n1", Listen: "127.0.0.1:0", Peers: remotePeers}},
		{"Join", Config{NodeID: "n3", Listen: "127.0.0.1:0", Join: []string{"192.0.2.1:7001"}}},
		{"ActivitiesMax", Config{ActivitiesMax: -1}},
		{"ActivitiesMax", Config{ActivitiesMax: activitiesMaxMax + 1}},
		{"ResidentMax", Config{ResidentMax: -1}},
		{"StopGrace", Config{StopGrace: -1}},
		{"HungAfter", Config{HungAfter: time.Millisecond}},
		{"HungAfter", Config{HungAfter: time.Minute}},
		{"CallTimeout", Config{CallTimeout: -1}},
		{"Tags", Config{Tags: []string{"gpu", ""}}},
		{"Definitions", Config{Definitions: append(definitions(), definitions()...)}},
	} {
		test.config.InMemory, test.config.Logger = true, testLogger()
		var wrong *replay.InvalidError
		err := test.config.withDefaults().validate()
		if test.field == "Definitions" {
			_, err = Start(testContext(t), test.config)
		}
		if !errors.As(err, &wrong) || wrong.Field != "Config."+test.field || strings.Contains(wrong.Reason, "tenuto:") {
			t.Errorf("%v; want an InvalidError of %s", err, test.field)
		}
	}
	var wrong *replay.InvalidError
	if _, err := Dial(testContext(t), DialConfig{Addresses: []string{"192.0.2.1:7001"}}); !errors.As(err, &wrong) {
		t.Errorf("dialed without TLS: %v; want an InvalidError", err)
	}
}

func TestNode_RejectsDirectoryOfOtherCluster(t *testing.T) {
	dir := t.TempDir()
	node, err := Start(testContext(t), Config{Dir: dir, ClusterID: "blue", Logger: testLogger()})
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	var identity *journal.IdentityError
	if _, err := Start(testContext(t), Config{Dir: dir, ClusterID: "green", Logger: testLogger()}); !errors.As(err, &identity) {
		t.Errorf("as a node of another cluster: %v; want an IdentityError", err)
	}
	if startNode(t, Config{Dir: dir, ClusterID: "blue", Partitions: 1}) == nil {
		t.Error("as a node of the same")
	}
}

// Files may be replaced one after the other; the returned keys always belong together.
func TestKeyFiles_ReloadOnChange(t *testing.T) {
	first, second := newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	paths := writeKeyFiles(t, dir, first.Node("n1"), first)
	log := new(logRecorder)
	owner := func(p Principal) error { return nil }
	tlsSource, err := newTLSSource(KeyFiles(paths[0], paths[1], paths[2]), clusterIDDefault, owner, log.logger())
	if err != nil {
		t.Fatal(err)
	}
	presented := func() string {
		t.Helper()
		keys, err := tlsSource.Current()
		if err != nil {
			t.Fatal(err)
		}
		return keys.Certificate.Leaf.SerialNumber.String()
	}
	old := presented()
	if again := presented(); again != old {
		t.Errorf("%s became %s", old, again)
	}
	next := second.Node("n1")
	files := writeKeyFiles(t, t.TempDir(), next, first, second)
	for i, path := range files {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(paths[i], content, 0o600); err != nil {
			t.Fatal(err)
		}
		// Modification times may be too coarse for two writes to differ.
		if err := os.Chtimes(paths[i], time.Time{}, time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		want := old
		if i == len(files)-1 {
			want = next.Leaf.SerialNumber.String()
		}
		if got := presented(); got != want {
			t.Errorf("after %d files: %s; want %s", i+1, got, want)
		}
	}
	if n := log.countLines("new TLS keys rejected"); n == 0 {
		t.Error("that they did not go together is not logged")
	}
	if log.countLines("new TLS keys in use") != 1 || log.countLines("level=ERROR") > 0 {
		t.Errorf("the log of the replacement:\n%s", log.all())
	}
}

// The certificates of all nodes are replaced, then their authority, while the cluster works and
// connections are renewed.
func TestTLS_RotatesKeysUnderLoad(t *testing.T) {
	t.Parallel()
	first, second := newAuthority(t), newAuthority(t)
	both := first.Roots()
	both.AddCert(second.Certificate)
	sources := make([]*replaceableKeys, 3)
	nodes, logs := startWithTLS(t, first, func(i int, config *Config) {
		sources[i] = config.TLS.(*replaceableKeys)
	})
	ctx := testContext(t)
	clientKeys := first.keys(first.Client("app"))
	client := dialNodes(t, DialConfig{TLS: clientKeys}, nodes...)
	stop := make(chan struct{})
	var calls sync.WaitGroup
	var done atomic.Int64
	for _, via := range []*Client{client, nodes[0].Client(), nodes[1].Client(), nodes[2].Client()} {
		who := fmt.Sprintf("%p", via)
		calls.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := Call(ctx, via, doubled, fmt.Sprintf("%s-%d", who, i), 1); err != nil {
					t.Errorf("a call: %v", err)
					return
				}
				done.Add(1)
			}
		})
	}
	replace := func(a authority, roots func() *Keys) {
		for i, source := range sources {
			keys := roots()
			keys.Certificate = a.Node(nodes[i].ID())
			source.replace(keys)
		}
		keys := roots()
		keys.Certificate = a.Client("app")
		clientKeys.replace(keys)
		// Every connection is closed as if it were too old; new ones use new keys.
		before := done.Load()
		for _, node := range nodes {
			node.dialer.Links.Sweep(time.Now().Add(transport.AgeMax + time.Second))
		}
		eventually(t, "calls go on", func() bool { return done.Load() > before+8 || t.Failed() })
	}
	replace(first, func() *Keys { return &Keys{Roots: first.Roots()} })
	replace(first, func() *Keys { return &Keys{Roots: both} })
	replace(second, func() *Keys { return &Keys{Roots: both} })
	replace(second, func() *Keys { return &Keys{Roots: second.Roots()} })
	close(stop)
	calls.Wait()
	expectSameHistories(t, nodes)
	for i, log := range logs {
		if n := log.countLines("new TLS keys rejected"); n > 0 {
			t.Errorf("%s: %d lines of keys that cannot be used", nodes[i].ID(), n)
		}
	}
	late := dialOnce(nodes, first.keys(first.Client("app")))
	late.CallTimeout = 300 * time.Millisecond
	if _, err := Dial(context.Background(), late); err == nil {
		t.Error("a certificate of the authority that was taken out is still good")
	}
}

// dialOnce returns a configuration with a short timeout.
func dialOnce(nodes []*Node, keys KeySource) DialConfig {
	config := DialConfig{TLS: keys, Logger: testLogger()}
	for _, node := range nodes {
		config.Addresses = append(config.Addresses, node.config.Listen)
	}
	return config
}

func TestAuthorize_RejectsUnauthorizedCalls(t *testing.T) {
	t.Parallel()
	trusted := newAuthority(t)
	var asked sync.Map
	nodes, logs := startWithTLS(t, trusted, func(_ int, config *Config) {
		config.Authorize = func(_ context.Context, caller Principal, action Action, instance string) error {
			asked.Store(action, true)
			if caller.Name == "reader" && (action == ActionGet || action == ActionSeeMembers) && instance != "secret" {
				return nil
			}
			if caller == (Principal{PrincipalClient, "writer"}) {
				return nil
			}
			return errors.New("canary: by the rules")
		}
	})
	ctx := testContext(t)
	writer := dialSecured(t, trusted, trusted.Client("writer"), nodes...)
	reader := dialSecured(t, trusted, trusted.Client("reader"), nodes...)
	for i, id := range []string{"open", "secret"} {
		if got, err := Call(ctx, writer, doubled, id, i); err != nil || got != 2*i {
			t.Fatalf("%d, %v", got, err)
		}
	}
	if _, err := reader.Get(ctx, "open"); err != nil {
		t.Error(err)
	}
	// Existing and missing instances must look alike.
	for name, err := range map[string]error{
		"get":           errOf(reader.Get(ctx, "secret")),
		"a stale get":   errOf(reader.Get(ctx, "secret", Stale())),
		"wait":          errOf(reader.Wait(ctx, "secret")),
		"watch":         errOf(collectWatch(ctx, reader, "open", history.Position{})),
		"history":       errOf(reader.History(ctx, "open")),
		"list":          errOf(reader.List(ctx, Filter{}, "", 0)),
		"start":         errOf(StartRun(ctx, reader, doubled, "new", 1)),
		"send":          Send(ctx, reader, "open", word, ""),
		"cancel nobody": reader.Cancel(ctx, "unknown", ""),
		"purge":         errOf(reader.Purge(ctx, "open", "secret")),
	} {
		if !errors.Is(err, ErrNotAuthorized) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v; want ErrNotAuthorized", name, err)
		}
	}
	lines := 0
	for _, log := range logs {
		lines += log.countLines("canary")
	}
	if lines == 0 {
		t.Error("rejections are not logged")
	}
	// Calls of the application's own node are not authorized, nor those that it forwards.
	for _, node := range nodes {
		callThrough(ctx, t, node, "from-"+node.ID())
	}
	if _, err := Dial(ctx, dialOnce(nodes, trusted.keys(trusted.Client("unknown")))); !errors.Is(err, ErrNotAuthorized) {
		t.Errorf("dial: %v", err)
	}
}

// A removed node has no more rights than a stranger.
func TestAuthorize_RejectsNonMemberNode(t *testing.T) {
	checkGoroutineLeaks(t)
	trusted := newAuthority(t)
	nodes, _ := startWithTLS(t, trusted, nil)
	leaderOf(t, nodes)
	if _, err := Dial(testContext(t), dialOnce(nodes, trusted.keys(trusted.Node("n9")))); !errors.Is(err, ErrNotAuthorized) {
		t.Errorf("a node that is no member: %v; want ErrNotAuthorized", err)
	}
	client := dialSecured(t, trusted, trusted.Node("n2"), nodes...)
	if _, err := Call(testContext(t), client, doubled, "d", 1); err != nil {
		t.Errorf("one that is: %v", err)
	}
}

// An authenticatedStream is a server stream with an authenticated peer.
type authenticatedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s authenticatedStream) Context() context.Context { return s.ctx }

// Clients must not send messages meant for nodes, whether or not the message is valid.
func TestAuthorize_RejectsNodeMessagesFromClients(t *testing.T) {
	g := &nodeService{startNode(t, Config{InMemory: true, Definitions: definitions()})}
	unknown := &clusterpb.Request{Instance: "i", Call: &clusterpb.Request_Control{Control: &clusterpb.ControlRequest{Kind: 99}}}
	starts := &clusterpb.Request{Call: &clusterpb.Request_StartBatch{StartBatch: &clusterpb.StartBatchRequest{Starts: []*clusterpb.InstanceStart{newInstanceStart("i", "x")}}}}
	for caller, allowed := range map[Principal]bool{{PrincipalClient, "x"}: false, {PrincipalNode, "x"}: false, {PrincipalLocal, ""}: true, {}: false} {
		ctx := peer.NewContext(testContext(t), &peer.Peer{AuthInfo: transport.AuthInfo{Peer: transport.Principal{Kind: transport.Kind(caller.Kind), Name: caller.Name}}})
		for _, between := range []*clusterpb.Request{unknown, starts} {
			if err := g.check(ctx, between); (err == nil) != allowed || err != nil && !errors.Is(err, ErrNotAuthorized) {
				t.Errorf("a call that no client has, %v, by %q: %v", between, caller, err)
			}
		}
		if err := g.check(ctx, &clusterpb.Request{}); !errors.Is(err, ErrProtocol) {
			t.Errorf("an unknown call, by %q: %v; want ErrProtocol", caller, err)
		}
		member := func(id string) bool { return id == "member" }
		err := server.RequireMember(member, ErrNotAuthorized)(nil, authenticatedStream{ctx: ctx}, new(grpc.StreamServerInfo), func(any, grpc.ServerStream) error { return nil })
		if (err == nil) != allowed {
			t.Errorf("a stream by %q: %v", caller, err)
		}
	}
}
