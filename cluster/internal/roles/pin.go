package roles

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// The names of roles.
const (
	Voter   = "voter"
	Standby = "standby"
)

// PinName returns the role that a pin sets, "" for none.
func PinName(pin journalpb.MemberRole_Pin) string {
	switch pin {
	case journalpb.MemberRole_PIN_VOTER:
		return Voter
	case journalpb.MemberRole_PIN_STANDBY:
		return Standby
	}
	return ""
}

// NameOf returns the role of a member, "" if it is unknown.
func NameOf(m *clusterpb.Member) string {
	switch {
	case !m.GetRoleKnown():
		return ""
	case m.Standby:
		return Standby
	}
	return Voter
}

// Show sets what is decided about a member.
func (k *Keeper) Show(m *clusterpb.Member) {
	recorded, version := k.Latest()
	role := Find(recorded, m.Node)
	m.RoleKnown, m.Zone, m.Pin = true, role.GetZone(), role.GetPin()
	switch {
	case version == 0:
		m.Standby = false
	case role == nil: // not recorded yet
		m.Standby = !m.Voter
	default:
		m.Standby = !role.Voter
	}
}

// Pin pins the role of a member, or lets the cluster decide again. It must be called on the leader
// of the first partition. changed is false if the role is already so.
//
// Errors: journal.ErrNotMember; journal.ErrLastVoter if no member could vote; *replay.InvalidError
// if more members would be pinned as voters than may vote; those of journal.Journal.ChangeRoles.
func (k *Keeper) Pin(ctx context.Context, r *clusterpb.SetRoleRequest, principal string) (changed bool, err error) {
	for {
		changed, err = k.tryPin(ctx, r, principal)
		if !errors.Is(err, journal.ErrRolesVersion) { // otherwise other roles were recorded meanwhile
			return changed, err
		}
	}
}

func (k *Keeper) tryPin(ctx context.Context, r *clusterpb.SetRoleRequest, principal string) (changed bool, err error) {
	j := k.Journal()
	recorded, version, err := k.records.Latest()
	if err != nil {
		return false, err
	}
	var present []*seen
	for _, m := range j.Members() {
		p := &seen{node: m.Node, hasVote: m.Voter}
		p.zone, p.zoneKnown = k.Zone(m.Node)
		present = append(present, p)
	}
	next := update(recorded, present, j.Now())
	role := Find(next, r.Node)
	switch {
	case role == nil:
		return false, fmt.Errorf("%w: %q", journal.ErrNotMember, r.Node)
	case role.Pin == r.Pin:
		return false, nil
	}
	role.Pin, role.Principal, role.Reason, role.PinnedAt = r.Pin, principal, r.Reason, j.Now().UnixNano()
	if err := checkPins(next, k.Rules().Voters); err != nil {
		return false, err
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(next)
	if err != nil {
		return false, err
	}
	return true, j.ChangeRoles(ctx, version+1, encoded)
}

// checkPins returns an error for pins that cannot be followed.
func checkPins(roles *journalpb.Roles, voters int) error {
	pinned := 0
	for _, m := range roles.Members {
		if m.Pin == journalpb.MemberRole_PIN_VOTER {
			pinned++
		}
	}
	mayVote := func(m *journalpb.MemberRole) bool { return m.Pin != journalpb.MemberRole_PIN_STANDBY }
	switch {
	case pinned > voters:
		return &replay.InvalidError{Field: "role", Reason: fmt.Sprintf("would be set to %s for %d members: Settings.Voters is %d", Voter, pinned, voters)}
	case !slices.ContainsFunc(roles.Members, mayVote):
		return fmt.Errorf("%w: every other member is set to %s", journal.ErrLastVoter, Standby)
	}
	return nil
}
