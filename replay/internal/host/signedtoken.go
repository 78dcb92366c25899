package host

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"math"
	"strings"
	"time"
)

// TokenSignerKey is the key of the [TokenSigner] in the context of an activity's body.
type TokenSignerKey struct{}

// A TokenSigner signs the tokens of attempts.
type TokenSigner interface {
	// SignToken returns a signed token that expires after lifetime. It may wait for the key of the
	// cluster until ctx ends.
	SignToken(ctx context.Context, t Token, lifetime time.Duration) (string, error)
	// CompletionURL returns the URL at which the application serves completions, without a slash at
	// its end; "" if it serves none.
	CompletionURL() string
}

// Bounds of the lifetime of a signed token.
const (
	SignedTokenLifetimeMin = time.Second
	SignedTokenLifetimeMax = 30 * 24 * time.Hour
)

// SignedTokenPrefix begins every signed token, and no other text that is a token.
const SignedTokenPrefix = "t3."

// SignedTokenMax bounds the text of a signed token, in bytes.
const SignedTokenMax = 400

// signedDomain separates these signatures from others that may be made with the same key.
const signedDomain = "tenuto completion 1"

// A CompletionKey signs the tokens of one cluster. It is secret and must not be logged.
type CompletionKey struct {
	Cluster string
	Secret  []byte
}

// String hides the key.
func (CompletionKey) String() string { return "(secret)" }

// GoString hides the key.
func (CompletionKey) GoString() string { return "(secret)" }

// signature returns the signature of the encoded fields of a token. It covers the ID of the
// cluster, which the token itself does not contain.
func (k CompletionKey) signature(fields []byte) []byte {
	mac := hmac.New(sha256.New, k.Secret)
	mac.Write(binary.AppendUvarint([]byte(signedDomain), uint64(len(k.Cluster))))
	mac.Write([]byte(k.Cluster))
	mac.Write(fields)
	return mac.Sum(nil)
}

// Sign returns a token with its signature, as text of at most [SignedTokenMax] bytes of
// A-Z a-z 0-9 . _ -. expires is the cluster time from which the token is no longer valid, after
// 1970.
func (k CompletionKey) Sign(t Token, expires time.Time) string {
	var fields []byte
	for _, field := range []uint64{uint64(expires.UnixNano()), t.Incarnation, t.Execution, t.EventID, uint64(t.Number)} {
		fields = binary.AppendUvarint(fields, field)
	}
	fields = append(fields, t.Instance...)
	return SignedTokenPrefix + base64.RawURLEncoding.EncodeToString(append(fields, k.signature(fields)...))
}

// Verify returns what a signed token contains. ok is false unless the token was signed with this
// key for this cluster, and has not been changed in any bit since. The caller compares the time.
func (k CompletionKey) Verify(text string) (t Token, expires time.Time, ok bool) {
	fields, signature, ok := splitSigned(text)
	if !ok || !hmac.Equal(signature, k.signature(fields)) {
		return Token{}, time.Time{}, false
	}
	return parseSignedFields(fields)
}

// UnverifiedInstance returns the instance that a signed token names, for routing only: anyone can
// have written it.
func UnverifiedInstance(text string) (instance string, ok bool) {
	fields, _, ok := splitSigned(text)
	if !ok {
		return "", false
	}
	t, _, ok := parseSignedFields(fields)
	return t.Instance, ok
}

// splitSigned decodes the text of a signed token. Only one text decodes to the same bytes.
func splitSigned(text string) (fields, signature []byte, ok bool) {
	encoded, found := strings.CutPrefix(text, SignedTokenPrefix)
	if !found || len(text) > SignedTokenMax {
		return nil, nil, false
	}
	decoded, err := base64.RawURLEncoding.DecodeString(encoded)
	// The decoder ignores line breaks and the last bits of the last character.
	if err != nil || len(decoded) <= sha256.Size || base64.RawURLEncoding.EncodeToString(decoded) != encoded {
		return nil, nil, false
	}
	end := len(decoded) - sha256.Size
	return decoded[:end], decoded[end:], true
}

// parseSignedFields parses the fields of a signed token.
func parseSignedFields(fields []byte) (t Token, expires time.Time, ok bool) {
	var at, number uint64
	for _, field := range []*uint64{&at, &t.Incarnation, &t.Execution, &t.EventID, &number} {
		value, size := binary.Uvarint(fields)
		if size <= 0 {
			return Token{}, time.Time{}, false
		}
		*field, fields = value, fields[size:]
	}
	if at > math.MaxInt64 || t.Execution == 0 || t.EventID == 0 || number == 0 || number > math.MaxInt32 || len(fields) == 0 {
		return Token{}, time.Time{}, false
	}
	t.Number, t.Instance = int(number), string(fields)
	return t, time.Unix(0, int64(at)), true
}
