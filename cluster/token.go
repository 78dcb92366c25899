package cluster

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Errors of join tokens, ErrTokenExpired also of signed tokens. A call that returns one of them has
// changed nothing.
var (
	// ErrTokenRequired: the cluster adds nodes only with a token.
	ErrTokenRequired = errors.New("tenuto: this cluster adds nodes only with a token: set Config.JoinToken")
	// ErrTokenInvalid: the cluster has no record of the token, or the node's request is not signed
	// with it. The cluster deletes the record when the token is revoked, or a day after it has
	// expired.
	ErrTokenInvalid = errors.New("tenuto: the token is unknown to this cluster")
	// ErrTokenExpired: the join token, or the signed token of an attempt, has expired by cluster
	// time.
	ErrTokenExpired = engine.ErrTokenExpired
	// ErrTokenUsed: another node has used the token.
	ErrTokenUsed = errors.New("tenuto: the token was used by another node")
	// ErrTooManyTokens: the cluster already has records of 256 tokens. It keeps each until the
	// token is revoked, or until a day after it has expired; see [Client.RevokeJoinToken].
	ErrTooManyTokens = errors.New("tenuto: too many join tokens")
)

// Bounds of the lifetime of tokens, and the default.
const (
	tokenLifetimeMin     = time.Second
	tokenLifetimeMax     = 30 * 24 * time.Hour
	tokenLifetimeDefault = time.Hour
)

// A token is tokenPrefix and, in base64, a private key and the name of the cluster. The cluster
// stores only the public key. A joining node signs its request, so another node cannot use a copy
// of that request.
const tokenPrefix = "tenuto-join-"

// IssueJoinToken returns a token with which one node may join ([Config.JoinToken]), and the cluster
// time at which it expires. lifetime is 1 s to 30 days; 0 means 1 hour. Any node that has the token
// can use it, so treat it like a password. The cluster does not store the token and cannot show it
// again.
//
// Errors: [ErrTooManyTokens], [ErrNotAuthorized], [*replay.InvalidError], [*UnavailableError].
func (c *Client) IssueJoinToken(ctx context.Context, lifetime time.Duration) (token string, expires time.Time, err error) {
	if lifetime == 0 {
		lifetime = tokenLifetimeDefault
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("issue join token: %w", err)
	}
	issue := &clusterpb.IssueTokenRequest{Key: public, Lifetime: int64(lifetime)}
	if err := checkIssueToken(issue); err != nil {
		return "", time.Time{}, fmt.Errorf("issue join token: %w", err)
	}
	response, err := c.call(ctx, &clusterpb.Request{Call: &clusterpb.Request_IssueToken{IssueToken: issue}})
	if err != nil {
		return "", time.Time{}, fmt.Errorf("issue join token: %w", err)
	}
	result := response.GetIssueToken()
	return formatToken(private, result.GetCluster()), time.Unix(0, result.GetExpiresAt()), nil
}

// A JoinToken is the record that the cluster keeps of a join token, without the token itself.
type JoinToken struct {
	// ID names the token and is not secret: its public key, in base64.
	ID      string
	Expires time.Time // in cluster time
	// UsedBy is the node that has joined with the token; "" if none has.
	UsedBy string
}

// JoinTokens returns the records of tokens, ordered by expiry. The cluster keeps each until the
// token is revoked, or until a day after it has expired.
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

// RevokeJoinToken invalidates a token, named by its ID or by the token itself. A node that has
// joined with it remains a member.
//
// Errors: [ErrTokenInvalid] if the cluster has no record of the token, [ErrProtocol] while a member
// does not speak protocol 3, [ErrNotAuthorized], [*replay.InvalidError], [*UnavailableError].
func (c *Client) RevokeJoinToken(ctx context.Context, id string) error {
	key, err := tokenKey(id)
	if err != nil {
		return fmt.Errorf("revoke join token: %w", err)
	}
	request := &clusterpb.Request{Call: &clusterpb.Request_RevokeToken{RevokeToken: &clusterpb.RevokeTokenRequest{Key: key}}}
	if _, err := c.call(ctx, request); err != nil {
		return fmt.Errorf("revoke join token: %w", err)
	}
	return nil
}

// tokenKey returns the public key of a token, given its ID or the token itself.
func tokenKey(id string) (ed25519.PublicKey, error) {
	if key, _, err := parseToken(id); err == nil {
		return key.Public().(ed25519.PublicKey), nil
	}
	key, err := base64.RawURLEncoding.DecodeString(id)
	if err != nil || len(key) != ed25519.PublicKeySize {
		return nil, invalidArgument("token ID", "is neither a listed token ID nor a token")
	}
	return key, nil
}

