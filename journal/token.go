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
	ErrTokenUnknown  = state.ErrTokenUnknown
	ErrTokenExpired  = state.ErrTokenExpired
	ErrTokenUsed     = state.ErrTokenUsed
	ErrTooManyTokens = state.ErrTooManyTokens
	// ErrRevokeProtocol: a member does not speak the protocol that introduced revoking tokens.
	ErrRevokeProtocol = errors.New("revoking a token requires protocol 3 on every member")
)

// IssueToken records a token by its public key. It must be called on the leader. One node may join
// with the token until it expires, by the cluster time. IssueToken returns the time at which it
// expires. Repeating the call changes nothing.
//
// Errors: ErrTooManyTokens, ErrNotLeader, ErrUnknownOutcome, ErrBusy, ErrClosed, or ctx's, after
// which it may be recorded or not.
func (j *Journal) IssueToken(ctx context.Context, key []byte, valid time.Duration) (expires clustertime.Time, err error) {
	token := &journalpb.JoinToken{Key: key, ExpiresAt: j.Now().Add(valid).UnixNano()}
	if err := j.changeMetadata(ctx, &journalpb.MetadataChange{Issued: token}); err != nil {
		return clustertime.Time{}, fmt.Errorf("issue token: %w", err)
	}
	return j.machine.TokenExpiry(key), nil
}

// revokeProtocol is the protocol that introduced revoking tokens.
const revokeProtocol = 3

// RevokeToken deletes a token: no node can join with it, and it no longer counts toward the limit.
// It must be called on the leader, and needs protocol 3.
//
// Errors: ErrTokenUnknown, ErrRevokeProtocol, and those of IssueToken except ErrTooManyTokens.
func (j *Journal) RevokeToken(ctx context.Context, key []byte) error {
	if j.Protocol() < revokeProtocol {
		return fmt.Errorf("revoke token: %w", ErrRevokeProtocol)
	}
	if err := j.changeMetadata(ctx, &journalpb.MetadataChange{Revoked: key}); err != nil {
		return fmt.Errorf("revoke token: %w", err)
	}
	return nil
}

// Tokens returns the tokens that this node knows from the entries it has applied, sorted by public
// key.
func (j *Journal) Tokens() []*journalpb.JoinToken { return j.machine.Tokens() }

// UseToken records that a node uses a token. It must be called on the leader. Repeating it for the
// same node changes nothing.
//
// Errors: ErrTokenUnknown, ErrTokenExpired, ErrTokenUsed, and those of IssueToken except
// ErrTooManyTokens.
func (j *Journal) UseToken(ctx context.Context, key []byte, node string) error {
	token := &journalpb.JoinToken{Key: key, Node: node}
	if err := j.changeMetadata(ctx, &journalpb.MetadataChange{Used: token}); err != nil {
		return fmt.Errorf("use token: %w", err)
	}
	return nil
}
