package cluster

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// Refusals of nodes that want to join. With each of them nothing has changed.
var (
	// ErrTokenRequired: the cluster adds nodes with a token only.
	ErrTokenRequired = errors.New("tenuto: a token is needed to join")
	// ErrTokenInvalid: the cluster has not issued the token, or it expired more than
	// a day ago, or it was not shown by whoever holds it.
	ErrTokenInvalid = errors.New("tenuto: the token is not one of this cluster")
	// ErrTokenExpired: the token is too old.
	ErrTokenExpired = errors.New("tenuto: the token has expired")
	// ErrTokenUsed: another node has used the token.
	ErrTokenUsed = errors.New("tenuto: the token was used by another node")
	// ErrTokens: 256 tokens are known, each until it is revoked, or a day after it has
	// expired; see [Client.RevokeJoinToken].
	ErrTokens = errors.New("tenuto: too many tokens are known")
)

// Bounds of the lifetime of tokens, and what it is if nothing is said.
const (
	tokenLifetimeMin     = time.Second
	tokenLifetimeMax     = 30 * 24 * time.Hour
	tokenLifetimeDefault = time.Hour
)

// A token is a private key, of which the cluster knows the public half, and the
// name of the cluster: tokenPrefix, and both in base64. A node that joins signs what
// it asks for, so that what can be overheard is of use to no other node.
const tokenPrefix = "tenuto-join-"

// IssueJoinToken makes a token with which one node may join ([Config.JoinToken]),
// and returns it and when it expires: after lifetime, by the cluster's time; 1 s to
// 30 days, and 0 means 1 hour. Whoever has the token can use it: treat it like a
// password. The cluster does not know it, and cannot show it again.
//
// Errors: [ErrTokens], [ErrNotAuthorized], [*InputError], [*UnavailableError].
func (c *Client) IssueJoinToken(ctx context.Context, lifetime time.Duration) (token string, expires time.Time, err error) {
	if lifetime == 0 {
		lifetime = tokenLifetimeDefault
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("issue join token: %w", err)
	}
	issue := &clusterpb.IssueTokenRequest{Key: public, Lifetime: int64(lifetime)}
	if err := checkIssue(issue); err != nil {
		return "", time.Time{}, err
	}
	response, err := c.call(ctx, &clusterpb.Request{Call: &clusterpb.Request_IssueToken{IssueToken: issue}})
	if err != nil {
		return "", time.Time{}, fmt.Errorf("issue join token: %w", err)
	}
	result := response.GetIssueToken()
	return formatToken(private, result.GetCluster()), time.Unix(0, result.GetExpiresAt()), nil
}

// A JoinToken is what the cluster knows of a token with which a node may join. The token
// itself is known only to who has issued it.
type JoinToken struct {
	// Names the token, and is no secret: its public key, in base64.
	ID      string
	Expires time.Time // by the cluster's time
	// The node that has joined with it; "" if none has.
	UsedBy string
}

// JoinTokens returns the tokens that the cluster knows, each until it is revoked, or a day
// after it has expired, in the order in which they expire.
//
// Errors: [ErrNotAuthorized], [*UnavailableError].
func (c *Client) JoinTokens(ctx context.Context) ([]JoinToken, error) {
	response, err := c.call(ctx, &clusterpb.Request{Call: &clusterpb.Request_ListTokens{ListTokens: new(clusterpb.ListTokensRequest)}})
	if err != nil {
		return nil, fmt.Errorf("list join tokens: %w", err)
	}
	var tokens []JoinToken
	for _, t := range response.GetListTokens().GetTokens() {
		tokens = append(tokens, JoinToken{base64.RawURLEncoding.EncodeToString(t.Key), time.Unix(0, t.ExpiresAt), t.Node})
	}
	slices.SortFunc(tokens, func(a, b JoinToken) int {
		return cmp.Or(a.Expires.Compare(b.Expires), cmp.Compare(a.ID, b.ID))
	})
	return tokens, nil
}

// RevokeJoinToken makes a token useless, by its ID or by the token itself. A node that has
// joined with it stays.
//
// Errors: [ErrTokenInvalid] when no such token is known, [ErrProtocol] while a member does
// not speak protocol 3, [ErrNotAuthorized], [*InputError], [*UnavailableError].
func (c *Client) RevokeJoinToken(ctx context.Context, id string) error {
	key, err := tokenKey(id)
	if err != nil {
		return err
	}
	request := &clusterpb.Request{Call: &clusterpb.Request_RevokeToken{RevokeToken: &clusterpb.RevokeTokenRequest{Key: key}}}
	if _, err := c.call(ctx, request); err != nil {
		return fmt.Errorf("revoke join token: %w", err)
	}
	return nil
}

// tokenKey returns the public key of a token that is named by its ID or is shown itself.
func tokenKey(id string) (ed25519.PublicKey, error) {
	if key, _, err := parseToken(id); err == nil {
		return key.Public().(ed25519.PublicKey), nil
	}
	key, err := base64.RawURLEncoding.DecodeString(id)
	if err != nil || len(key) != ed25519.PublicKeySize {
		return nil, &InputError{"token ID", "is neither the ID of a token, as they are listed, nor a token"}
	}
	return key, nil
}

