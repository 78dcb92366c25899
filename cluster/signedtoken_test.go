package cluster

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/internal/harness"
	"github.com/tenuto-dev/tenuto/internal/shorttest"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A signedTokens keeps the completion URLs that the attempts of asyncActivity got, and the last
// error of getting one, by instance.
type signedTokens struct {
	mu     sync.Mutex
	urls   map[string][]string
	failed map[string]error
	// as replaces what signs; nil means that of the node.
	as *engine.TokenSigner
}

func newSignedTokens() *signedTokens {
	return &signedTokens{urls: make(map[string][]string), failed: make(map[string]error)}
}

func (s *signedTokens) definitions() []replay.Definition {
	return []replay.Definition{
		asyncActivity.Bind(func(ctx context.Context, _ string) (string, error) {
			if s.as != nil {
				ctx = s.as.WithContext(ctx)
			}
			attempt := replay.ActivityInfo(ctx)
			url, err := attempt.CompletionURL(ctx, time.Hour)
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.failed[attempt.Instance] = err; err != nil {
				return "", err
			}
			s.urls[attempt.Instance] = append(s.urls[attempt.Instance], url)
			return "", replay.ErrResultPending
		}),
		asyncOrchestration.Bind(func(ctx *replay.Context, tag string) (string, error) {
			options := []replay.Option{replay.Retry(replay.RetryPolicy{InitialInterval: time.Millisecond, MaxInterval: 10 * time.Millisecond})}
			if tag != "" {
				options = append(options, replay.Tag(tag))
			}
			return asyncActivity.Call(ctx, tag, options...)
		}),
	}
}

// await returns the URL that the n-th attempt of an instance got.
func (s *signedTokens) await(t *testing.T, id string, n int) (url string) {
	t.Helper()
	eventually(t, fmt.Sprintf("attempt %d of %s has a URL", n, id), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.urls[id]) < n {
			return false
		}
		url = s.urls[id][n-1]
		return true
	})
	return url
}

func (s *signedTokens) lastError(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed[id]
}

// tokenIn returns the token in a completion URL.
func tokenIn(t *testing.T, url string) string {
	t.Helper()
	_, token, found := strings.Cut(url, "/complete/")
	if !found {
		t.Fatalf("%s is no completion URL", url)
	}
	return token
}

// testCompletionURL is the CompletionURL of test nodes.
const testCompletionURL = "https://shop.example/hooks/"

// serveCompletions serves the completions of a node as if under testCompletionURL, and returns a
// function that sends a request and returns the status of the answer.
func serveCompletions(t *testing.T, node *Node) (post func(url, body string) int) {
	t.Helper()
	server := httptest.NewServer(http.StripPrefix("/hooks", node.CompletionHandler()))
	t.Cleanup(server.Close)
	return func(url, body string) int {
		t.Helper()
		to := strings.Replace(url, "https://shop.example", server.URL, 1)
		response, err := server.Client().Post(to, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode == http.StatusServiceUnavailable && response.Header.Get("Retry-After") == "" {
			t.Errorf("503 without Retry-After")
		}
		return response.StatusCode
	}
}

func expectStatus(t *testing.T, what string, got, want int) {
	t.Helper()
	if got != want {
		t.Errorf("%s: status %d, want %d", what, got, want)
	}
}

func startSigned(t *testing.T, node *Node, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if _, err := StartRun(testContext(t), node.Client(), asyncOrchestration, id, ""); err != nil {
			t.Fatal(err)
		}
	}
}

