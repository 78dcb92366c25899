package roles

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// behindMax is how many entries a member may lack and count as caught up. A leader sends them in
// less than a second; under load, some are always in flight.
const behindMax = 1000

// A Journal is the journal of the first partition.
type Journal interface {
	Protocol() uint32
	Now() clustertime.Time
	Members() []journal.Member
	Roles() (encoded []byte, version uint64)
	ChangeRoles(ctx context.Context, version uint64, encoded []byte) error
	WatchSettings() (changed <-chan struct{}, cancel func())
}

// Config is what a Keeper needs of its node.
type Config struct {
	Node string
	// Journal returns the journal of the first partition, nil before it is open.
	Journal func() Journal
	// Rules returns the settings of the cluster.
	Rules func() Rules
	// Members returns the members as the leaders of all partitions see them.
	Members func(ctx context.Context) ([]*clusterpb.Member, error)
	// Zone returns the zone that a node has announced to this one.
	Zone     func(node string) (zone string, known bool)
	Interval time.Duration // between rounds
	Logger   *slog.Logger
}

// A Keeper keeps the roles of the members: it decides while its node leads the first partition, and
// shows every node of what is decided.
type Keeper struct {
	Config
	records Records
	changes atomic.Uint64
}

// NewKeeper returns a Keeper.
func NewKeeper(c Config) *Keeper {
	k := &Keeper{Config: c}
	k.records.Read = func() ([]byte, uint64) {
		if j := k.Journal(); j != nil {
			return j.Roles()
		}
		return nil, 0
	}
	return k
}

// Changes returns how often this node has changed who votes.
func (k *Keeper) Changes() uint64 { return k.changes.Load() }

// Latest returns the recorded roles; see [Records.Latest]. It returns none if they cannot be
// decoded, which is logged where they are applied.
func (k *Keeper) Latest() (*journalpb.Roles, uint64) {
	recorded, version, err := k.records.Latest()
	if err != nil {
		return new(journalpb.Roles), 0
	}
	return recorded, version
}

// VotersOf implements journal.Config.Voters.
func (k *Keeper) VotersOf(members []string) (voters []string, known bool) {
	j := k.Journal()
	if j == nil {
		return nil, false
	}
	recorded, version, err := k.records.Latest()
	switch {
	case err != nil:
		return nil, false
	case version > 0:
		return Voters(recorded), true
	case j.Protocol() < journal.RolesProtocol || len(members) <= k.Rules().Voters:
		return members, true
	}
	return nil, false // the leader of the first partition is about to record roles
}

// Run decides, during a leadership of the first partition, until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	changed, cancel := k.Journal().WatchSettings()
	defer cancel()
	ticker := time.NewTicker(k.Interval)
	defer ticker.Stop()
	watch := newTracker()
	for {
		if err := k.round(ctx, watch); err != nil && ctx.Err() == nil && !errors.Is(err, journal.ErrRolesVersion) && !errors.Is(err, journal.ErrNotLeader) {
			k.Logger.Warn("roles of members not kept; trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-ticker.C:
		}
	}
}