func (h *memberHandler) revokeToken(ctx context.Context, request *clusterpb.Request, r *clusterpb.RevokeTokenRequest) (*clusterpb.Response, error) {
	err := h.journal.RevokeToken(ctx, r.Key)
	revoked := &clusterpb.Response{Result: &clusterpb.Response_RevokeToken{RevokeToken: new(clusterpb.RevokeTokenResult)}}
	switch {
	case errors.Is(err, journal.ErrRevokeProtocol):
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	case errors.Is(err, journal.ErrTokenUnknown) && request.Retried:
		return revoked, nil // perhaps by the earlier attempt, whose outcome is unknown
	case err != nil:
		return nil, tokenError(err)
	}
	h.partition.node.config.Logger.Info("join token revoked", "token", base64.RawURLEncoding.EncodeToString(r.Key))
	return revoked, nil
}

// IssueJoinToken returns a token with which one node may join; see [Client.IssueJoinToken].
func (n *Node) IssueJoinToken(ctx context.Context, lifetime time.Duration) (token string, expires time.Time, err error) {
	return n.Client().IssueJoinToken(ctx, lifetime)
}

func checkIssueToken(r *clusterpb.IssueTokenRequest) error {
	if lifetime := time.Duration(r.GetLifetime()); lifetime < tokenLifetimeMin || lifetime > tokenLifetimeMax {
		return invalidArgument("lifetime", fmt.Sprintf("is %v: %v to %v are allowed", lifetime, tokenLifetimeMin, tokenLifetimeMax))
	}
	return checkTokenKey(r.GetKey())
}

func checkTokenKey(key []byte) error {
	if len(key) != ed25519.PublicKeySize {
		return invalidArgument("token key", fmt.Sprintf("has %d bytes, not %d", len(key), ed25519.PublicKeySize))
	}
	return nil
}

func (h *memberHandler) listTokens() *clusterpb.Response {
	result := &clusterpb.ListTokensResult{Tokens: h.journal.Tokens()}
	return &clusterpb.Response{Result: &clusterpb.Response_ListTokens{ListTokens: result}}
}

func (h *memberHandler) issueToken(ctx context.Context, r *clusterpb.IssueTokenRequest) (*clusterpb.Response, error) {
	expires, err := h.journal.IssueToken(ctx, r.Key, time.Duration(r.Lifetime))
	if err != nil {
		return nil, tokenError(err)
	}
	h.partition.node.config.Logger.Info("join token issued", "expires", expires)
	return &clusterpb.Response{Result: &clusterpb.Response_IssueToken{IssueToken: &clusterpb.IssueTokenResult{
		ExpiresAt: expires.UnixNano(), Cluster: h.partition.node.config.ClusterID,
	}}}, nil
}

// useToken uses up the join token that a node presents, or returns why the node must not join.
func (h *memberHandler) useToken(ctx context.Context, r *clusterpb.JoinRequest) error {
	h.partition.node.settings.apply() // the leader must not admit a node by older ones
	switch {
	case len(r.TokenKey) == 0 && !h.partition.node.settings.current.Load().RequireJoinToken:
		return nil
	case len(r.TokenKey) == 0:
		return ErrTokenRequired
	case len(r.TokenKey) != ed25519.PublicKeySize || !ed25519.Verify(r.TokenKey, tokenMessage(h.partition.node.config.ClusterID, r), r.TokenSignature):
		return ErrTokenInvalid
	}
	return tokenError(h.journal.UseToken(ctx, r.TokenKey, r.Node))
}

// tokenError maps the journal's errors to those of this package.
func tokenError(err error) error {
	for rejection, name := range map[error]error{
		journal.ErrTokenUnknown: ErrTokenInvalid, journal.ErrTokenExpired: ErrTokenExpired,
		journal.ErrTokenUsed: ErrTokenUsed, journal.ErrTooManyTokens: ErrTooManyTokens,
	} {
		if errors.Is(err, rejection) {
			return name
		}
	}
	return err
}

// signJoin proves that this node holds its token.
func (c Config) signJoin(r *clusterpb.JoinRequest) {
	key, _, err := parseToken(c.JoinToken)
	if err != nil {
		return // validate rejects such a token
	}
	r.TokenKey = key.Public().(ed25519.PublicKey)
	r.TokenSignature = ed25519.Sign(key, tokenMessage(c.ClusterID, r))
}

// tokenMessage returns the bytes that a joining node signs: the cluster, the node's ID and its
// address.
func tokenMessage(cluster string, r *clusterpb.JoinRequest) []byte {
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
		return nil, "", errors.New("is not a complete token")
	}
	return ed25519.NewKeyFromSeed(decoded[:ed25519.SeedSize]), string(decoded[ed25519.SeedSize:]), nil
}

