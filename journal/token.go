package journal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Refusals of tokens. Nothing was changed.
var (
	ErrTokenUnknown = state.ErrTokenUnknown
	ErrTokenExpired = state.ErrTokenExpired
	ErrTokenUsed    = state.ErrTokenUsed
	ErrTokens       = state.ErrTokens
	// ErrRevokeProtocol: a member does not speak the protocol since which tokens can be revoked.
	ErrRevokeProtocol = errors.New("a token can be revoked when every member speaks protocol 3")
)

// IssueToken records, on the leader, a token by its public key, with which one node
// may join while it is good, by the cluster time. It returns when that will be
// over. Repeating it changes nothing.
//
// Errors: ErrTokens, ErrNotLeader, ErrUnknownOutcome, ErrBusy, ErrClosed, or ctx's,
// after which it may be recorded or not.
func (j *Journal) IssueToken(ctx context.Context, key []byte, good time.Duration) (expires clustertime.Time, err error) {
	token := &journalpb.JoinToken{Key: key, ExpiresAt: j.Now().Add(good).UnixNano()}
	if err := j.changeGroup(ctx, &journalpb.GroupChange{Issued: token}); err != nil {
		return clustertime.Time{}, fmt.Errorf("issue token: %w", err)
	}
	return j.machine.TokenExpiry(key), nil
}

// revokeProtocol is the protocol since which tokens can be revoked.
const revokeProtocol = 3

// RevokeToken records, on the leader, that a token is forgotten: nobody can join with it,
// and it counts no more. It needs protocol 3.
//
// Errors: ErrTokenUnknown, ErrRevokeProtocol, and those of IssueToken but ErrTokens.
func (j *Journal) RevokeToken(ctx context.Context, key []byte) error {
	if j.Protocol() < revokeProtocol {
		return fmt.Errorf("revoke token: %w", ErrRevokeProtocol)
	}
	if err := j.changeGroup(ctx, &journalpb.GroupChange{Revoked: key}); err != nil {
		return fmt.Errorf("revoke token: %w", err)
	}
	return nil
}

// Tokens returns the tokens that are known, as far as this node has applied the journal, in
// the order of their public keys.
func (j *Journal) Tokens() []*journalpb.JoinToken { return j.machine.Tokens() }

// UseToken records, on the leader, that a node uses a token. Repeating it for the
// same node changes nothing.
//
// Errors: ErrTokenUnknown, ErrTokenExpired, ErrTokenUsed, and those of IssueToken
// but ErrTokens.
func (j *Journal) UseToken(ctx context.Context, key []byte, node string) error {
	token := &journalpb.JoinToken{Key: key, Node: node}
	if err := j.changeGroup(ctx, &journalpb.GroupChange{Used: token}); err != nil {
		return fmt.Errorf("use token: %w", err)
	}
	return nil
}