func (g *group) revokeToken(ctx context.Context, r *clusterpb.RevokeTokenRequest) (*clusterpb.Response, error) {
	err := g.journal.RevokeToken(ctx, r.Key)
	switch {
	case errors.Is(err, journal.ErrRevokeProtocol):
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	case err != nil:
		return nil, refusalOfToken(err)
	}
	g.config.Logger.Info("join token revoked", "token", base64.RawURLEncoding.EncodeToString(r.Key))
	return &clusterpb.Response{Result: &clusterpb.Response_RevokeToken{RevokeToken: new(clusterpb.RevokeTokenResult)}}, nil
}

// IssueJoinToken makes a token with which one node may join; see
// [Client.IssueJoinToken].
func (n *Node) IssueJoinToken(ctx context.Context, lifetime time.Duration) (token string, expires time.Time, err error) {
	return n.Client().IssueJoinToken(ctx, lifetime)
}

func checkIssue(r *clusterpb.IssueTokenRequest) error {
	switch lifetime := time.Duration(r.GetLifetime()); {
	case lifetime < tokenLifetimeMin || lifetime > tokenLifetimeMax:
		return &InputError{"lifetime", fmt.Sprintf("is %v: %v to %v are allowed", lifetime, tokenLifetimeMin, tokenLifetimeMax)}
	case len(r.GetKey()) != ed25519.PublicKeySize:
		return &InputError{"token key", fmt.Sprintf("has %d bytes, not %d", len(r.GetKey()), ed25519.PublicKeySize)}
	}
	return nil
}

func (g *group) issueToken(ctx context.Context, r *clusterpb.IssueTokenRequest) (*clusterpb.Response, error) {
	expires, err := g.journal.IssueToken(ctx, r.Key, time.Duration(r.Lifetime))
	if err != nil {
		return nil, refusalOfToken(err)
	}
	g.config.Logger.Info("join token issued", "expires", expires)
	return &clusterpb.Response{Result: &clusterpb.Response_IssueToken{IssueToken: &clusterpb.IssueTokenResult{
		ExpiresAt: expires.UnixNano(), Cluster: g.config.ClusterID,
	}}}, nil
}

// useToken uses up the token that a node shows, or tells why the node may not join.
func (g *group) useToken(ctx context.Context, r *clusterpb.EnrolRequest) error {
	switch {
	case len(r.TokenKey) == 0 && !g.config.RequireJoinToken:
		return nil
	case len(r.TokenKey) == 0:
		return ErrTokenRequired
	case len(r.TokenKey) != ed25519.PublicKeySize || !ed25519.Verify(r.TokenKey, tokenMessage(g.config.ClusterID, r), r.TokenSignature):
		return ErrTokenInvalid
	}
	return refusalOfToken(g.journal.UseToken(ctx, r.TokenKey, r.Node))
}

// refusalOfToken names the journal's refusals as this package does.
func refusalOfToken(err error) error {
	for refusal, name := range map[error]error{
		journal.ErrTokenUnknown: ErrTokenInvalid, journal.ErrTokenExpired: ErrTokenExpired,
		journal.ErrTokenUsed: ErrTokenUsed, journal.ErrTokens: ErrTokens,
	} {
		if errors.Is(err, refusal) {
			return name
		}
	}
	return err
}

// signEnrol shows that this node holds its token.
func (c Config) signEnrol(r *clusterpb.EnrolRequest) {
	key, _, err := parseToken(c.JoinToken)
	if err != nil {
		return // validate has seen to it
	}
	r.TokenKey = key.Public().(ed25519.PublicKey)
	r.TokenSignature = ed25519.Sign(key, tokenMessage(c.ClusterID, r))
}

// tokenMessage is what is signed: who wants to join what, from where.
func tokenMessage(cluster string, r *clusterpb.EnrolRequest) []byte {
	message := []byte("tenuto join 1")
	for _, part := range []string{cluster, r.Node, r.Address} {
		message = binary.AppendUvarint(message, uint64(len(part)))
		message = append(message, part...)
	}
	return message
}

func formatToken(key ed25519.PrivateKey, cluster string) string {
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(append(key.Seed(), cluster...))
}

func parseToken(token string) (key ed25519.PrivateKey, cluster string, err error) {
	encoded, is := strings.CutPrefix(token, tokenPrefix)
	decoded, err := base64.RawURLEncoding.DecodeString(encoded)
	if !is || err != nil || len(decoded) <= ed25519.SeedSize {
		return nil, "", errors.New("is no token, or only a part of one")
	}
	return ed25519.NewKeyFromSeed(decoded[:ed25519.SeedSize]), string(decoded[ed25519.SeedSize:]), nil
}

// validateToken says what is wrong with a token without telling it.
func (c Config) validateToken() error {
	_, cluster, err := parseToken(c.JoinToken)
	switch {
	case err != nil:
		return &ConfigError{"JoinToken", err.Error()}
	case cluster != c.ClusterID:
		return &ConfigError{"JoinToken", fmt.Sprintf("is of cluster %.100q, not of %q", cluster, c.ClusterID)}
	}
	return nil
}