// Any node signs tokens, also as a worker of another leader, and any node completes by them: in
// every partition, after the leaders have changed, and when it has joined later.
func TestSignedToken_CompletesOnAnyNode(t *testing.T) {
	t.Parallel()
	const partitions = 3
	s, peers := newSignedTokens(), loopbackPeers(t, 3)
	configure := func(c Config) Config {
		c.Partitions, c.CompletionURL, c.Tags = partitions, testCompletionURL, []string{c.NodeID}
		return c
	}
	nodes := make([]*Node, len(peers))
	var starting sync.WaitGroup
	for i := range peers {
		starting.Go(func() { nodes[i] = startNode(t, configure(peerConfig(t, peers, i, s.definitions()...))) })
	}
	starting.Wait()
	var ids []string
	for i := range partitions {
		ids = append(ids, idInGroup("direct", i, partitions), idInGroup("http", i, partitions), idInGroup("late", i, partitions))
	}
	startSigned(t, nodes[0], ids...)
	for i, node := range nodes {
		post := serveCompletions(t, node)
		expectStatus(t, "completed on "+node.ID(), post(s.await(t, idInGroup("http", i, partitions), 1), `"over HTTP"`), http.StatusNoContent)
		expectStatus(t, "the same again", post(s.await(t, idInGroup("http", i, partitions), 1), ` "over HTTP" `), http.StatusNoContent)
		expectStatus(t, "another value", post(s.await(t, idInGroup("http", i, partitions), 1), `"other"`), http.StatusConflict)
		direct := tokenIn(t, s.await(t, idInGroup("direct", i, partitions), 1))
		if err := CompleteActivity(testContext(t), node.Client(), direct, "directly"); err != nil {
			t.Errorf("on %s: %v", node.ID(), err)
		}
	}
	for i, node := range nodes {
		// Two of the nodes do not lead that partition.
		id := idInGroup("signed-on-"+node.ID(), 0, partitions)
		if _, err := StartRun(testContext(t), node.Client(), asyncOrchestration, id, node.ID()); err != nil {
			t.Fatal(err)
		}
		expectStatus(t, id, serveCompletions(t, nodes[(i+1)%3])(s.await(t, id, 1), `"remote"`), http.StatusNoContent)
		expectOutput(t, node.Client(), id, "remote")
	}
	for i := range partitions {
		expectOutput(t, nodes[0].Client(), idInGroup("http", i, partitions), "over HTTP")
		expectOutput(t, nodes[0].Client(), idInGroup("direct", i, partitions), "directly")
		s.await(t, idInGroup("late", i, partitions), 1)
	}
	if err := nodes[0].Stop(testContext(t)); err != nil {
		t.Fatal(err)
	}
	joined := startNode(t, configure(Config{
		NodeID: "n4", Listen: loopbackAddress(t), Join: []string{peers[1].Address, peers[2].Address}, Dir: t.TempDir(), Definitions: s.definitions(),
		CallTimeout: testTimeout,
	}))
	post := serveCompletions(t, joined)
	for i := range partitions {
		id := idInGroup("late", i, partitions)
		expectStatus(t, "completed on the new node", post(s.await(t, id, 1), `"late"`), http.StatusNoContent)
		expectOutput(t, nodes[1].Client(), id, "late")
	}
	expectStatus(t, "a forged one on the new node", post(s.await(t, ids[0], 1)+"A", `1`), http.StatusNotFound)
	for _, node := range append(nodes[1:], joined) {
		if !bytes.Equal(node.partitions[0].journal.CompletionKey(), joined.partitions[0].journal.CompletionKey()) {
			t.Errorf("%s has another key", node.ID())
		}
	}
}

