package cluster

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

func requireJoinToken(config *Config) { config.Settings.RequireJoinToken = true }

// issueToken returns a token of a node's cluster.
func issueToken(t *testing.T, node *Node, lifetime time.Duration) string {
	t.Helper()
	token, expires, err := node.IssueJoinToken(testContext(t), lifetime)
	if err != nil || !expires.After(node.partitions[0].journal.Now().AsTime()) {
		t.Fatalf("expires at %v, %v", expires, err)
	}
	return token
}

// expiredToken returns an expired token.
func expiredToken(t *testing.T, node *Node) string {
	t.Helper()
	token, expires, err := node.IssueJoinToken(testContext(t), tokenLifetimeMin)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has expired", func() bool { return node.partitions[0].journal.Now().AsTime().After(expires) })
	return token
}

// forgedToken returns a token that was not issued.
func forgedToken(t *testing.T, cluster string) string {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return formatToken(key, cluster)
}

func TestJoinToken_RequiredToJoin(t *testing.T) {
	t.Parallel()
	f := newTestClusterWith(t, 1, requireJoinToken)
	leader := f.leader()
	other := startNode(t, peerConfig(t, loopbackPeers(t, 1), 0, definitions()...)) // with the same name
	eventually(t, "it leads", other.IsLeader)
	used := issueToken(t, leader, 0)
	joining := func(id, token string) Config {
		config := f.joiningConfig(id)
		requireJoinToken(&config) // it may become leader
		config.JoinToken = token
		return config
	}
	first := joining("n2", used)
	f.start(first)
	f.awaitVoters("n1", "n2")
	for name, attempt := range map[string]struct {
		token string
		want  error
	}{
		"none":               {"", ErrTokenRequired},
		"one that was used":  {used, ErrTokenUsed},
		"one that is old":    {expiredToken(t, leader), ErrTokenExpired},
		"another cluster's":  {issueToken(t, other, 0), ErrTokenInvalid},
		"one of nobody":      {forgedToken(t, clusterIDDefault), ErrTokenInvalid},
		"one with a mistake": {mistypeToken(issueToken(t, leader, 0)), ErrTokenInvalid},
	} {
		config := joining("n3", attempt.token)
		if _, err := Start(testContext(t), config); !errors.Is(err, attempt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	f.awaitVoters("n1", "n2")
	good := joining("n3", issueToken(t, leader, 0))
	third := f.start(good)
	f.awaitVoters("n1", "n2", "n3")
	// A used token does not keep a member from returning.
	f.close(third)
	f.start(good)
	f.awaitVoters("n1", "n2", "n3")
}

// mistypeToken returns a token with one character changed.
func mistypeToken(token string) string {
	at := len(tokenPrefix) + 3
	other := byte('A')
	if token[at] == other {
		other = 'B'
	}
	return token[:at] + string(other) + token[at+1:]
}

func TestJoinToken_RejectsMalformedAtOnce(t *testing.T) {
	good := Config{NodeID: "n2", Listen: "127.0.0.1:0", InMemory: true, Join: []string{"127.0.0.1:1"}}
	for name, change := range map[string]func(*Config){
		"no token":             func(c *Config) { c.JoinToken = "secret" },
		"half of one":          func(c *Config) { c.JoinToken = forgedToken(t, clusterIDDefault)[:30] },
		"of another cluster":   func(c *Config) { c.JoinToken = forgedToken(t, "another") },
		"with nobody to join":  func(c *Config) { c.JoinToken, c.Join = forgedToken(t, clusterIDDefault), nil },
		"without its own name": func(c *Config) { c.JoinToken = tokenPrefix },
	} {
		config := good
		change(&config)
		var rejected *replay.InvalidError
		if _, err := Start(testContext(t), config); !errors.As(err, &rejected) || rejected.Field != "Config.JoinToken" {
			t.Errorf("%s: %v", name, err)
		}
	}
	node := startNode(t, Config{InMemory: true})
	for _, lifetime := range []time.Duration{-1, tokenLifetimeMin - 1, tokenLifetimeMax + 1} {
		if _, _, err := node.IssueJoinToken(testContext(t), lifetime); !errors.As(err, new(*replay.InvalidError)) {
			t.Errorf("%v: %v", lifetime, err)
		}
	}
}

// A signed join request cannot be used for another node or address.
func TestJoinToken_InterceptedJoinIsUseless(t *testing.T) {
	f := newTestClusterWith(t, 1, requireJoinToken)
	leader := f.leader()
	config := f.joiningConfig("n2")
	config.JoinToken = issueToken(t, leader, 0)
	config = config.withDefaults()
	signed := &clusterpb.JoinRequest{Node: "n2", Address: config.address(), NewNode: true, Partitions: uint32(config.Partitions)}
	config.signJoin(signed)
	for name, change := range map[string]func(*clusterpb.JoinRequest){
		"another node":    func(r *clusterpb.JoinRequest) { r.Node = "n3" },
		"another address": func(r *clusterpb.JoinRequest) { r.Address = "127.0.0.1:1" },
		"no signature":    func(r *clusterpb.JoinRequest) { r.TokenSignature = nil },
		"a short key":     func(r *clusterpb.JoinRequest) { r.TokenKey = r.TokenKey[:5] },
	} {
		request := &clusterpb.JoinRequest{
			Node: signed.Node, Address: signed.Address, NewNode: true, Partitions: signed.Partitions, TokenKey: signed.TokenKey, TokenSignature: signed.TokenSignature,
		}
		change(request)
		if _, err := leader.partitions[0].members.handleJoin(testContext(t), protocolVersion, request); !errors.Is(err, ErrTokenInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if members := leader.partitions[0].journal.Members(); len(members) != 1 {
		t.Errorf("members: %v", members)
	}
}

// The leader is lost between the two halves of a join: the next one finds the token used by the
// node that asks again.
func TestJoinToken_ValidForItsNodeUntilAdded(t *testing.T) {
	f := newTestClusterWith(t, 3, requireJoinToken)
	leader := f.leader()
	token := issueToken(t, leader, 0)
	key, _, err := parseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is used", func() bool {
		leader = f.leader()
		return leader.partitions[0].journal.UseToken(testContext(t), key.Public().(ed25519.PublicKey), "n4") == nil
	})
	f.close(leader)
	f.leader()
	for _, id := range []string{"n5", "n4"} {
		config := f.joiningConfig(id)
		config.JoinToken = token
		switch node, err := Start(testContext(t), config); {
		case id == "n5" && !errors.Is(err, ErrTokenUsed):
			t.Errorf("another node: %v", err)
		case id == "n4" && err != nil:
			t.Errorf("the node that has used it: %v", err)
		case err == nil:
			t.Cleanup(func() { _ = node.Close() })
		}
	}
}

// With TLS, a token does not replace the certificate, and a client may issue tokens if it is
// authorized.
func TestJoinToken_DoesNotReplaceCertificate(t *testing.T) {
	checkGoroutineLeaks(t)
	trusted, others := newAuthority(t), newAuthority(t)
	nodes, _ := startWithTLS(t, trusted, func(_ int, config *Config) {
		config.Settings.RequireJoinToken = true
		config.Authorize = func(_ context.Context, caller Principal, action Action, _ string) error {
			if action == ActionIssueToken && caller.Name != "operator" {
				return errors.New("operators only")
			}
			return nil
		}
	})
	leader := leaderOf(t, nodes)
	dial := func(name string) *Client {
		return dialNodes(t, DialConfig{TLS: trusted.keys(trusted.Client(name))}, nodes...)
	}
	if _, _, err := dial("app").IssueJoinToken(testContext(t), 0); !errors.Is(err, ErrNotAuthorized) {
		t.Errorf("a client that may not: %v", err)
	}
	token, _, err := dial("operator").IssueJoinToken(testContext(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	config := Config{
		NodeID: "n4", Listen: loopbackAddress(t), Dir: t.TempDir(), Definitions: definitions(), Logger: testLogger(), Partitions: testPartitionsDefault,
		CallTimeout: testTimeout,
	}
	for _, node := range nodes {
		config.Join = append(config.Join, node.config.address())
	}
	foreign := config
	foreign.JoinToken, foreign.TLS = token, others.keys(others.Node("n4"))
	soon, cancel := context.WithTimeout(testContext(t), time.Second)
	defer cancel() // no node answers
	if _, err := Start(soon, foreign); err == nil {
		t.Error("joined with a certificate of another authority")
	}
	if members := leader.partitions[0].journal.Members(); len(members) != 3 {
		t.Errorf("members: %v", members)
	}
	config.TLS, config.Dir = trusted.keys(trusted.Node("n4")), t.TempDir()
	if _, err := Start(testContext(t), config); !errors.Is(err, ErrTokenRequired) {
		t.Errorf("with a certificate alone: %v", err)
	}
	config.JoinToken = token
	startNode(t, config)
}

// Only the first partition checks the token. The others add only nodes that it has added.
func TestMembership_OtherPartitionsFollowFirst(t *testing.T) {
	checkGoroutineLeaks(t)
	config := peerConfig(t, loopbackPeers(t, 1), 0, definitions()...)
	config.Partitions, config.Settings.RequireJoinToken = testPartitions, true
	node := startNode(t, config)
	joinRequest := &clusterpb.JoinRequest{Node: "n2", Address: "127.0.0.1:1", NewNode: true, Partitions: testPartitions}
	for _, g := range node.partitions {
		want := ErrNotMember
		if g.number == 0 {
			want = ErrTokenRequired
		}
		if _, err := g.members.handleJoin(testContext(t), protocolVersion, joinRequest); !errors.Is(err, want) {
			t.Errorf("partition %d: %v", g.number, err)
		}
		if members := g.journal.Members(); len(members) != 1 {
			t.Errorf("partition %d has the members %v", g.number, members)
		}
	}
}

// An operator lists the known tokens, and revokes those that must not be used.
func TestJoinToken_ListAndRevoke(t *testing.T) {
	checkGoroutineLeaks(t)
	f := newTestClusterWith(t, 1, requireJoinToken)
	leader, ctx := f.leader(), testContext(t)
	eventually(t, "the cluster speaks the protocol", func() bool { return leader.partitions[0].journal.Protocol() == protocolVersion })
	client := dialNodes(t, DialConfig{}, leader)
	first, second := issueToken(t, leader, time.Hour), issueToken(t, leader, 2*time.Hour)
	config := f.joiningConfig("n2")
	requireJoinToken(&config)
	config.JoinToken = second
	f.start(config)
	tokens, err := client.JoinTokens(ctx)
	if err != nil || len(tokens) != 2 || tokens[0].UsedBy != "" || tokens[1].UsedBy != "n2" || !tokens[0].Expires.Before(tokens[1].Expires) {
		t.Fatalf("tokens: %+v, %v", tokens, err)
	}
	if err := client.RevokeJoinToken(ctx, tokens[0].ID); err != nil {
		t.Fatal(err)
	}
	rejected := f.joiningConfig("n3")
	requireJoinToken(&rejected)
	rejected.JoinToken = first
	if _, err := Start(ctx, rejected); !errors.Is(err, ErrTokenInvalid) {
		t.Errorf("with a token that was revoked: %v; want ErrTokenInvalid", err)
	}
	if err := client.RevokeJoinToken(ctx, second); err != nil { // by the token itself
		t.Error(err)
	}
	if err := client.RevokeJoinToken(ctx, second); !errors.Is(err, ErrTokenInvalid) {
		t.Errorf("revoked twice: %v; want ErrTokenInvalid", err)
	}
	key, err := tokenKey(second)
	if err != nil {
		t.Fatal(err)
	}
	again := &clusterpb.Request{Call: &clusterpb.Request_RevokeToken{RevokeToken: &clusterpb.RevokeTokenRequest{Key: key}}}
	if _, err := client.call(ctx, repeated(again)); err != nil {
		t.Errorf("revoked by a call whose earlier attempt got no answer: %v", err)
	}
	if err := client.RevokeJoinToken(ctx, "x"); !errors.As(err, new(*replay.InvalidError)) {
		t.Errorf("no token: %v; want an InvalidError", err)
	}
	if tokens, err := client.JoinTokens(ctx); err != nil || len(tokens) != 0 {
		t.Errorf("after all were revoked: %+v, %v", tokens, err)
	}
}

// A node of the previous version would not understand a revoked token.
func TestJoinToken_RevokeNeedsNewProtocol(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Partitions: 1, protocol: 2, Definitions: definitions()})
	token := issueToken(t, node, 0)
	if err := node.Client().RevokeJoinToken(testContext(t), token); !errors.Is(err, ErrProtocol) {
		t.Errorf("%v; want ErrProtocol", err)
	}
	if tokens, err := node.Client().JoinTokens(testContext(t)); err != nil || len(tokens) != 1 {
		t.Errorf("%+v, %v; want the token", tokens, err)
	}
}

// Files with histories, keys and tokens are accessible only to the owner of the process.
func TestFiles_OnlyOwnerHasAccess(t *testing.T) {
	dir := t.TempDir()
	node := startNode(t, Config{Dir: dir, Partitions: 1, Definitions: definitions()})
	for i := range 20 {
		callThrough(testContext(t), t, node, fmt.Sprint("d", i))
	}
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	files := 0
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v", path, info.Mode())
		}
		files++
		return err
	})
	if err != nil || files == 0 {
		t.Error(files, err)
	}
}