// round records the next change, if one is due.
func (k *Keeper) round(ctx context.Context, watch *tracker) error {
	j := k.Journal()
	if j.Protocol() < journal.RolesProtocol {
		return nil
	}
	rules := k.Rules()
	recorded, version, err := k.records.Latest()
	if err != nil {
		return err
	}
	own := j.Members()
	if version == 0 && len(own) <= rules.Voters && !slices.ContainsFunc(own, func(m journal.Member) bool { return k.zoneOf(m.Node) != "" }) {
		return nil
	}
	present, complete := k.look(ctx, own, watch)
	now := j.Now()
	next := update(recorded, present, now)
	if version == 0 && !isNeeded(next, rules.Voters) {
		return nil
	}
	change, ok := Decide(rules, membersOf(k.Node, rules, next, present, now), complete && isSettled(next, present), now.Sub(clustertime.FromUnixNano(next.ChangedAt)))
	if ok {
		apply(next, change)
		next.ChangedAt = now.UnixNano()
	}
	if version > 0 && proto.Equal(next, recorded) {
		return nil
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(next)
	if err != nil {
		return err
	}
	err = j.ChangeRoles(ctx, version+1, encoded)
	if ok && (err == nil || errors.Is(err, journal.ErrUnknownOutcome)) { // the next leader may find it recorded
		k.changes.Add(1)
	}
	if err != nil {
		return err
	}
	if ok {
		k.Logger.Info("roles of members changed: "+change.Reason, "voter", change.Promote, "standby", change.Demote)
	}
	return nil
}

func (k *Keeper) zoneOf(node string) string {
	zone, _ := k.Zone(node)
	return zone
}

// apply records a change.
func apply(roles *journalpb.Roles, c Change) {
	for _, m := range roles.Members {
		switch m.Node {
		case c.Promote:
			m.Voter = true
		case c.Demote:
			m.Voter, m.GoneSince = false, 0
		}
	}
}

// seen is a member as this round sees it.
type seen struct {
	node, zone string
	zoneKnown  bool
	hasVote    bool // in the first partition
	votes      bool // in every partition
	answers    bool
	fit        bool
	fitFor     time.Duration
	silent     time.Duration // since the last answer of a member that does not answer; otherwise 0
	unfitFor   time.Duration
}

// look returns the members of the first partition, sorted by ID. complete is false if the other
// partitions are not known: then only the view of the first counts.
func (k *Keeper) look(ctx context.Context, own []journal.Member, watch *tracker) (present []*seen, complete bool) {
	all := make(map[string]*clusterpb.Member)
	members, err := k.Members(ctx)
	for _, m := range members {
		all[m.Node] = m
	}
	for _, m := range own {
		p := &seen{node: m.Node, hasVote: m.Voter, votes: m.Voter}
		p.zone, p.zoneKnown = k.Zone(m.Node)
		p.answers = m.ContactKnown && !m.Unreachable && m.BehindKnown
		p.fit = p.answers && m.Behind <= behindMax
		if m.Unreachable {
			p.silent = m.SinceContact
		}
		if other := all[m.Node]; err == nil && other != nil {
			p.votes = p.votes && other.Voter
			p.fit = p.fit && other.ContactKnown && !other.Unreachable && other.BehindKnown && other.Behind <= behindMax
		} else if err == nil {
			p.fit, p.votes = false, false
		}
		present = append(present, p)
	}
	watch.update(time.Now(), present)
	return present, err == nil
}

// isSettled reports whether those that are to vote do, and no others.
func isSettled(roles *journalpb.Roles, present []*seen) bool {
	for i, p := range present {
		if voter := roles.Members[i].Voter; voter && !p.votes || !voter && p.hasVote {
			return false
		}
	}
	return true
}

// membersOf returns what a decision depends on. roles has the members that are present. What
// earlier leaders have recorded of a voter counts once this leader has also waited for it for a
// while.
func membersOf(leader string, rules Rules, roles *journalpb.Roles, present []*seen, now clustertime.Time) (members []Member) {
	for i, p := range present {
		role := roles.Members[i]
		m := Member{
			Node: p.node, Zone: role.Zone, Pin: role.Pin, Voter: role.Voter, Leader: p.node == leader, Fit: p.fit, FitFor: p.fitFor, GoneFor: p.silent,
		}
		if p.silent >= rules.steadyFor() && role.GoneSince > 0 {
			m.GoneFor = max(p.silent, now.Sub(clustertime.FromUnixNano(role.GoneSince)))
		}
		if m.Voter && !p.votes {
			m.GoneFor = max(p.silent, p.unfitFor)
		}
		members = append(members, m)
	}
	return members
}

// tracker notes since when each member is fit, or not. It holds present members only.
type tracker struct {
	since map[string]time.Time
	fit   map[string]bool
}

func newTracker() *tracker {
	return &tracker{since: make(map[string]time.Time), fit: make(map[string]bool)}
}

// update sets fitFor and unfitFor of the members.
func (t *tracker) update(now time.Time, present []*seen) {
	for node := range t.since {
		if !slices.ContainsFunc(present, func(p *seen) bool { return p.node == node }) {
			delete(t.since, node)
			delete(t.fit, node)
		}
	}
	for _, p := range present {
		if since, known := t.since[p.node]; !known || since.IsZero() || t.fit[p.node] != p.fit {
			t.since[p.node], t.fit[p.node] = now, p.fit
		}
		if lasts := now.Sub(t.since[p.node]); p.fit {
			p.fitFor = lasts
		} else {
			p.unfitFor = lasts
		}
	}
}