// An attempt on a worker without a replica gets tokens as on a node. The leader signs them, and
// only for attempts that run on workers of the caller.
func TestSignedToken_OfRemoteWorker(t *testing.T) {
	t.Parallel()
	trusted, s, w := newAuthority(t), newSignedTokens(), newAttemptRecorder()
	nodes, _ := startWithTLS(t, trusted, func(_ int, config *Config) {
		config.Partitions, config.CompletionURL = 2, testCompletionURL
		config.Definitions = append(s.definitions()[1:], w.definitions("node")[1:]...)
	})
	dial := func(name string, definitions ...replay.Definition) *Client {
		return dialNodes(t, DialConfig{TLS: trusted.keys(trusted.Client(name)), Definitions: definitions}, nodes...)
	}
	worker := dial("worker", append(s.definitions()[:1], w.definitions("worker")[0])...)
	for i := range 2 { // in each partition
		id := idInGroup("a", i, 2)
		startSigned(t, nodes[0], id)
		url := s.await(t, id, 1)
		expectStatus(t, "completed on "+nodes[i].ID(), serveCompletions(t, nodes[i])(url, `"signed"`), http.StatusNoContent)
		expectOutput(t, nodes[0].Client(), id, "signed")
	}
	run, err := StartRun(testContext(t), worker, workerOrchestration, "running", "")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it runs", func() bool { return w.countOn("worker") == 1 })
	history, err := worker.History(testContext(t), "running")
	if err != nil {
		t.Fatal(err)
	}
	ref := &journalpb.OperationRef{Instance: "running", Incarnation: run.run.incarnation, Execution: 1}
	for _, event := range history.Events {
		if event.Type == "ActivityScheduled" {
			ref.EventId = event.EventID
		}
	}
	for name, c := range map[string]struct {
		client *Client
		number uint32
		valid  bool
	}{
		"its own":        {worker, 1, true},
		"another number": {worker, 2, false},
		"of another":     {dial("other"), 1, false},
	} {
		request := &clusterpb.SignTokenRequest{Attempt: &clusterpb.AttemptID{Ref: ref, Number: c.number}, Lifetime: int64(time.Hour)}
		response, err := c.client.call(testContext(t), &clusterpb.Request{Instance: "running", Call: &clusterpb.Request_SignToken{SignToken: request}})
		if invalid := new(replay.InvalidError); c.valid != (err == nil) || !c.valid && !errors.As(err, &invalid) {
			t.Errorf("%s: %v, %v", name, response, err)
		}
	}
	close(w.release)
	if _, err := run.Wait(testContext(t)); err != nil {
		t.Error(err)
	}
}

// A node that gets the state of the first partition in a snapshot verifies tokens that were signed
// before, and so does one whose journal begins with a snapshot when it starts.
func TestSignedToken_KeyIsInSnapshot(t *testing.T) {
	t.Parallel()
	s, peers := newSignedTokens(), loopbackPeers(t, 1)
	overrides := harness.Overrides{SnapshotThreshold: 10, SnapshotInterval: 20 * time.Millisecond, TrailingLogs: 1}
	ctx, cancel := context.WithCancel(harness.NewContext(context.Background(), overrides))
	t.Cleanup(cancel)
	config := peerConfig(t, peers, 0, append(s.definitions(), definitions()...)...)
	config.Partitions, config.CompletionURL = 1, testCompletionURL
	first := startNodeIn(ctx, t, config)
	startSigned(t, first, "a", "b")
	urls := []string{s.await(t, "a", 1), s.await(t, "b", 1)}
	before, n := first.partitions[0].journal.Stats().Snapshots, 0
	eventually(t, "the log begins after the key", func() bool {
		if n++; errOf(Call(testContext(t), first.Client(), doubled, fmt.Sprint("filler-", n), 1)) != nil {
			t.Fatal("a call failed")
		}
		return first.partitions[0].journal.Stats().Snapshots >= before+2
	})
	log := new(logRecorder)
	joined := startNode(t, Config{
		NodeID: "n2", Listen: loopbackAddress(t), Join: []string{peers[0].Address}, Dir: t.TempDir(), Definitions: config.Definitions,
		Partitions: 1, CompletionURL: testCompletionURL, Logger: log.logger(), CallTimeout: testTimeout,
	})
	expectStatus(t, "completed on the new node", serveCompletions(t, joined)(urls[0], `"joined"`), http.StatusNoContent)
	if log.countLines("state replaced by snapshot") == 0 {
		t.Errorf("the node got no snapshot: %s", log.all())
	}
	eventually(t, "the new node votes", func() bool {
		members, err := joined.Client().Members(testContext(t))
		return err == nil && len(members) == 2 && members[0].Voter && members[1].Voter
	})
	if err := first.Stop(testContext(t)); err != nil {
		t.Fatal(err)
	}
	first = startNodeIn(ctx, t, config)
	post, status := serveCompletions(t, first), 0
	eventually(t, "a leader answers after the restart", func() bool {
		status = post(urls[1], `"restarted"`)
		return status != http.StatusServiceUnavailable
	})
	expectStatus(t, "completed after a restart", status, http.StatusNoContent)
	expectOutput(t, first.Client(), "a", "joined")
	expectOutput(t, first.Client(), "b", "restarted")
}