// validateToken returns an error for an invalid token. Its text does not contain the token.
func (c Config) validateToken() error {
	_, cluster, err := parseToken(c.JoinToken)
	switch {
	case err != nil:
		return invalidConfig("JoinToken", err.Error())
	case cluster != c.ClusterID:
		return invalidConfig("JoinToken", fmt.Sprintf("is for cluster %.100q, not for %q", cluster, c.ClusterID))
	}
	return nil
}

// completionTokens signs the tokens of attempts and verifies them, with the completion key from
// this node's replica of the first partition.
type completionTokens struct{ node *Node }

// signer returns the signer and verifier of this node's tokens. It must not be used before the
// partitions are open.
func (c *completionTokens) signer() *engine.TokenSigner {
	return &engine.TokenSigner{
		Cluster: c.node.config.ClusterID,
		URL:     strings.TrimRight(c.node.config.CompletionURL, "/"),
		Key:     c.awaitKey,
		Now:     c.now,

		Lineages:     c.lineages,
		CheckEarlier: c.checkEarlier,
	}
}

// lineages returns the IDs of the lineages that the cluster continues, oldest first.
func (c *completionTokens) lineages() (ids []string) {
	for _, of := range c.node.partitions[0].journal.Lineages() {
		ids = append(ids, of.Id)
	}
	return ids
}

// checkEarlier returns an error for a token that an earlier lineage has signed, unless its activity
// was scheduled before the next lineage began. After that the earlier one may have scheduled
// another activity with the same event_id, whose result this is.
func (c *completionTokens) checkEarlier(a *replay.Attempt, lineage string) error {
	pa := c.node.partitionOf(a.Instance)
	all := pa.journal.Lineages()
	next := slices.IndexFunc(all, func(of *journalpb.Lineage) bool { return of.Id == lineage }) + 1
	if next == len(all) {
		return nil // this partition's replica has not shown the later lineage yet: its leader decides
	}
	event, err := pa.journal.Event(a.Instance, a.Execution, a.EventID)
	if err != nil || event.Timestamp >= all[next].Clock {
		return &replay.TokenError{Token: "…", Reason: "is for an activity that was scheduled after what this cluster was restored from"}
	}
	return nil
}

// verify returns the attempt that a signed token names. The error is [ErrTokenExpired],
// a [*replay.TokenError], or one of awaitKey.
func (c *completionTokens) verify(ctx context.Context, token string) (*replay.Attempt, error) {
	return c.signer().Verify(ctx, token)
}

// record records a new completion key if none is recorded and every member can read it. It returns
// false if the leader must call it again.
func (c *completionTokens) record(ctx context.Context, pa *partition) (done bool) {
	if pa.number > 0 || c.node.config.protocol < journal.CompletionKeyProtocol || len(pa.journal.CompletionKey()) > 0 {
		return true
	}
	if pa.journal.Protocol() < journal.CompletionKeyProtocol {
		return false
	}
	key := make([]byte, sha256.Size)
	_, err := rand.Read(key)
	if err == nil {
		err = pa.journal.RecordCompletionKey(ctx, key)
	}
	if err != nil && ctx.Err() == nil {
		c.node.config.Logger.Warn("completion key not recorded, so attempts get no signed tokens; trying again", "error", err)
	}
	return err == nil
}

// awaitKey returns the completion key. On a node that has just joined, it waits until the replica
// has the key. In a new cluster, it waits until the leader has recorded the key. While a member
// does not speak protocol 4, the error is [ErrProtocol].
func (c *completionTokens) awaitKey(ctx context.Context) ([]byte, error) {
	first := c.node.partitions[0]
	hasKey := func() bool { return len(first.journal.CompletionKey()) > 0 }
	if hasKey() {
		return first.journal.CompletionKey(), nil
	}
	if err := first.catchUp(ctx); err != nil {
		return nil, err
	}
	// A new cluster has no protocol yet; any other keeps its protocol until a member is replaced.
	limited, cancel := context.WithTimeout(ctx, settingsProtocolWait)
	defer cancel()
	_ = c.node.poll(limited, func() bool { return first.journal.Protocol() > 1 })
	if first.journal.Protocol() < journal.CompletionKeyProtocol {
		return nil, fmt.Errorf("%w: signed tokens need protocol %d on every member", ErrProtocol, journal.CompletionKeyProtocol)
	}
	if err := c.node.poll(ctx, hasKey); err != nil {
		return nil, err
	}
	return first.journal.CompletionKey(), nil
}

// now returns the cluster time of an instance's partition, by which its tokens expire.
func (c *completionTokens) now(ctx context.Context, instance string) (time.Time, error) {
	pa := c.node.partitionOf(instance)
	if err := c.node.poll(ctx, pa.journal.IsClockCurrent); err != nil {
		return time.Time{}, err
	}
	return time.Unix(0, pa.journal.Now().UnixNano()), nil
}
