package journal

import (
	"context"
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