// What a token names ends once: a token of an earlier attempt, of a purged run, or with another
// outcome does nothing.
func TestSignedToken_EndsOneAttempt(t *testing.T) {
	checkGoroutineLeaks(t)
	s := newSignedTokens()
	node := startNewestProtocol(t, Config{Definitions: s.definitions(), CompletionURL: testCompletionURL})
	post := serveCompletions(t, node)
	fail := func(url, body string) int { return post(strings.Replace(url, "/complete/", "/fail/", 1), body) }
	startSigned(t, node, "a")
	first := s.await(t, "a", 1)
	expectStatus(t, "failed", fail(first, `{"code": "shop.closed", "message": "come back"}`), http.StatusNoContent)
	second := s.await(t, "a", 2)
	expectStatus(t, "an earlier attempt", post(first, `"x"`), http.StatusConflict)
	if open := awaitOnlyOperation(t, node.Client(), "a", ActivityPending); open.LastError == nil ||
		!errors.Is(open.LastError, replay.NewError("shop.closed", "")) || open.LastError.Error() != "come back" {
		t.Errorf("the recorded error: %v", open.LastError)
	}
	expectStatus(t, "the second attempt", post(second, `"done"`), http.StatusNoContent)
	expectOutput(t, node.Client(), "a", "done")
	purgeOneInstance(t, node.Client(), "a")
	startSigned(t, node, "a")
	s.await(t, "a", 3)
	expectStatus(t, "a token of the purged run", post(second, `"done"`), http.StatusConflict)
	if err := CompleteActivity(testContext(t), node.Client(), tokenIn(t, second), "done"); !errors.Is(err, ErrActivityClosed) {
		t.Errorf("a token of the purged run: %v", err)
	}
	expectStatus(t, "the token of the new run", post(s.await(t, "a", 3), `"new"`), http.StatusNoContent)
	expectOutput(t, node.Client(), "a", "new")
}

// Neither the handler nor the leader accepts a token that the cluster has not signed, or an expired
// one, whatever else the request says.
func TestSignedToken_RejectsForgedAndExpired(t *testing.T) {
	checkGoroutineLeaks(t)
	s := newSignedTokens()
	node := startNewestProtocol(t, Config{Definitions: s.definitions(), CompletionURL: testCompletionURL, Listen: loopbackAddress(t)})
	ctx, post, remote := testContext(t), serveCompletions(t, node), dialNodes(t, DialConfig{}, node)
	key, err := node.tokens.awaitKey(ctx)
	if err != nil {
		t.Fatal(err)
	}
	signedAs := func(id, cluster string, key []byte, ago time.Duration) string {
		s.as = &engine.TokenSigner{
			Cluster: cluster, URL: strings.TrimRight(testCompletionURL, "/"),
			Key: func(context.Context) ([]byte, error) { return key, nil },
			Now: func(ctx context.Context, instance string) (time.Time, error) {
				now, err := node.tokens.now(ctx, instance)
				return now.Add(-ago), err
			},
		}
		startSigned(t, node, id)
		return s.await(t, id, 1)
	}
	forged := map[string]string{
		"another key":     signedAs("key", node.config.ClusterID, make([]byte, 32), 0),
		"another cluster": signedAs("cluster", "other", key, 0),
	}
	expired := signedAs("expired", node.config.ClusterID, key, time.Hour)
	valid := signedAs("valid", node.config.ClusterID, key, time.Hour-time.Minute)
	plain := (&replay.Attempt{Instance: "valid", Execution: 1, EventID: 2, Number: 1}).Token()
	forged["changed"] = valid[:len(valid)-1] + map[bool]string{true: "Q", false: "A"}[strings.HasSuffix(valid, "A")]
	forged["truncated"] = valid[:len(valid)-10]
	forged["plain under the prefix"] = testCompletionURL + "complete/t3." + plain[3:]
	for what, url := range forged {
		expectStatus(t, what, post(url, `"x"`), http.StatusNotFound)
		for where, client := range map[string]*Client{"local": node.Client(), "remote": remote} {
			var wrong *replay.TokenError
			if err := CompleteActivity(ctx, client, tokenIn(t, url), "x"); !errors.As(err, &wrong) || strings.Contains(err.Error(), tokenIn(t, url)[3:10]) {
				t.Errorf("%s, %s: %v; want a TokenError without the token", what, where, err)
			}
		}
	}
	expectStatus(t, "a plain token", post(testCompletionURL+"complete/"+plain, `"x"`), http.StatusNotFound)
	expectStatus(t, "expired", post(expired, `"x"`), http.StatusGone)
	for where, client := range map[string]*Client{"local": node.Client(), "remote": remote} {
		if err := CompleteActivity(ctx, client, tokenIn(t, expired), "x"); !errors.Is(err, ErrTokenExpired) {
			t.Errorf("expired, %s: %v", where, err)
		}
		for what, request := range map[string]*clusterpb.CompleteRequest{
			"another instance": {SignedToken: tokenIn(t, valid)},
			"no signature":     {SignedToken: tokenIn(t, forged["plain under the prefix"])},
		} {
			_, err := client.call(ctx, &clusterpb.Request{Instance: "key", Call: &clusterpb.Request_Complete{Complete: request}})
			if !errors.As(err, new(*replay.InvalidError)) && !errors.As(err, new(*replay.TokenError)) {
				t.Errorf("%s, %s: %v", what, where, err)
			}
		}
	}
	for what, request := range map[string]*clusterpb.CompleteRequest{
		"with an attempt": {SignedToken: tokenIn(t, valid), Execution: 1, EventId: 2, Attempt: 1},
		"too long":        {SignedToken: strings.Repeat("A", engine.SignedTokenMax+1)},
	} {
		_, err := remote.call(ctx, &clusterpb.Request{Instance: "valid", Call: &clusterpb.Request_Complete{Complete: request}})
		var invalid *replay.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "signed token" {
			t.Errorf("%s: %v; want an InvalidError for the signed token", what, err)
		}
	}
	for _, id := range []string{"key", "cluster", "expired", "valid"} {
		awaitOnlyOperation(t, node.Client(), id, ActivityPending)
	}
	if err := CompleteActivity(ctx, remote, tokenIn(t, valid), "x"); err != nil {
		t.Errorf("the valid one: %v", err)
	}
}

