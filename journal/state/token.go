package state

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Refusals of tokens. Nothing was changed.
var (
	// ErrTokenUnknown: no such token was issued, or it has expired long ago.
	ErrTokenUnknown = errors.New("the token is not known")
	// ErrTokenExpired: the token is too old.
	ErrTokenExpired = errors.New("the token has expired")
	// ErrTokenUsed: another node has used the token.
	ErrTokenUsed = errors.New("the token was used by another node")
	// ErrTokens: too many tokens are known.
	ErrTokens = errors.New("too many tokens are known: 256 are kept, each until it is revoked, or a day after it has expired")
)

const (
	tokensMax = 256
	// tokenKept is how long a token is known after it has expired.
	tokenKept = 24 * time.Hour
)

// joinToken is a token with which a node may join, or has joined.
type joinToken struct {
	key     string
	expires clustertime.Time
	node    string // that has used it; empty if none has
}

func tokenOf(message *journalpb.JoinToken) joinToken {
	return joinToken{string(message.GetKey()), clustertime.FromUnix(message.GetExpiresAt()), message.GetNode()}
}

// encode returns the encoded message.
func (t joinToken) encode() []byte {
	b := protowire.AppendTag(nil, 1, protowire.BytesType)
	b = protowire.AppendString(b, t.key)
	b = appendUint(b, 2, uint64(t.expires.UnixNano()))
	if t.node != "" {
		b = protowire.AppendTag(b, 3, protowire.BytesType)
		b = protowire.AppendString(b, t.node)
	}
	return b
}

func findToken(tokens []joinToken, key string) (at int, known bool) {
	return slices.BinarySearchFunc(tokens, key, func(t joinToken, key string) int { return cmp.Compare(t.key, key) })
}

// issue returns the tokens with one more, and without those that have expired long
// ago. One that is known is left as it is.
func issue(tokens []joinToken, issued *journalpb.JoinToken, now clustertime.Time) ([]joinToken, error) {
	tokens = slices.DeleteFunc(slices.Clone(tokens), func(t joinToken) bool { return t.expires.Before(now.Add(-tokenKept)) })
	at, known := findToken(tokens, string(issued.GetKey()))
	switch {
	case known:
		return tokens, nil
	case len(tokens) == tokensMax:
		return nil, ErrTokens
	}
	return slices.Insert(tokens, at, joinToken{key: string(issued.GetKey()), expires: clustertime.FromUnix(issued.GetExpiresAt())}), nil
}

// use returns the tokens after a node has used one. A node may do so again: it may
// not have learned that it has.
func use(tokens []joinToken, used *journalpb.JoinToken, now clustertime.Time) ([]joinToken, error) {
	at, known := findToken(tokens, string(used.GetKey()))
	switch {
	case !known:
		return nil, ErrTokenUnknown
	case tokens[at].node != "" && tokens[at].node != used.GetNode():
		return nil, ErrTokenUsed
	case !tokens[at].expires.After(now):
		return nil, ErrTokenExpired
	}
	tokens = slices.Clone(tokens)
	tokens[at].node = used.GetNode()
	return tokens, nil
}

// revoke returns the tokens without one.
func revoke(tokens []joinToken, key []byte) ([]joinToken, error) {
	at, known := findToken(tokens, string(key))
	if !known {
		return nil, ErrTokenUnknown
	}
	return slices.Delete(slices.Clone(tokens), at, at+1), nil
}

// Tokens returns the tokens that are known, in the order of their keys.
func (m *Machine) Tokens() []*journalpb.JoinToken {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.group.message().Tokens
}

// TokenExpiry returns the cluster time at which a token is no good any more, the
// zero time if it is not known.
func (m *Machine) TokenExpiry(key []byte) clustertime.Time {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if at, known := findToken(m.group.tokens, string(key)); known {
		return m.group.tokens[at].expires
	}
	return clustertime.Time{}
}
