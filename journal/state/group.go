package state

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// NewestProtocol is the newest protocol whose records a machine knows. Records of a newer
// one than the cluster has come to are refused.
const NewestProtocol = 3

// group is what is kept of the group of nodes itself, beside the instances. It
// is replaced and never changed, so that a view of it is a copy.
type group struct {
	clock    clustertime.Time // the latest that is recorded
	removed  []string         // the nodes that must not come back, sorted
	tokens   []joinToken      // with which nodes may join, or have joined, sorted by key
	protocol uint32           // to which the cluster has come; 0 means 1
}

// groupChange is a decoded GroupChange, or the clock of an Epoch.
type groupChange struct {
	epoch        uint64
	clock        clustertime.Time
	removed      string
	issued, used *journalpb.JoinToken
	protocol     uint32
	started      string // the instance of a chained start that was made elsewhere
	revoked      []byte // the public key of a token
}

func (c *groupChange) parse(b []byte) bool {
	var message journalpb.GroupChange
	if proto.Unmarshal(b, &message) != nil {
		return false
	}
	*c = groupChange{message.Epoch, clustertime.FromUnix(message.Clock), message.Removed, message.Issued, message.Used, message.Protocol, message.Started, message.Revoked}
	return true
}

// parseEpoch reads what an Epoch says of the group.
func (c *groupChange) parseEpoch(b []byte) bool {
	*c = groupChange{}
	return each(b, func(number protowire.Number, wire protowire.Type, value []byte) {
		if number == 2 && wire == protowire.VarintType {
			clock, _ := protowire.ConsumeVarint(value)
			c.clock = clustertime.FromUnix(int64(clock))
		}
	})
}

func (m *Machine) changeGroup(c *groupChange) error {
	if c.epoch != m.epoch {
		return &StaleEpochError{Epoch: c.epoch, Current: m.epoch}
	}
	next, err := m.group.with(c)
	if err != nil {
		return err
	}
	m.group = next
	if c.started != "" {
		m.dropChained(c.started)
	}
	return nil
}

// with returns the group after a change, or why that is refused.
func (g group) with(c *groupChange) (group, error) {
	if c.clock.After(g.clock) {
		g.clock = c.clock
	}
	g.protocol = max(g.protocol, c.protocol)
	if at, known := slices.BinarySearch(g.removed, c.removed); c.removed != "" && !known {
		g.removed = slices.Insert(slices.Clone(g.removed), at, c.removed)
	}
	var err error
	if c.issued != nil {
		g.tokens, err = issue(g.tokens, c.issued, g.clock)
	}
	if c.used != nil && err == nil {
		g.tokens, err = use(g.tokens, c.used, g.clock)
	}
	if len(c.revoked) > 0 && err == nil {
		g.tokens, err = revoke(g.tokens, c.revoked)
	}
	return g, err
}

func (g group) message() *journalpb.Group {
	message := &journalpb.Group{Clock: g.clock.UnixNano(), Removed: g.removed, Protocol: g.protocol}
	for _, t := range g.tokens {
		message.Tokens = append(message.Tokens, &journalpb.JoinToken{Key: []byte(t.key), ExpiresAt: t.expires.UnixNano(), Node: t.node})
	}
	return message
}

func groupOf(message *journalpb.Group) group {
	g := group{clock: clustertime.FromUnix(message.GetClock()), removed: message.GetRemoved(), protocol: message.GetProtocol()}
	for _, t := range message.GetTokens() {
		g.tokens = append(g.tokens, tokenOf(t))
	}
	return g
}

// encode returns the encoded message.
func (g group) encode() []byte {
	b := []byte(nil)
	if !g.clock.IsZero() {
		b = appendUint(b, 1, uint64(g.clock.UnixNano()))
	}
	for _, node := range g.removed {
		b = protowire.AppendTag(b, 2, protowire.BytesType)
		b = protowire.AppendString(b, node)
	}
	for _, t := range g.tokens {
		b = protowire.AppendTag(b, 3, protowire.BytesType)
		b = protowire.AppendBytes(b, t.encode())
	}
	if g.protocol != 0 {
		b = appendUint(b, 4, uint64(g.protocol))
	}
	return b
}

func parseGroup(b []byte) (group, error) {
	var message journalpb.Group
	if err := proto.Unmarshal(b, &message); err != nil {
		return group{}, fmt.Errorf("decode group: %w", ErrCorrupt)
	}
	return groupOf(&message), nil
}

// Clock returns the latest cluster time that was recorded, the zero time
// before the first. It never decreases.
func (m *Machine) Clock() clustertime.Time {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.group.clock
}

// Removed returns the nodes that were removed from the group, in order of their
// names. The slice is shared and must not be changed.
func (m *Machine) Removed() []string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.group.removed
}

// Protocol returns the protocol to which the cluster has come, 1 or more. It never
// decreases.
func (m *Machine) Protocol() uint32 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return max(m.group.protocol, 1)
}
