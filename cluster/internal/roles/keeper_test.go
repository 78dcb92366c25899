package roles

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// fakeJournal is a first partition whose votes follow the recorded roles at once.
type fakeJournal struct {
	mu       sync.Mutex
	protocol uint32
	members  []journal.Member
	encoded  []byte
	version  uint64
	changed  chan struct{}
	keeper   *Keeper
	down     map[string]time.Time
}

func newFakeJournal(zones map[string]string, nodes ...string) *fakeJournal {
	f := &fakeJournal{protocol: journal.RolesProtocol, changed: make(chan struct{}, 1), down: make(map[string]time.Time)}
	for _, node := range nodes {
		f.members = append(f.members, journal.Member{Node: node, Voter: true, ContactKnown: true, BehindKnown: true})
	}
	f.keeper = NewKeeper(Config{
		Node: nodes[0], Journal: func() Journal { return f }, Interval: time.Second, Logger: slog.New(slog.DiscardHandler),
		Rules:   func() Rules { return Rules{Voters: 3, ReplaceAfter: time.Minute} },
		Members: func(context.Context) ([]*clusterpb.Member, error) { return f.merged(), nil },
		Zone:    func(node string) (string, bool) { zone, known := zones[node]; return zone, known },
	})
	return f
}

// change changes a member.
func (f *fakeJournal) change(node string, set func(m *journal.Member)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.members {
		if f.members[i].Node == node {
			set(&f.members[i])
		}
	}
}

func (f *fakeJournal) stop(node string) {
	f.change(node, func(m *journal.Member) { m.Unreachable = true })
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down[node] = time.Now()
}

func (f *fakeJournal) start(node string) {
	f.change(node, func(m *journal.Member) { m.Unreachable = false })
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.down, node)
}

func (f *fakeJournal) merged() (all []*clusterpb.Member) {
	for _, m := range f.Members() {
		all = append(all, &clusterpb.Member{
			Node: m.Node, Voter: m.Voter, ContactKnown: m.ContactKnown, BehindKnown: m.BehindKnown, Behind: m.Behind, Unreachable: m.Unreachable,
		})
	}
	return all
}

func (f *fakeJournal) Protocol() uint32 { return f.protocol }

func (f *fakeJournal) Now() clustertime.Time { return clustertime.FromUnixNano(time.Now().UnixNano()) }

func (f *fakeJournal) Members() []journal.Member {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := slices.Clone(f.members)
	for i := range all {
		if since, down := f.down[all[i].Node]; down {
			all[i].SinceContact = time.Since(since)
		}
	}
	return all
}

func (f *fakeJournal) Roles() ([]byte, uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.encoded, f.version
}

func (f *fakeJournal) ChangeRoles(_ context.Context, version uint64, encoded []byte) error {
	f.mu.Lock()
	if version != f.version+1 {
		f.mu.Unlock()
		return journal.ErrRolesVersion
	}
	f.encoded, f.version = encoded, version
	f.mu.Unlock()
	voters, _ := f.keeper.VotersOf(nil)
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.members {
		f.members[i].Voter = slices.Contains(voters, f.members[i].Node)
	}
	select {
	case f.changed <- struct{}{}:
	default:
	}
	return nil
}

func (f *fakeJournal) WatchSettings() (<-chan struct{}, func()) { return f.changed, func() {} }

func (f *fakeJournal) voters() (voters []string) {
	for _, m := range f.Members() {
		if m.Voter {
			voters = append(voters, m.Node)
		}
	}
	return voters
}

// expect checks the voters after some time.
func (f *fakeJournal) expect(t *testing.T, after time.Duration, voters ...string) {
	t.Helper()
	time.Sleep(after)
	synctest.Wait()
	if got := f.voters(); !slices.Equal(got, voters) {
		t.Errorf("the voters are %v, want %v", got, voters)
	}
}

// run runs the keeper during a test, in virtual time.
func (f *fakeJournal) run(t *testing.T, test func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { f.keeper.Run(ctx) })
	test()
	cancel()
	running.Wait()
}

