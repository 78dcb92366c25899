package operate

import (
	"context"
	"fmt"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// The roles of members, for [SetRole]; see [cluster.Member].
const (
	RoleVoter   = "voter"   // holds a replica and votes
	RoleStandby = "standby" // holds a replica, and replaces a voter that is gone
	RoleAuto    = ""        // the cluster decides
)

// SetRole sets the role of a member until it is set again, or lets the cluster decide with
// [RoleAuto]. It returns when that is recorded. The cluster follows as soon as it can without
// losing redundancy: a member gets a vote when it has caught up and answered for 10 s, or for half
// of cluster.Settings.ReplaceVoterAfter if that is less, and then another one loses its vote. If
// that one leads, it transfers leadership first. [cluster.Client.Members] shows the roles.
//
// A member that is set to RoleStandby never gets a vote, whatever happens to the others. One that
// is set to RoleVoter is replaced while it is gone, and gets its vote back when it returns. Setting
// the same role again changes nothing. The right that it needs is [ActionSetRole]. The cluster
// records the principal and the reason, the log of the leader shows them.
//
// Errors: [cluster.ErrNotMember]; [cluster.ErrLastVoter] if no other member may vote;
// [*replay.InvalidError] for an unknown role, or if more members would be set to RoleVoter than
// cluster.Settings.Voters; [cluster.ErrNotAuthorized]; [cluster.ErrProtocol] while a member does
// not speak protocol 4; [*cluster.UnavailableError].
func SetRole(ctx context.Context, client *cluster.Client, node, role, reason string) error {
	internals, err := client.Internal(access.Key{})
	if err != nil {
		return fmt.Errorf("set role: %w", err)
	}
	pins := map[string]journalpb.MemberRole_Pin{
		RoleVoter: journalpb.MemberRole_PIN_VOTER, RoleStandby: journalpb.MemberRole_PIN_STANDBY, RoleAuto: journalpb.MemberRole_PIN_NONE,
	}
	pin, known := pins[role]
	if !known {
		return fmt.Errorf("set role: %w", &replay.InvalidError{Field: "role", Reason: fmt.Sprintf("is %.100q: %q, %q or %q is allowed", role, RoleVoter, RoleStandby, RoleAuto)})
	}
	sent := &clusterpb.Request{Call: &clusterpb.Request_SetRole{SetRole: &clusterpb.SetRoleRequest{Node: node, Pin: pin, Reason: reason}}}
	if err := internals.Check(sent); err != nil {
		return fmt.Errorf("set role: %w", err)
	}
	if _, err := internals.Call(ctx, sent); err != nil {
		return fmt.Errorf("set role of %s: %w", node, err)
	}
	return nil
}
