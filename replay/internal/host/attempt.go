package host

import (
	"encoding/base64"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// AttemptKey is the key of the *replay.Attempt in the context of an activity's body.
type AttemptKey struct{}

// HeartbeatKey is the key of the [Heartbeats] in that context.
type HeartbeatKey struct{}

// Heartbeats reports and reads the heartbeats of one call of an activity.
type Heartbeats interface {
	// Heartbeat reports progress. The error says why the details cannot be encoded.
	Heartbeat(details any) error
	// HeartbeatDetails stores the details that an earlier attempt reported in the variable that
	// into points to. It returns false if there are none or they cannot be decoded.
	HeartbeatDetails(into any) bool
}

// A Token names an attempt that is completed from outside.
type Token struct {
	Instance    string
	Incarnation uint64 // 0: none
	Execution   uint64
	EventID     uint64
	Number      int // of the attempt
}

// Prefixes of tokens, by version. Version 1 has no incarnation.
const (
	tokenVersion1 = "t1."
	tokenVersion2 = "t2."
)

// String returns the token as text of 1 to 300 bytes of A-Z a-z 0-9 . _ -.
func (t Token) String() string {
	version, text := tokenVersion1, fmt.Sprintf("%d/%d/%d/%s", t.Execution, t.EventID, t.Number, t.Instance)
	if t.Incarnation != 0 {
		version, text = tokenVersion2, fmt.Sprintf("%d/%s", t.Incarnation, text)
	}
	return version + base64.RawURLEncoding.EncodeToString([]byte(text))
}

// ParseToken parses the text of a token. ok is false if it is invalid.
func ParseToken(text string) (t Token, ok bool) {
	for _, version := range []string{tokenVersion1, tokenVersion2} {
		if encoded, found := strings.CutPrefix(text, version); found {
			if t, ok := parseToken(encoded, version == tokenVersion2); ok {
				return t, true
			}
		}
	}
	return Token{}, false
}

// parseToken parses a token after its version prefix.
func parseToken(encoded string, hasIncarnation bool) (t Token, ok bool) {
	text, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return Token{}, false
	}
	var number uint64
	fields := []*uint64{&t.Execution, &t.EventID, &number}
	if hasIncarnation {
		fields = append([]*uint64{&t.Incarnation}, fields...)
	}
	rest := string(text)
	for _, field := range fields {
		digits, tail, _ := strings.Cut(rest, "/")
		if *field, err = strconv.ParseUint(digits, 10, 64); err != nil || *field == 0 {
			return Token{}, false
		}
		rest = tail
	}
	if rest == "" || !utf8.ValidString(rest) || number > math.MaxInt32 {
		return Token{}, false
	}
	t.Number, t.Instance = int(number), rest
	return t, true
}

// incarnationStartBits is the number of bits of an incarnation that count the starts of an epoch.
const incarnationStartBits = 40

// OperationKey returns "instance/incarnation/execution/event_id" for the call of the attempt, like
// Key of journalpb.OperationRef. It omits the incarnation if there is none.
func (t Token) OperationKey() string {
	if t.Incarnation == 0 {
		return fmt.Sprintf("%s/%d/%d", t.Instance, t.Execution, t.EventID)
	}
	epoch, start := t.Incarnation>>incarnationStartBits, t.Incarnation&(1<<incarnationStartBits-1)
	return fmt.Sprintf("%s/%d-%d/%d/%d", t.Instance, epoch, start, t.Execution, t.EventID)
}