// With no more members than voters wanted, nothing is recorded, and every member votes.
func TestKeeper_RecordsNothingForSmallCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeJournal(nil, "n1", "n2", "n3")
		f.run(t, func() {
			f.expect(t, time.Hour, "n1", "n2", "n3")
			if _, version := f.Roles(); version != 0 {
				t.Errorf("roles were recorded %d times", version)
			}
			if voters, known := f.keeper.VotersOf([]string{"n1", "n2", "n3"}); !known || len(voters) != 3 {
				t.Errorf("%v, %t", voters, known)
			}
			if voters, known := f.keeper.VotersOf([]string{"n1", "n2", "n3", "n4"}); known {
				t.Errorf("before the roles of four are recorded: %v", voters)
			}
		})
	})
}

// A voter that is gone is replaced after exactly the time that the settings state, and stays a
// standby when it returns.
func TestKeeper_ReplacesVoter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeJournal(nil, "n1", "n2", "n3", "n4", "n5")
		f.run(t, func() {
			f.expect(t, 3*time.Second, "n1", "n2", "n3") // five are shrunk to three, one at a time
			f.stop("n2")
			f.expect(t, 55*time.Second, "n1", "n2", "n3")
			f.start("n2") // a restart
			f.expect(t, 10*time.Second, "n1", "n2", "n3")
			f.stop("n2")
			f.expect(t, 58*time.Second, "n1", "n2", "n3")
			f.expect(t, 4*time.Second, "n1", "n3", "n4")
			f.start("n2")
			f.expect(t, time.Hour, "n1", "n3", "n4")
			if changes := f.keeper.Changes(); changes != 3 {
				t.Errorf("%d changes", changes)
			}
		})
	})
}

// A standby that lags, or is gone, does not become a voter. It does when it has caught up and been
// there for a while.
func TestKeeper_DoesNotPromoteStandbyThatLags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeJournal(nil, "n1", "n2", "n3", "n4")
		f.run(t, func() {
			f.expect(t, 3*time.Second, "n1", "n2", "n3")
			f.change("n4", func(m *journal.Member) { m.Behind = behindMax + 1 })
			f.stop("n3")
			f.expect(t, time.Hour, "n1", "n2", "n3")
			f.change("n4", func(m *journal.Member) { m.Behind = behindMax })
			f.expect(t, 8*time.Second, "n1", "n2", "n3")
			f.expect(t, 5*time.Second, "n1", "n2", "n4")
		})
	})
}

// A member that is fit in the first partition and lags in another does not become a voter.
func TestKeeper_LooksAtAllPartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeJournal(nil, "n1", "n2", "n3", "n4", "n5")
		merged := f.keeper.Members
		f.keeper.Members = func(ctx context.Context) ([]*clusterpb.Member, error) {
			all, err := merged(ctx)
			all[3].Behind = 5000
			return all, err
		}
		f.run(t, func() {
			f.expect(t, 3*time.Second, "n1", "n2", "n3")
			f.stop("n3")
			f.expect(t, 62*time.Second, "n1", "n2", "n5")
		})
	})
}

// Zones that nodes announce are recorded, and remain known when the node is gone.
func TestKeeper_KnowsZones(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zones := map[string]string{"n1": "a", "n2": "b", "n3": "c", "n4": "a", "n5": "c"}
		f := newFakeJournal(zones, "n1", "n2", "n3", "n4", "n5")
		f.change("n4", func(m *journal.Member) { m.Voter = false })
		f.change("n5", func(m *journal.Member) { m.Voter = false })
		f.run(t, func() {
			f.expect(t, 20*time.Second, "n1", "n2", "n3")
			delete(zones, "n5") // its worker stream has ended
			f.stop("n3")
			f.expect(t, 62*time.Second, "n1", "n2", "n5")
			recorded, _ := f.keeper.Latest()
			if zone := Find(recorded, "n5").GetZone(); zone != "c" {
				t.Errorf("zone %q", zone)
			}
		})
	})
}

func TestKeeper_NeedsProtocol(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeJournal(nil, "n1", "n2", "n3", "n4")
		f.protocol = journal.RolesProtocol - 1
		f.run(t, func() {
			f.expect(t, time.Hour, "n1", "n2", "n3", "n4")
			if voters, known := f.keeper.VotersOf([]string{"n1", "n2", "n3", "n4"}); !known || len(voters) != 4 {
				t.Errorf("%v, %t", voters, known)
			}
		})
	})
}