// A directory of a build before signed tokens gets a key when every member can read it; until then
// attempts that want one fail, and forged ones are not accepted. A restart keeps the key.
func TestSignedToken_NeedsProtocol(t *testing.T) {
	t.Parallel()
	s := newSignedTokens()
	config := Config{Dir: t.TempDir(), Definitions: s.definitions(), CompletionURL: testCompletionURL, protocol: journal.CompletionKeyProtocol - 1}
	node := startNode(t, config)
	startSigned(t, node, "a")
	eventually(t, "the attempt fails", func() bool { return s.lastError("a") != nil })
	if err := s.lastError("a"); !errors.Is(err, ErrProtocol) {
		t.Errorf("%v; want ErrProtocol", err)
	}
	foreign := newSignedTokens()
	foreignNode := startNewestProtocol(t, Config{NodeID: "foreign", Definitions: foreign.definitions(), CompletionURL: testCompletionURL})
	startSigned(t, foreignNode, "a")
	token := foreign.await(t, "a", 1)
	expectStatus(t, "a foreign token", serveCompletions(t, node)(token, `1`), http.StatusServiceUnavailable)
	if err := CompleteActivity(testContext(t), node.Client(), tokenIn(t, token), ""); !errors.Is(err, ErrProtocol) {
		t.Errorf("a foreign token: %v", err)
	}
	if len(node.partitions[0].journal.CompletionKey()) > 0 {
		t.Error("a key is recorded")
	}
	if err := node.partitions[0].journal.RecordCompletionKey(testContext(t), make([]byte, 32)); !errors.Is(err, journal.ErrCompletionKeyProtocol) {
		t.Errorf("recording a key: %v", err)
	}
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	config.protocol = protocolVersion
	node = startNode(t, config)
	finalizeProtocol(t, node.Client())
	url := s.await(t, "a", 1)
	expectStatus(t, "a foreign token", serveCompletions(t, node)(token, `1`), http.StatusNotFound)
	key := node.partitions[0].journal.CompletionKey()
	if err := node.partitions[0].journal.RecordCompletionKey(testContext(t), make([]byte, 32)); err != nil {
		t.Errorf("recording another key: %v", err)
	}
	if err := node.partitions[0].journal.RecordCompletionKey(testContext(t), make([]byte, 31)); !errors.Is(err, journal.ErrCompletionKey) {
		t.Errorf("recording a short key: %v", err)
	}
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	node = startNode(t, config)
	if got := node.partitions[0].journal.CompletionKey(); len(got) != 32 || !bytes.Equal(got, key) {
		t.Errorf("the restart changed the key of %d bytes", len(got))
	}
	expectStatus(t, "the own token after a restart", serveCompletions(t, node)(url, `"kept"`), http.StatusNoContent)
	expectOutput(t, node.Client(), "a", "kept")
}

