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

// Errors of join tokens. Nothing was changed.
var (
	// ErrTokenUnknown means that no such token was issued, or that it was removed: when it
	// was revoked, or a day after it expired.
	ErrTokenUnknown = errors.New("the token is not known")
	// ErrTokenExpired means that the token has expired.
	ErrTokenExpired = errors.New("the token has expired")
	// ErrTokenUsed means that another node has used the token.
	ErrTokenUsed = errors.New("the token was used by another node")
	// ErrTooManyTokens means that the limit of 256 tokens is reached.
	ErrTooManyTokens = errors.New("256 join tokens exist already; a token is removed when it is revoked, or a day after it has expired")
)

const (
	tokensMax = 256
	// tokenRetention is how long an expired token is kept.
	tokenRetention = 24 * time.Hour
)

// joinToken is a token with which a node may join, or has joined.
type joinToken struct {
	key     string
	expires clustertime.Time
	node    string // that has used it; empty if none has
}

func tokenOf(message *journalpb.JoinToken) joinToken {
	return joinToken{string(message.GetKey()), clustertime.FromUnixNano(message.GetExpiresAt()), message.GetNode()}
}

// encode returns the encoded JoinToken.
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

// issueToken returns the tokens with one more, without those whose retention is over. A known token
// is left unchanged.
func issueToken(tokens []joinToken, issued *journalpb.JoinToken, now clustertime.Time) ([]joinToken, error) {
	tokens = slices.DeleteFunc(slices.Clone(tokens), func(t joinToken) bool { return t.expires.Before(now.Add(-tokenRetention)) })
	at, known := findToken(tokens, string(issued.GetKey()))
	switch {
	case known:
		return tokens, nil
	case len(tokens) == tokensMax:
		return nil, ErrTooManyTokens
	}
	return slices.Insert(tokens, at, joinToken{key: string(issued.GetKey()), expires: clustertime.FromUnixNano(issued.GetExpiresAt())}), nil
}

// useToken returns the tokens after a node has used one. The same node may use it again, as it may
// not have received the first answer.
func useToken(tokens []joinToken, used *journalpb.JoinToken, now clustertime.Time) ([]joinToken, error) {
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

// revokeToken returns the tokens without one.
func revokeToken(tokens []joinToken, key []byte) ([]joinToken, error) {
	at, known := findToken(tokens, string(key))
	if !known {
		return nil, ErrTokenUnknown
	}
	return slices.Delete(slices.Clone(tokens), at, at+1), nil
}

// Tokens returns the known tokens, in order of their keys.
func (re *reads) Tokens() []*journalpb.JoinToken {
	re.mu.RLock()
	defer re.mu.RUnlock()
	return re.metadata.message().Tokens
}

// TokenExpiry returns the cluster time at which a token expires, the zero time if it is not known.
func (re *reads) TokenExpiry(key []byte) clustertime.Time {
	re.mu.RLock()
	defer re.mu.RUnlock()
	if at, known := findToken(re.metadata.tokens, string(key)); known {
		return re.metadata.tokens[at].expires
	}
	return clustertime.Time{}
}
