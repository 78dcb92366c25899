package roles

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Records reads the recorded roles, and decodes each version once. The zero value with Read is
// ready for use by several goroutines.
type Records struct {
	// Read returns the encoded roles that this node's replica shows, and their version.
	Read func() (encoded []byte, version uint64)

	mu      sync.Mutex
	version uint64
	decoded *journalpb.Roles
}

// Latest returns the roles that this node's replica shows, and their version; 0 if none are
// recorded. The message is shared and must not be changed.
func (r *Records) Latest() (*journalpb.Roles, uint64, error) {
	encoded, version := r.Read()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.decoded == nil || r.version != version {
		decoded := new(journalpb.Roles)
		if err := proto.Unmarshal(encoded, decoded); err != nil {
			return nil, 0, fmt.Errorf("decode the roles of members: %w", err)
		}
		r.version, r.decoded = version, decoded
	}
	return r.decoded, version, nil
}

// Find returns the role of a member, nil if none is recorded.
func Find(roles *journalpb.Roles, node string) *journalpb.MemberRole {
	at, found := slices.BinarySearchFunc(roles.GetMembers(), node, func(m *journalpb.MemberRole, node string) int {
		return cmp.Compare(m.Node, node)
	})
	if !found {
		return nil
	}
	return roles.Members[at]
}

// Voters returns the members that are to vote.
func Voters(roles *journalpb.Roles) (nodes []string) {
	for _, m := range roles.GetMembers() {
		if m.Voter {
			nodes = append(nodes, m.Node)
		}
	}
	return nodes
}

// update returns the roles of exactly the present members. A new one is a voter if it has a vote.
func update(recorded *journalpb.Roles, present []*seen, now clustertime.Time) *journalpb.Roles {
	next := &journalpb.Roles{ChangedAt: recorded.GetChangedAt()}
	for _, p := range present {
		role := proto.CloneOf(Find(recorded, p.node))
		if role == nil {
			role = &journalpb.MemberRole{Node: p.node, Voter: p.hasVote}
		}
		if p.zoneKnown {
			role.Zone = p.zone
		}
		switch {
		case !role.Voter || p.answers:
			role.GoneSince = 0
		case p.silent > 0 && role.GoneSince == 0:
			role.GoneSince = now.Add(-p.silent).UnixNano()
		}
		next.Members = append(next.Members, role)
	}
	return next
}

// isNeeded reports whether roles must be recorded: otherwise every member votes.
func isNeeded(roles *journalpb.Roles, voters int) bool {
	return len(roles.Members) > voters || slices.ContainsFunc(roles.Members, func(m *journalpb.MemberRole) bool {
		return m.Zone != "" || m.Pin != journalpb.MemberRole_PIN_NONE
	})
}