// While one member speaks the earlier protocol, there is no key and no signed token. When it is
// replaced, waiting activities get theirs on every node.
func TestSignedToken_RollingUpgrade(t *testing.T) {
	if shorttest.Race {
		t.Skip("as in TestUpgrade_RollingUpgradeLosesNothing")
	}
	checkGoroutineLeaks(t)
	const older, newer = journal.CompletionKeyProtocol - 1, protocolVersion
	s := newSignedTokens()
	f := newTestClusterWith(t, 3, func(config *Config) {
		config.Definitions, config.CompletionURL, config.protocol = s.definitions(), testCompletionURL, newer
		if config.NodeID == "n3" {
			config.protocol = older
		}
	})
	startSigned(t, f.leader(), "a")
	eventually(t, "the attempt fails for want of the protocol", func() bool { return errors.Is(s.lastError("a"), ErrProtocol) })
	var last *Node
	for _, node := range f.all() {
		if len(node.partitions[0].journal.CompletionKey()) > 0 {
			t.Errorf("%s has a key", node.ID())
		}
		if node.ID() == "n3" {
			last = node
		}
	}
	f.forget(last)
	if err := last.Stop(testContext(t)); err != nil {
		t.Fatal(err)
	}
	config := last.config
	config.journalLogger, config.protocol = nil, newer
	f.start(config)
	finalizeProtocol(t, f.anyNode().Client())
	url := s.await(t, "a", 1)
	for _, node := range f.all() {
		expectStatus(t, "on "+node.ID(), serveCompletions(t, node)(url, `"upgraded"`), http.StatusNoContent)
	}
	expectOutput(t, f.leader().Client(), "a", "upgraded")
}

