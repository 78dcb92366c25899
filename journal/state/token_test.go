package state

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// changed applies a change of the group, at a time.
func changed(t *testing.T, m *Machine, at time.Duration, c *journalpb.GroupChange) error {
	t.Helper()
	c.Epoch, c.Clock = m.Epoch(), int64(at)
	record, err := proto.Marshal(&journalpb.Record{Command: &journalpb.Record_GroupChange{GroupChange: c}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Apply(record)
	return err
}

func issuing(key string, expires time.Duration) *journalpb.GroupChange {
	return &journalpb.GroupChange{Issued: &journalpb.JoinToken{Key: []byte(key), ExpiresAt: int64(expires)}}
}

func using(key, node string) *journalpb.GroupChange {
	return &journalpb.GroupChange{Used: &journalpb.JoinToken{Key: []byte(key), Node: node}}
}

func TestATokenIsGoodOnce(t *testing.T) {
	m := New()
	for i, step := range []struct {
		at     time.Duration
		change *journalpb.GroupChange
		want   error
	}{
		{1, issuing("a", time.Hour), nil},
		{2, issuing("b", time.Hour), nil},
		{3, using("c", "n1"), ErrTokenUnknown},
		{4, using("a", "n1"), nil},
		{5, using("a", "n1"), nil},
		{6, using("a", "n2"), ErrTokenUsed},
		{7, issuing("a", 2*time.Hour), nil}, // changes nothing
		{8, using("a", "n2"), ErrTokenUsed},
		{time.Hour - 1, using("b", "n2"), nil},
		{time.Hour, using("b", "n2"), ErrTokenExpired},
		{25*time.Hour + 1, issuing("d", 26*time.Hour), nil},
		{25*time.Hour + 1, using("b", "n2"), ErrTokenUnknown},
	} {
		before := m.Clock()
		if err := changed(t, m, step.at, step.change); !errors.Is(err, step.want) {
			t.Errorf("step %d: %v, want %v", i, err, step.want)
		}
		if step.want != nil && m.Clock() != before {
			t.Errorf("step %d was refused, and has moved the clock", i)
		}
	}
}

func TestTokensAreBounded(t *testing.T) {
	m := New()
	for i := range tokensMax {
		if err := changed(t, m, 1, issuing(fmt.Sprint(i), time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	if err := changed(t, m, 2, issuing("one more", time.Hour)); !errors.Is(err, ErrTokens) {
		t.Errorf("one more: %v", err)
	}
	if err := changed(t, m, 26*time.Hour, issuing("one more", 27*time.Hour)); err != nil {
		t.Errorf("a day after the others have expired: %v", err)
	}
}

// What is kept of the group comes back as it was, from bytes and from messages.
func TestTheGroupIsKeptWhole(t *testing.T) {
	m := New()
	for _, c := range []*journalpb.GroupChange{
		{Removed: "n9"}, issuing("b", time.Hour), issuing("a", time.Hour), using("a", "n1"), {Protocol: 3},
	} {
		if err := changed(t, m, 5, c); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := parseGroup(m.group.encode())
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]group{"bytes": parsed, "message": groupOf(m.group.message())} {
		if got.clock != clustertime.FromUnix(5) || got.protocol != 3 || !slices.Equal(got.removed, m.group.removed) || !slices.Equal(got.tokens, m.group.tokens) {
			t.Errorf("%s: %+v, want %+v", name, got, m.group)
		}
	}
	if tokens := m.group.tokens; len(tokens) != 2 || tokens[0].node != "n1" || tokens[1].node != "" {
		t.Errorf("tokens: %+v", tokens)
	}
	if err := changed(t, m, 6, &journalpb.GroupChange{Protocol: 2}); err != nil || m.Protocol() != 3 {
		t.Errorf("the protocol is %d, %v", m.Protocol(), err)
	}
}