func TestKeeper_Pins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeJournal(nil, "n1", "n2", "n3", "n4")
		pin := func(node string, pin journalpb.MemberRole_Pin) error {
			_, err := f.keeper.Pin(t.Context(), &clusterpb.SetRoleRequest{Node: node, Pin: pin, Reason: "why"}, "client ops")
			return err
		}
		f.run(t, func() {
			f.expect(t, time.Minute, "n1", "n2", "n3")
			if err := pin("n4", journalpb.MemberRole_PIN_VOTER); err != nil {
				t.Fatal(err)
			}
			f.expect(t, 2*time.Second, "n1", "n2", "n4")
			recorded, version := f.keeper.Latest()
			if m := Find(recorded, "n4"); m.Principal != "client ops" || m.Reason != "why" || m.PinnedAt == 0 {
				t.Errorf("recorded: %+v", m)
			}
			if err := pin("n4", journalpb.MemberRole_PIN_VOTER); err != nil {
				t.Fatal(err)
			}
			if _, now := f.keeper.Latest(); now != version {
				t.Error("setting the same role again was recorded")
			}
			for _, node := range []string{"n2", "n3"} {
				if err := pin(node, journalpb.MemberRole_PIN_VOTER); err != nil {
					t.Fatal(err)
				}
			}
			f.expect(t, 2*time.Second, "n2", "n3", "n4")
			if err := pin("n1", journalpb.MemberRole_PIN_VOTER); !errors.As(err, new(*replay.InvalidError)) {
				t.Errorf("a fourth of three: %v", err)
			}
			if err := pin("n9", journalpb.MemberRole_PIN_VOTER); !errors.Is(err, journal.ErrNotMember) {
				t.Errorf("unknown: %v", err)
			}
			for _, node := range []string{"n1", "n2", "n3"} {
				if err := pin(node, journalpb.MemberRole_PIN_STANDBY); err != nil {
					t.Fatal(err)
				}
			}
			if err := pin("n4", journalpb.MemberRole_PIN_STANDBY); !errors.Is(err, journal.ErrLastVoter) {
				t.Errorf("the last voter: %v", err)
			}
			f.expect(t, 5*time.Second, "n4")
			if err := pin("n4", journalpb.MemberRole_PIN_NONE); err != nil {
				t.Fatal(err)
			}
			for _, node := range []string{"n1", "n2"} {
				if err := pin(node, journalpb.MemberRole_PIN_NONE); err != nil {
					t.Fatal(err)
				}
			}
			f.expect(t, 5*time.Second, "n1", "n2", "n4")
		})
	})
}

// A node that is no longer a member is forgotten, and a standby takes its place.
func TestKeeper_ForgetsRemovedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeJournal(nil, "n1", "n2", "n3", "n4")
		f.run(t, func() {
			f.expect(t, 3*time.Second, "n1", "n2", "n3")
			f.mu.Lock()
			f.members = slices.DeleteFunc(f.members, func(m journal.Member) bool { return m.Node == "n2" })
			f.mu.Unlock()
			f.expect(t, 2*time.Second, "n1", "n3", "n4")
			if recorded, _ := f.keeper.Latest(); Find(recorded, "n2") != nil || len(recorded.Members) != 3 {
				t.Errorf("%+v", recorded)
			}
		})
	})
}

// A new leader continues to count how long a voter has been gone. It waits a while itself first:
// the voter may have returned.
func TestKeeper_CountsAcrossLeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeJournal(nil, "n1", "n2", "n3", "n4")
		f.run(t, func() {
			f.expect(t, 3*time.Second, "n1", "n2", "n3")
			f.stop("n3")
			f.expect(t, 50*time.Second, "n1", "n2", "n3")
		})
		f.mu.Lock()
		f.down["n3"] = time.Now() // a new leader has just begun to ask
		f.mu.Unlock()
		f.run(t, func() {
			f.expect(t, 8*time.Second, "n1", "n2", "n3")
			f.expect(t, 4*time.Second, "n1", "n2", "n4")
		})
		f.start("n3")
		f.stop("n2")
		f.run(t, func() { f.expect(t, 50*time.Second, "n1", "n2", "n4") })
		f.start("n2")
		f.run(t, func() { f.expect(t, 2*time.Second, "n1", "n2", "n4") })
		f.stop("n2") // anew
		f.run(t, func() {
			f.expect(t, 58*time.Second, "n1", "n2", "n4")
			f.expect(t, 4*time.Second, "n1", "n3", "n4")
		})
	})
}