func TestCompletionHandler_RejectsBadRequests(t *testing.T) {
	checkGoroutineLeaks(t)
	s := newSignedTokens()
	var logged logRecorder
	node := startNewestProtocol(t, Config{
		Definitions: s.definitions(), CompletionURL: testCompletionURL, Settings: Settings{PayloadMax: 1000},
		PayloadConverter: replay.PayloadConverter{Codec: flippingCodec{}}, Logger: logged.loggerAt(slog.LevelDebug),
	})
	post := serveCompletions(t, node)
	startSigned(t, node, "a")
	url := s.await(t, "a", 1)
	failing := strings.Replace(url, "/complete/", "/fail/", 1)
	for _, request := range []struct {
		url, body string
		want      int
	}{
		{url, ``, http.StatusBadRequest},
		{url, `{`, http.StatusBadRequest},
		{url, `1 2`, http.StatusBadRequest},
		{url, "\"\xff\"", http.StatusBadRequest},
		{url, `"` + strings.Repeat("x", 1000) + `"`, http.StatusRequestEntityTooLarge},
		{failing, `"x"`, http.StatusBadRequest},
		{failing, `null`, http.StatusBadRequest},
		{failing, `{"code": 1}`, http.StatusBadRequest},
		{failing, `{"code": "a", "details": 1}`, http.StatusBadRequest},
		{failing, `{"code": "tenuto.timeout", "message": "m"}`, http.StatusBadRequest},
		{failing, `{"code": "` + strings.Repeat("c", 129) + `"}`, http.StatusBadRequest},
		{testCompletionURL + "complete/", `1`, http.StatusNotFound},
		{testCompletionURL + "other/" + tokenIn(t, url), `1`, http.StatusNotFound},
	} {
		expectStatus(t, fmt.Sprintf("%.60q", request.body), post(request.url, request.body), request.want)
	}
	recorder := httptest.NewRecorder()
	node.CompletionHandler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/complete/"+tokenIn(t, url), nil))
	if recorder.Code != http.StatusMethodNotAllowed || recorder.Header().Get("Allow") != http.MethodPost {
		t.Errorf("GET: %d, Allow %q", recorder.Code, recorder.Header().Get("Allow"))
	}
	awaitOnlyOperation(t, node.Client(), "a", ActivityPending)
	expectStatus(t, "a valid one", post(url, `"coded"`), http.StatusNoContent)
	expectStatus(t, "the same again", post(url, `"coded"`), http.StatusNoContent)
	expectOutput(t, node.Client(), "a", "coded")
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	expectStatus(t, "after the node was closed", post(url, `"coded"`), http.StatusServiceUnavailable)
	recorder = httptest.NewRecorder()
	(*Node)(nil).CompletionHandler().ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, "/complete/"+tokenIn(t, url), strings.NewReader("1")))
	expectStatus(t, "of a nil node", recorder.Code, http.StatusInternalServerError)
	key := node.partitions[0].journal.CompletionKey()
	for what, secret := range map[string]string{"key": string(key), "key in hex": hex.EncodeToString(key), "key in base64": base64.StdEncoding.EncodeToString(key), "token": tokenIn(t, url)} {
		if len(secret) < 32 || bytes.Contains(logged.all(), []byte(secret)) {
			t.Errorf("the log contains the %s, of %d bytes", what, len(secret))
		}
	}
}

// A value has the size of the body without space, also if encoding/json writes it longer. It is
// recorded as a Go client records it, unless that is too large.
func TestCompletionHandler_MeasuresBody(t *testing.T) {
	checkGoroutineLeaks(t)
	s, counting := newSignedTokens(), replay.Orchestration[string, int]("counting")
	node := startNewestProtocol(t, Config{CompletionURL: testCompletionURL, Settings: Settings{PayloadMax: 1000},
		Definitions: append(s.definitions(), counting.Bind(func(ctx *replay.Context, _ string) (int, error) {
			text, err := asyncActivity.Call(ctx, "")
			return strings.Count(text, "<"), err
		}))})
	post := serveCompletions(t, node)
	await := func(id string) (url string) {
		if _, err := StartRun(testContext(t), node.Client(), counting, id, ""); err != nil {
			t.Fatal(err)
		}
		return s.await(t, id, 1)
	}
	for _, n := range []int{3, 998} {
		id, text := fmt.Sprint(n), strings.Repeat("<", n)
		url := await(id)
		expectStatus(t, id, post(url, `"`+text+`"`), http.StatusNoContent)
		expectStatus(t, id+", repeated", post(url, `"`+text+`"`), http.StatusNoContent)
		expectOutput(t, node.Client(), id, n)
		err := CompleteActivity(testContext(t), node.Client(), tokenIn(t, url), text)
		if large := errors.As(err, new(*replay.PayloadTooLargeError)); large != (n == 998) || !large && err != nil {
			t.Errorf("%s, repeated by a client in Go: %v", id, err)
		}
	}
	expectStatus(t, "one byte more", post(await("more"), `"`+strings.Repeat("<", 999)+`"`), http.StatusRequestEntityTooLarge)
}

