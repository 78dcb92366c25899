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
)

func demandToken(config *Config) { config.RequireJoinToken = true }

// issued returns a token of a cluster's.
func issued(t *testing.T, node *Node, lifetime time.Duration) string {
	t.Helper()
	token, expires, err := node.IssueJoinToken(testContext(t), lifetime)
	if err != nil || !expires.After(node.groups[0].journal.Now().Shown()) {
		t.Fatalf("expires at %v, %v", expires, err)
	}
	return token
}

// expired returns a token that is too old.
func expired(t *testing.T, node *Node) string {
	t.Helper()
	token, expires, err := node.IssueJoinToken(testContext(t), tokenLifetimeMin)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has expired", func() bool { return node.groups[0].journal.Now().Shown().After(expires) })
	return token
}

// forged returns a token that nobody has issued.
func forged(t *testing.T, cluster string) string {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return formatToken(key, cluster)
}

func TestWhoHasNoGoodTokenDoesNotJoin(t *testing.T) {
	noGoroutinesLeft(t)
	f := newFleetWith(t, 1, demandToken)
	leader := f.leader()
	other := startNode(t, peerConfig(t, loopbackPeers(t, 1), 0, definitions()...)) // of the same name
	eventually(t, "it leads", other.Leading)
	used := issued(t, leader, 0)
	joining := func(id, token string) Config {
		config := f.joining(id)
		demandToken(&config) // it may lead, too
		config.JoinToken = token
		return config
	}
	first := joining("n2", used)
	f.start(first)
	f.votes("n1", "n2")
	for name, attempt := range map[string]struct {
		token string
		want  error
	}{
		"none":               {"", ErrTokenRequired},
		"one that was used":  {used, ErrTokenUsed},
		"one that is old":    {expired(t, leader), ErrTokenExpired},
		"another cluster's":  {issued(t, other, 0), ErrTokenInvalid},
		"one of nobody":      {forged(t, clusterIDDefault), ErrTokenInvalid},
		"one with a mistake": {mistaken(issued(t, leader, 0)), ErrTokenInvalid},
	} {
		config := joining("n3", attempt.token)
		if _, err := Start(testContext(t), config); !errors.Is(err, attempt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	f.votes("n1", "n2")
	good := joining("n3", issued(t, leader, 0))
	third := f.start(good)
	f.votes("n1", "n2", "n3")
	// What was used up to join does not keep a member from coming back.
	f.close(third)
	f.start(good)
	f.votes("n1", "n2", "n3")
}

// mistaken returns a token with another character.
func mistaken(token string) string {
	at := len(tokenPrefix) + 3
	other := byte('A')
	if token[at] == other {
		other = 'B'
	}
	return token[:at] + string(other) + token[at+1:]
}

func TestTokensThatCannotBeGoodAreRefusedAtOnce(t *testing.T) {
	good := Config{NodeID: "n2", Listen: "127.0.0.1:0", InMemory: true, Join: []string{"127.0.0.1:1"}}
	for name, change := range map[string]func(*Config){
		"no token":             func(c *Config) { c.JoinToken = "secret" },
		"half of one":          func(c *Config) { c.JoinToken = forged(t, clusterIDDefault)[:30] },
		"of another cluster":   func(c *Config) { c.JoinToken = forged(t, "another") },
		"with nobody to join":  func(c *Config) { c.JoinToken, c.Join = forged(t, clusterIDDefault), nil },
		"without its own name": func(c *Config) { c.JoinToken = tokenPrefix },
	} {
		config := good
		change(&config)
		var refused *ConfigError
		if _, err := Start(testContext(t), config); !errors.As(err, &refused) || refused.Field != "JoinToken" {
			t.Errorf("%s: %v", name, err)
		}
	}
	node := startNode(t, Config{InMemory: true})
	for _, lifetime := range []time.Duration{-1, tokenLifetimeMin - 1, tokenLifetimeMax + 1} {
		if _, _, err := node.IssueJoinToken(testContext(t), lifetime); !errors.As(err, new(*InputError)) {
			t.Errorf("%v: %v", lifetime, err)
		}
	}
}

// What a node has signed, to be added, adds no other, and nowhere else.
func TestWhatIsOverheardOfAJoinIsOfNoUse(t *testing.T) {
	f := newFleetWith(t, 1, demandToken)
	leader := f.leader()
	config := f.joining("n2")
	config.JoinToken = issued(t, leader, 0)
	config = config.withDefaults()
	signed := &clusterpb.EnrolRequest{Node: "n2", Address: config.address(), Fresh: true, Groups: uint32(config.Groups)}
	config.signEnrol(signed)
	for name, change := range map[string]func(*clusterpb.EnrolRequest){
		"another node":    func(r *clusterpb.EnrolRequest) { r.Node = "n3" },
		"another address": func(r *clusterpb.EnrolRequest) { r.Address = "127.0.0.1:1" },
		"no signature":    func(r *clusterpb.EnrolRequest) { r.TokenSignature = nil },
		"a short key":     func(r *clusterpb.EnrolRequest) { r.TokenKey = r.TokenKey[:5] },
	} {
		request := &clusterpb.EnrolRequest{
			Node: signed.Node, Address: signed.Address, Fresh: true, Groups: signed.Groups, TokenKey: signed.TokenKey, TokenSignature: signed.TokenSignature,
		}
		change(request)
		if _, err := leader.groups[0].enrolOther(testContext(t), protocolVersion, request); !errors.Is(err, ErrTokenInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if members := leader.groups[0].journal.Members(); len(members) != 1 {
		t.Errorf("members: %v", members)
	}
}

// The leader is lost between the two halves of a join: the next one finds the token
// used, by the node that asks again.
func TestATokenIsGoodForTheNodeThatHasUsedItUntilItIsAdded(t *testing.T) {
	f := newFleetWith(t, 3, demandToken)
	leader := f.leader()
	token := issued(t, leader, 0)
	key, _, err := parseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is used", func() bool {
		leader = f.leader()
		return leader.groups[0].journal.UseToken(testContext(t), key.Public().(ed25519.PublicKey), "n4") == nil
	})
	f.close(leader)
	f.leader()
	for _, id := range []string{"n5", "n4"} {
		config := f.joining(id)
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

// With TLS a token does not replace the certificate, and a client issues tokens if
// it may.
func TestATokenDoesNotReplaceACertificate(t *testing.T) {
	noGoroutinesLeft(t)
	ours, others := newAuthority(t), newAuthority(t)
	nodes, _ := startSecured(t, ours, func(_ int, config *Config) {
		config.RequireJoinToken = true
		config.Authorize = func(_ context.Context, caller Principal, action Action, _ string) error {
			if action == ActionIssueToken && caller.Name != "operator" {
				return errors.New("operators only")
			}
			return nil
		}
	})
	leader := leaderOf(t, nodes)
	dial := func(name string) *Client {
		return dialNodes(t, DialConfig{TLS: ours.keys(ours.client(name))}, nodes...)
	}
	if _, _, err := dial("app").IssueJoinToken(testContext(t), 0); !errors.Is(err, ErrNotAuthorized) {
		t.Errorf("a client that may not: %v", err)
	}
	token, _, err := dial("operator").IssueJoinToken(testContext(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	config := Config{NodeID: "n4", Listen: loopbackAddress(t), Dir: t.TempDir(), Definitions: definitions(), Logger: quiet(), Groups: testGroups}
	for _, node := range nodes {
		config.Join = append(config.Join, node.config.address())
	}
	foreign := config
	foreign.JoinToken, foreign.TLS = token, others.keys(others.node("n4"))
	soon, cancel := context.WithTimeout(testContext(t), time.Second)
	defer cancel() // nobody answers it
	if _, err := Start(soon, foreign); err == nil {
		t.Error("joined with a certificate of another authority")
	}
	if members := leader.groups[0].journal.Members(); len(members) != 3 {
		t.Errorf("members: %v", members)
	}
	config.TLS, config.Dir = ours.keys(ours.node("n4")), t.TempDir()
	if _, err := Start(testContext(t), config); !errors.Is(err, ErrTokenRequired) {
		t.Errorf("with a certificate alone: %v", err)
	}
	config.JoinToken = token
	startNode(t, config)
}

// The token is asked for by the first group. The others add nobody whom that has not
// added.
func TestOtherGroupsAddNobodyWhomTheFirstHasNot(t *testing.T) {
	noGoroutinesLeft(t)
	config := peerConfig(t, loopbackPeers(t, 1), 0, definitions()...)
	config.Groups, config.RequireJoinToken = groupsOfTests, true
	node := startNode(t, config)
	enrol := &clusterpb.EnrolRequest{Node: "n2", Address: "127.0.0.1:1", Fresh: true, Groups: groupsOfTests}
	for _, g := range node.groups {
		want := ErrNotMember
		if g.number == 0 {
			want = ErrTokenRequired
		}
		if _, err := g.enrolOther(testContext(t), protocolVersion, enrol); !errors.Is(err, want) {
			t.Errorf("group %d: %v", g.number, err)
		}
		if members := g.journal.Members(); len(members) != 1 {
			t.Errorf("group %d has the members %v", g.number, members)
		}
	}
}

// An operator sees the tokens that are known, and takes back those that nobody is to use.
func TestTokensAreListedAndRevoked(t *testing.T) {
	noGoroutinesLeft(t)
	f := newFleetWith(t, 1, demandToken)
	leader, ctx := f.leader(), testContext(t)
	eventually(t, "the cluster speaks the protocol", func() bool { return leader.groups[0].journal.Protocol() == protocolVersion })
	client := dialNodes(t, DialConfig{}, leader)
	first, second := issued(t, leader, time.Hour), issued(t, leader, 2*time.Hour)
	config := f.joining("n2")
	demandToken(&config)
	config.JoinToken = second
	f.start(config)
	tokens, err := client.JoinTokens(ctx)
	if err != nil || len(tokens) != 2 || tokens[0].UsedBy != "" || tokens[1].UsedBy != "n2" || !tokens[0].Expires.Before(tokens[1].Expires) {
		t.Fatalf("tokens: %+v, %v", tokens, err)
	}
	if err := client.RevokeJoinToken(ctx, tokens[0].ID); err != nil {
		t.Fatal(err)
	}
	refused := f.joining("n3")
	demandToken(&refused)
	refused.JoinToken = first
	if _, err := Start(ctx, refused); !errors.Is(err, ErrTokenInvalid) {
		t.Errorf("with a token that was revoked: %v; want ErrTokenInvalid", err)
	}
	if err := client.RevokeJoinToken(ctx, second); err != nil { // by the token itself
		t.Error(err)
	}
	if err := client.RevokeJoinToken(ctx, second); !errors.Is(err, ErrTokenInvalid) {
		t.Errorf("revoked twice: %v; want ErrTokenInvalid", err)
	}
	if err := client.RevokeJoinToken(ctx, "x"); !errors.As(err, new(*InputError)) {
		t.Errorf("no token: %v; want an InputError", err)
	}
	if tokens, err := client.JoinTokens(ctx); err != nil || len(tokens) != 0 {
		t.Errorf("after all were revoked: %+v, %v", tokens, err)
	}
}

// A node of the build before would not understand that a token was revoked.
func TestTokensAreNotRevokedWhileAMemberDoesNotKnowHow(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Groups: 1, protocol: 2, Definitions: definitions()})
	token := issued(t, node, 0)
	if err := node.Client().RevokeJoinToken(testContext(t), token); !errors.Is(err, ErrProtocol) {
		t.Errorf("%v; want ErrProtocol", err)
	}
	if tokens, err := node.Client().JoinTokens(testContext(t)); err != nil || len(tokens) != 1 {
		t.Errorf("%+v, %v; want the token", tokens, err)
	}
}

// Histories, keys and tokens are nobody's but the owner's of the process.
func TestFilesOfANodeAreTheOwnersAlone(t *testing.T) {
	dir := t.TempDir()
	node := startNode(t, Config{Dir: dir, Groups: 1, Definitions: definitions()})
	for i := range 20 {
		tell(testContext(t), t, node, fmt.Sprint("d", i))
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