// A node that has not learned a smaller Settings.PayloadMax yet answers as one that has.
func TestCompletionHandler_ValueTooLargeForLeader(t *testing.T) {
	checkGoroutineLeaks(t)
	s, peers := newSignedTokens(), loopbackPeers(t, 3)
	nodes := make([]*Node, len(peers))
	var starting sync.WaitGroup
	for i := range peers {
		starting.Go(func() {
			config := peerConfig(t, peers, i, s.definitions()...)
			config.CompletionURL = testCompletionURL
			config.harness.HeartbeatTimeout = time.Second // the leader must not change, on few processors either
			nodes[i] = startNode(t, config)
		})
	}
	starting.Wait()
	leader := leaderOf(t, nodes)
	startSigned(t, leader, "a")
	url := s.await(t, "a", 1)
	smaller := *leader.settings.current.Load()
	smaller.PayloadMax = 100
	leader.settings.current.Store(&smaller)
	for _, node := range nodes {
		post := serveCompletions(t, node)
		expectStatus(t, "a large value on "+node.ID(), post(url, `"`+strings.Repeat("x", 100)+`"`), http.StatusRequestEntityTooLarge)
		failing := strings.Replace(url, "/complete/", "/fail/", 1)
		if node != leader { // which accepts the failures of its own clients, as of its own workers
			expectStatus(t, "a large failure on "+node.ID(), post(failing, `{"message": "`+strings.Repeat("x", 100)+`"}`), http.StatusRequestEntityTooLarge)
			err := CompleteActivity(testContext(t), node.Client(), tokenIn(t, url), strings.Repeat("x", 100))
			var invalid *replay.InvalidError
			var large *replay.PayloadTooLargeError
			if !errors.As(err, &invalid) || invalid.Field != "result" || !errors.As(err, &large) || *large != (replay.PayloadTooLargeError{Bytes: 102, Max: 100}) {
				t.Errorf("a client of %s got %v", node.ID(), err)
			}
		}
	}
	expectStatus(t, "a valid one", serveCompletions(t, nodes[0])(url, `"x"`), http.StatusNoContent)
}

// A node without a leader answers that the request can be repeated, when its context ends.
func TestCompletionHandler_UnavailableWithoutLeader(t *testing.T) {
	t.Parallel()
	s, peers := newSignedTokens(), loopbackPeers(t, 3)
	var nodes []*Node
	var starting sync.WaitGroup
	var mu sync.Mutex
	for i := range peers {
		starting.Go(func() {
			config := peerConfig(t, peers, i, s.definitions()...)
			config.CompletionURL, config.CallTimeout = testCompletionURL, 300*time.Millisecond
			node := startNode(t, config)
			mu.Lock()
			defer mu.Unlock()
			nodes = append(nodes, node)
		})
	}
	starting.Wait()
	startSigned(t, leaderOf(t, nodes), "a")
	url := s.await(t, "a", 1)
	for _, node := range nodes {
		if _, err := node.tokens.awaitKey(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	for _, node := range nodes[1:] {
		if err := node.Close(); err != nil {
			t.Fatal(err)
		}
	}
	post := serveCompletions(t, nodes[0])
	expectStatus(t, "without a majority", post(url, `1`), http.StatusServiceUnavailable)
	expectStatus(t, "forged, without a majority", post(url[:len(url)-1], `1`), http.StatusNotFound)
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	recorder := httptest.NewRecorder()
	request := httptest.NewRequest(http.MethodPost, "/complete/"+tokenIn(t, url), strings.NewReader("1"))
	nodes[0].CompletionHandler().ServeHTTP(recorder, request.WithContext(ctx))
	expectStatus(t, "after the end of the request's context", recorder.Code, http.StatusServiceUnavailable)
}

func TestConfig_CompletionURL(t *testing.T) {
	for url, valid := range map[string]bool{
		"": true, "https://shop.example": true, "https://shop.example/": true, "http://127.0.0.1:80/a/b": true,
		"shop.example": false, "/hooks": false, "ftp://shop.example": false, "https://": false, "https:///hooks": false, "https://u:p@shop.example": false,
		"https://shop.example?a": false, "https://shop.example?": false, "https://shop.example#a": false, "https://shop.example/\n": false, "://": false,
		"https://shop.example/" + strings.Repeat("x", 1003): true, "https://shop.example/" + strings.Repeat("x", 1004): false,
	} {
		config := Config{InMemory: true, CompletionURL: url}.withDefaults()
		var invalid *replay.InvalidError
		switch err := config.validate(); {
		case valid && err != nil:
			t.Errorf("%.40s: %v", url, err)
		case !valid && (!errors.As(err, &invalid) || invalid.Field != "Config.CompletionURL" || strings.Contains(err.Error(), ":p@")):
			t.Errorf("%.40s: %v; want an InvalidError for Config.CompletionURL", url, err)
		}
	}
}
