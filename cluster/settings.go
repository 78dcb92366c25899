package cluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/actors/activity"
	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/cluster/internal/retention"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// Settings are what must be the same on every node. The journal holds them, so a change of leader
// changes none of them. Config.Settings are recorded when the cluster is founded; later only
// [Client.ChangeSettings] changes them. Zero values mean defaults.
type Settings struct {
	// ActivityRates bounds, by activity name, how often attempts begin in the whole cluster; at
	// most 1,000 entries. Partitions share a rate equally. After a change of leader or of the rate
	// one attempt may begin too early. Defaults to no bounds.
	ActivityRates map[string]Rate
	// ActivityPlacement says where an attempt of an activity begins if several nodes and workers
	// (of [Dial], with DialConfig.Definitions) have a free slot for it: "spread", "leader first" or
	// "workers first". With "spread", the leader's node uses an eighth of its slots first, and
	// further attempts begin where the smallest share of the slots is in use. With "leader first",
	// it uses all its slots first. With "workers first", nodes run only what no worker has a free
	// slot for. See also Config.LeaderExempt. Defaults to "spread".
	ActivityPlacement string
	// Limits bounds each instance.
	Limits Limits
	// Retention is how long instances are kept after their end. Defaults to forever.
	Retention Retention
	// PayloadMax bounds a value: an input, result, event and so on, in bytes of JSON, before the
	// codec. At most 3 MiB. An execution keeps the bound with which it began, because its code may
	// have seen that a value was rejected; this does not hold for executions begun by a build
	// before protocol 4. Defaults to 1 MiB.
	PayloadMax int
	// RequireJoinToken makes the cluster admit new nodes only with a token. Defaults to admitting
	// every node that asks; with TLS, every node that has a certificate for its name.
	RequireJoinToken bool
	// Voters is how many members vote: 3, 5 or 7. Further members are standbys: they have the same
	// data and no vote, and replace voters that are gone. As long as the cluster has no more
	// members than that, each votes. Defaults to 5.
	Voters int
	// ReplaceVoterAfter is how long a voter may not answer before a standby replaces it: 1 s to 24
	// h. It should be longer than a restart takes. Defaults to 1 min.
	ReplaceVoterAfter time.Duration
	// ReplaceLostAfter makes a node that has lost its Dir come back by itself: a member that
	// presents another Dir gets the place of the lost one, as with [Client.AdoptNode], after the
	// cluster had no answer from the lost one for this long. It has no vote until it has caught up.
	// A majority of the other voters must answer with their own Dirs, and only one Dir is replaced
	// at a time: while another member that is no standby has no vote, none is. With TLS the node's
	// certificate is required, but no join token. Do not set it if nodes are started from copies or
	// backups of a Dir. 5 s to 24 h. Defaults to 0: a lost Dir is replaced only by AdoptNode.
	ReplaceLostAfter time.Duration
	// FinalizeProtocolAfter is how long all members speak a newer protocol before the cluster uses
	// it by itself. Until then each node may return to the previous build; "tenuto cluster
	// finalize" ends the wait. A new cluster does not wait. 1 s to 366 days. Defaults to 24 h.
	FinalizeProtocolAfter time.Duration
}

// A Rate bounds how often attempts of an activity begin.
type Rate struct {
	// PerSecond is the mean number of attempts that begin per second, 1e-6 to 1e6.
	PerSecond float64
	// Burst is how many attempts may begin at once after a pause: at most 1,000,000, and no more
	// than begin in a year. Defaults to 1.
	Burst int
}

// Limits bounds the size of one instance. A lower limit also ends or rejects what was allowed
// before.
type Limits struct {
	// Open bounds the operations open at once: activities, timers, children and awaited events. An
	// instance that exceeds it is terminated, with the reason. Defaults to 10,000.
	Open int
	// Buffered and BufferedBytes bound the external events that wait for code to take them, in
	// events and in bytes of their payloads. Further events are rejected with a [BusyError].
	// Default to 10,000 and 16 MiB.
	Buffered      int
	BufferedBytes int
	// HistoryEvents and HistoryBytes bound the history of one execution, in events and in bytes of
	// payloads. An instance that exceeds them is terminated, with the reason: it should have
	// continued as new. Default to 200,000 and 64 MiB.
	HistoryEvents int
	HistoryBytes  int
}

// Retention is how long instances are kept after their run has ended, by how it ended. Then the
// leader purges them with everything that belongs to them, and their IDs are free again. Zero means
// forever.
//
// Instances that relatives still need are kept longer: a child until its parent has recorded its
// end, a parent until its children have ended.
type Retention struct {
	Completed  time.Duration
	Failed     time.Duration
	Canceled   time.Duration
	Terminated time.Duration
}

// Bounds of settings.
const (
	// About one attempt in 12 days, and one per microsecond.
	ratePerSecondMin = 1e-6
	ratePerSecondMax = 1e6
	ratesMax         = 1000
	rateBurstMax     = 1_000_000
	// rateFillMax is how many seconds a bucket may take to fill.
	rateFillMax    = 365 * 24 * 3600
	replaceLostMin = 5 * time.Second
	replaceLostMax = 24 * time.Hour
	// A value must fit in an append to the journal, 4 MiB, together with what a codec adds.
	payloadMaxMax            = 3 << 20
	votersMax, votersDefault = 7, 5
	replaceVoterMin          = time.Second
	replaceVoterMax          = 24 * time.Hour
	replaceVoterDefault      = time.Minute
	finalizeProtocolMin      = time.Second
	finalizeProtocolMax      = 366 * 24 * time.Hour
	finalizeProtocolDefault  = 24 * time.Hour
	// settingsBytesMax bounds the encoded settings: each rate has a name of up to nameMax bytes.
	settingsBytesMax = 1 << 20
)

// placements are the values of Settings.ActivityPlacement.
var placements = map[string]activity.Placement{
	"": activity.Spread, placementDefault: activity.Spread, placementUnrecorded: activity.LeaderFirst, "workers first": activity.WorkersFirst,
}

const (
	placementDefault = "spread"
	// placementUnrecorded is that of clusters that were founded before the setting existed.
	placementUnrecorded = "leader first"
)

// errSettingsVersion means that other settings were recorded since the client read them. Nothing
// was changed.
var errSettingsVersion = journal.ErrSettingsVersion

// Settings returns the settings of the cluster. While none are recorded, because a member speaks an
// earlier protocol or the cluster was just founded, they are those of the leader's Config.
//
// Errors: [ErrNotAuthorized], [*UnavailableError]; [ErrProtocol] from a leader of an earlier build.
func (c *Client) Settings(ctx context.Context) (Settings, error) {
	recorded, _, err := c.recordedSettings(ctx)
	if err != nil {
		return Settings{}, fmt.Errorf("get settings: %w", err)
	}
	return settingsOf(recorded), nil
}

// ChangeSettings changes the settings of the cluster and returns what is now recorded. change gets
// the present settings. If another client changes them at the same time, it is called again with
// the newer ones, so no change is lost. It should assign fields and do nothing else. A zero value
// sets the default.
//
// When ChangeSettings returns, the change is committed and the leader of the first partition
// applies it. Each other node, also as leader of other partitions, applies it as soon as its
// replica shows it.
//
// Errors: [*replay.InvalidError] for a value that is not valid; [ErrNotAuthorized];
// [*UnavailableError]. If its outcome is unknown, call [Client.Settings] before repeating the
// change. While a member does not speak protocol 4, the error is [ErrProtocol].
func (c *Client) ChangeSettings(ctx context.Context, change func(*Settings)) (Settings, error) {
	if change == nil {
		return Settings{}, fmt.Errorf("change settings: %w", invalidArgument("change", "is nil"))
	}
	for {
		next, err := tryChangeSettings(ctx, c, change)
		switch {
		case errors.Is(err, errSettingsVersion):
			// Another change was recorded: make this one on top of it.
		case err != nil:
			return Settings{}, fmt.Errorf("change settings: %w", err)
		default:
			return next, nil
		}
	}
}

// tryChangeSettings is one attempt of ChangeSettings.
func tryChangeSettings(ctx context.Context, c *Client, change func(*Settings)) (Settings, error) {
	recorded, version, err := c.recordedSettings(ctx)
	if err != nil {
		return Settings{}, err
	}
	next := settingsOf(recorded)
	change(&next)
	if err := next.check(); err != nil {
		return Settings{}, err
	}
	next = next.withDefaults()
	recorded.RequestId = rand.Text()
	encoded, err := next.encode(recorded)
	if err != nil {
		return Settings{}, err
	}
	request := &clusterpb.ChangeSettingsRequest{Settings: encoded, Version: version + 1}
	_, err = c.call(ctx, &clusterpb.Request{Call: &clusterpb.Request_ChangeSettings{ChangeSettings: request}})
	return next, err
}

// recordedSettings returns the settings of the cluster and their version, 0 if none are recorded.
func (c *Client) recordedSettings(ctx context.Context) (*journalpb.Settings, uint64, error) {
	request := &clusterpb.Request{Call: &clusterpb.Request_GetSettings{GetSettings: new(clusterpb.GetSettingsRequest)}}
	response, err := c.call(ctx, request)
	if err != nil {
		return nil, 0, err
	}
	recorded := new(journalpb.Settings)
	if err := proto.Unmarshal(response.GetGetSettings().GetSettings(), recorded); err != nil {
		return nil, 0, fmt.Errorf("decode settings: %w", err)
	}
	return recorded, response.GetGetSettings().GetVersion(), nil
}

// withDefaults returns a copy in which defaults replace zero values. Its map is not nil.
func (s Settings) withDefaults() Settings {
	rates := make(map[string]Rate, len(s.ActivityRates))
	for name, rate := range s.ActivityRates {
		rates[name] = Rate{rate.PerSecond, cmp.Or(rate.Burst, 1)}
	}
	s.ActivityRates = rates
	s.Limits = Limits(actors.Limits(s.Limits).WithDefaults())
	s.PayloadMax = cmp.Or(s.PayloadMax, replay.PayloadMax)
	s.Voters = cmp.Or(s.Voters, votersDefault)
	s.ReplaceVoterAfter = cmp.Or(s.ReplaceVoterAfter, replaceVoterDefault)
	s.ActivityPlacement = cmp.Or(s.ActivityPlacement, placementDefault)
	s.FinalizeProtocolAfter = cmp.Or(s.FinalizeProtocolAfter, finalizeProtocolDefault)
	return s
}

// A settingsNumber is a field of Settings that is a number.
type settingsNumber struct {
	field string
	value int64
	most  int64  // 0: unbounded
	zero  string // what 0 means
}

func (s *Settings) numbers() []settingsNumber {
	const byDefault, forever = "the default", "forever"
	return []settingsNumber{
		{"Limits.Open", int64(s.Limits.Open), 0, byDefault},
		{"Limits.Buffered", int64(s.Limits.Buffered), 0, byDefault},
		{"Limits.BufferedBytes", int64(s.Limits.BufferedBytes), 0, byDefault},
		{"Limits.HistoryEvents", int64(s.Limits.HistoryEvents), 0, byDefault},
		{"Limits.HistoryBytes", int64(s.Limits.HistoryBytes), 0, byDefault},
		{"Retention.Completed", int64(s.Retention.Completed), 0, forever},
		{"Retention.Failed", int64(s.Retention.Failed), 0, forever},
		{"Retention.Canceled", int64(s.Retention.Canceled), 0, forever},
		{"Retention.Terminated", int64(s.Retention.Terminated), 0, forever},
		{"PayloadMax", int64(s.PayloadMax), payloadMaxMax, byDefault},
		{"Voters", int64(s.Voters), votersMax, byDefault},
		{"ReplaceVoterAfter", int64(s.ReplaceVoterAfter), 0, byDefault},
		{"ReplaceLostAfter", int64(s.ReplaceLostAfter), int64(replaceLostMax), "never"},
		{"FinalizeProtocolAfter", int64(s.FinalizeProtocolAfter), int64(finalizeProtocolMax), byDefault},
	}
}

// check returns an error for a field that is not valid.
func (s *Settings) check() error {
	invalid := func(field, format string, args ...any) error {
		return invalidArgument("Settings."+field, fmt.Sprintf(format, args...))
	}
	for _, n := range s.numbers() {
		switch {
		case n.value < 0:
			return invalid(n.field, "is negative: 0 means %s", n.zero)
		case n.most > 0 && n.value > n.most:
			return invalid(n.field, "is %d: at most %d are allowed", n.value, n.most)
		}
	}
	switch {
	case s.Voters != 0 && (s.Voters < 3 || s.Voters%2 == 0):
		return invalid("Voters", "is %d: 3, 5 or 7 are allowed", s.Voters)
	case s.ReplaceVoterAfter != 0 && (s.ReplaceVoterAfter < replaceVoterMin || s.ReplaceVoterAfter > replaceVoterMax):
		return invalid("ReplaceVoterAfter", "is %v: %v to %v are allowed", s.ReplaceVoterAfter, replaceVoterMin, replaceVoterMax)
	case s.ReplaceLostAfter != 0 && s.ReplaceLostAfter < replaceLostMin:
		return invalid("ReplaceLostAfter", "is %v: %v to %v are allowed, 0 means never", s.ReplaceLostAfter, replaceLostMin, replaceLostMax)
	case s.FinalizeProtocolAfter != 0 && s.FinalizeProtocolAfter < finalizeProtocolMin:
		return invalid("FinalizeProtocolAfter", "is %v: %v to %v are allowed", s.FinalizeProtocolAfter, finalizeProtocolMin, finalizeProtocolMax)
	}
	if _, ok := placements[s.ActivityPlacement]; !ok {
		return invalid("ActivityPlacement", "is %.100q: \"spread\", \"leader first\" and \"workers first\" are allowed", s.ActivityPlacement)
	}
	if len(s.ActivityRates) > ratesMax {
		return invalid("ActivityRates", "has %d entries: at most %d are allowed", len(s.ActivityRates), ratesMax)
	}
	for name, rate := range s.ActivityRates {
		if err := checkText("Settings.ActivityRates: activity name", name, 1, nameMax); err != nil {
			return err
		}
		if !(rate.PerSecond >= ratePerSecondMin && rate.PerSecond <= ratePerSecondMax) || rate.Burst < 0 || rate.Burst > rateBurstMax ||
			float64(rate.Burst) > max(rate.PerSecond*rateFillMax, 1) {
			return invalid("ActivityRates", "has %+v for %q: PerSecond must be %g to %g, Burst 0 to %d and no more than a year of PerSecond",
				rate, name, ratePerSecondMin, ratePerSecondMax, rateBurstMax)
		}
	}
	return nil
}

// statedDifferences returns the fields that s sets and that differ from the settings that apply.
func (s Settings) statedDifferences(applied Settings) (fields []string) {
	if resolved := s.withDefaults(); len(s.ActivityRates) > 0 && !maps.Equal(resolved.ActivityRates, applied.ActivityRates) {
		fields = append(fields, "ActivityRates")
	}
	for i, n := range applied.numbers() {
		if stated := s.numbers()[i].value; stated != 0 && stated != n.value {
			fields = append(fields, n.field)
		}
	}
	if s.ActivityPlacement != "" && s.ActivityPlacement != applied.ActivityPlacement {
		fields = append(fields, "ActivityPlacement")
	}
	if s.RequireJoinToken && !applied.RequireJoinToken {
		fields = append(fields, "RequireJoinToken")
	}
	return fields
}

// encode returns the settings in their recorded form. It keeps fields of base that only a later
// build knows.
func (s Settings) encode(base *journalpb.Settings) ([]byte, error) {
	base.ActivityRates = nil
	for _, name := range slices.Sorted(maps.Keys(s.ActivityRates)) {
		rate := s.ActivityRates[name]
		base.ActivityRates = append(base.ActivityRates, &journalpb.ActivityRate{Activity: name, PerSecond: rate.PerSecond, Burst: uint64(rate.Burst)})
	}
	base.OpenMax, base.BufferedMax, base.BufferedBytesMax = uint64(s.Limits.Open), uint64(s.Limits.Buffered), uint64(s.Limits.BufferedBytes)
	base.HistoryEventsMax, base.HistoryBytesMax = uint64(s.Limits.HistoryEvents), uint64(s.Limits.HistoryBytes)
	base.RetentionCompleted, base.RetentionFailed = int64(s.Retention.Completed), int64(s.Retention.Failed)
	base.RetentionCanceled, base.RetentionTerminated = int64(s.Retention.Canceled), int64(s.Retention.Terminated)
	base.PayloadMax, base.RequireJoinToken = uint64(s.PayloadMax), s.RequireJoinToken
	base.Voters, base.ReplaceVoterAfter = uint64(s.Voters), int64(s.ReplaceVoterAfter)
	base.ReplaceLostAfter = int64(s.ReplaceLostAfter)
	base.ActivityPlacement = s.ActivityPlacement
	base.FinalizeProtocolAfter = int64(s.FinalizeProtocolAfter)
	return proto.Marshal(base)
}

// settingsOf converts recorded settings.
func settingsOf(m *journalpb.Settings) Settings {
	s := Settings{
		Limits: Limits{
			Open: int(m.OpenMax), Buffered: int(m.BufferedMax), BufferedBytes: int(m.BufferedBytesMax),
			HistoryEvents: int(m.HistoryEventsMax), HistoryBytes: int(m.HistoryBytesMax),
		},
		Retention: Retention{
			Completed: time.Duration(m.RetentionCompleted), Failed: time.Duration(m.RetentionFailed),
			Canceled: time.Duration(m.RetentionCanceled), Terminated: time.Duration(m.RetentionTerminated),
		},
		PayloadMax: int(m.PayloadMax), RequireJoinToken: m.RequireJoinToken, ReplaceLostAfter: time.Duration(m.ReplaceLostAfter),
		ActivityRates: make(map[string]Rate, len(m.ActivityRates)),
		Voters:        cmp.Or(int(m.Voters), votersDefault), ReplaceVoterAfter: cmp.Or(time.Duration(m.ReplaceVoterAfter), replaceVoterDefault),
		// "" in settings that a build recorded before there was a choice.
		ActivityPlacement:     cmp.Or(m.ActivityPlacement, placementUnrecorded),
		FinalizeProtocolAfter: cmp.Or(time.Duration(m.FinalizeProtocolAfter), finalizeProtocolDefault),
	}
	for _, rate := range m.ActivityRates {
		s.ActivityRates[rate.Activity] = Rate{rate.PerSecond, int(rate.Burst)}
	}
	return s
}

// checkChangeSettings returns an error for a request that no correct client sends.
func checkChangeSettings(r *clusterpb.ChangeSettingsRequest) error {
	if len(r.GetSettings()) > settingsBytesMax {
		return invalidArgument("settings", fmt.Sprintf("have %d bytes: at most %d are allowed", len(r.Settings), settingsBytesMax))
	}
	m := new(journalpb.Settings)
	if err := proto.Unmarshal(r.GetSettings(), m); err != nil || r.Version == 0 {
		return invalidArgument("settings", "are not encoded correctly")
	}
	s := settingsOf(m)
	if s.PayloadMax == 0 || min(s.Limits.Open, s.Limits.Buffered, s.Limits.BufferedBytes, s.Limits.HistoryEvents, s.Limits.HistoryBytes) == 0 {
		return invalidArgument("settings", "lack defaults, which clients resolve")
	}
	return s.check()
}

var errSettingsPartition = fmt.Errorf("%w: only the first partition records settings", ErrProtocol)

// getSettings answers what the leader of the first partition applies.
func (h *memberHandler) getSettings(ctx context.Context) (*clusterpb.Response, error) {
	if h.partition.number > 0 {
		return nil, errSettingsPartition
	}
	if err := h.partition.barrier(ctx); err != nil {
		return nil, err
	}
	encoded, version := h.journal.Settings()
	if version == 0 {
		var err error
		if encoded, err = h.partition.node.config.Settings.withDefaults().encode(new(journalpb.Settings)); err != nil {
			return nil, err
		}
	}
	result := &clusterpb.GetSettingsResult{Settings: encoded, Version: version}
	return &clusterpb.Response{Result: &clusterpb.Response_GetSettings{GetSettings: result}}, nil
}

func (h *memberHandler) changeSettings(ctx context.Context, request *clusterpb.Request, r *clusterpb.ChangeSettingsRequest) (*clusterpb.Response, error) {
	if h.partition.number > 0 {
		return nil, errSettingsPartition
	}
	if err := h.checkPausesUnchanged(ctx, r); err != nil {
		return nil, err
	}
	return h.recordSettings(ctx, request.Retried, r)
}

// checkPausesUnchanged returns an error if a change of settings pauses or resumes an activity: that
// is another right, and its principal is recorded.
func (h *memberHandler) checkPausesUnchanged(ctx context.Context, r *clusterpb.ChangeSettingsRequest) error {
	response, err := h.getSettings(ctx)
	current := response.GetGetSettings()
	if err != nil || r.Version != current.GetVersion()+1 { // the journal rejects another version
		return err
	}
	recorded, requested := new(journalpb.Settings), new(journalpb.Settings)
	if err := errors.Join(proto.Unmarshal(current.Settings, recorded), proto.Unmarshal(r.Settings, requested)); err != nil {
		return fmt.Errorf("decode settings: %w", err)
	}
	same := func(a, b *journalpb.PausedActivity) bool { return proto.Equal(a, b) }
	if !slices.EqualFunc(recorded.PausedActivities, requested.PausedActivities, same) {
		return invalidArgument("settings", "pause or resume an activity, for which there is another call")
	}
	return nil
}

func (h *memberHandler) recordSettings(ctx context.Context, retried bool, r *clusterpb.ChangeSettingsRequest) (*clusterpb.Response, error) {
	h.awaitSettingsProtocol(ctx)
	err := h.journal.ChangeSettings(ctx, r.Version, r.Settings)
	switch {
	case errors.Is(err, journal.ErrSettingsProtocol):
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	case errors.Is(err, errSettingsVersion) && retried:
		// An earlier attempt may have been recorded, and replaced since.
		return nil, fmt.Errorf("%w: %w", actors.ErrForgotten, err)
	case err != nil:
		return nil, err
	}
	h.partition.node.settings.apply()
	return &clusterpb.Response{Result: &clusterpb.Response_ChangeSettings{ChangeSettings: new(clusterpb.ChangeSettingsResult)}}, nil
}

// pausedActivitiesMax bounds the activities that are paused at the same time.
const pausedActivitiesMax = 1000

func checkPauseActivity(r *clusterpb.PauseActivityRequest) error {
	return firstError(checkText("activity name", r.GetActivity(), 1, nameMax), checkText("reason", r.GetReason(), 0, reasonMax),
		checkText("request ID", r.GetRequestId(), 1, actors.RequestIDMax))
}

// pauseActivity pauses an activity, or resumes it. It changes the latest settings, whatever they
// are.
func (h *memberHandler) pauseActivity(ctx context.Context, request *clusterpb.Request, r *clusterpb.PauseActivityRequest) (*clusterpb.Response, error) {
	done := &clusterpb.Response{Result: &clusterpb.Response_PauseActivity{PauseActivity: new(clusterpb.PauseActivityResult)}}
	h.awaitSettingsProtocol(ctx)
	for {
		current, err := h.getSettings(ctx)
		if err != nil {
			return nil, err
		}
		recorded := new(journalpb.Settings)
		if err := proto.Unmarshal(current.GetGetSettings().GetSettings(), recorded); err != nil {
			return nil, fmt.Errorf("decode settings: %w", err)
		}
		at, paused := findPaused(recorded, r.Activity)
		switch {
		case paused != r.Resume:
			return done, nil
		case request.Retried:
			// An earlier attempt may have been recorded, and undone since.
			return nil, actors.ErrForgotten
		case paused:
			recorded.PausedActivities = slices.Delete(recorded.PausedActivities, at, at+1)
		default:
			recorded.PausedActivities = slices.Insert(recorded.PausedActivities, at, &journalpb.PausedActivity{
				Activity: r.Activity, Principal: request.Principal, Reason: r.Reason, Since: h.journal.Now().UnixNano(),
			})
		}
		recorded.RequestId = r.RequestId
		encoded, err := proto.Marshal(recorded)
		switch {
		case err != nil:
			return nil, err
		case len(recorded.PausedActivities) > pausedActivitiesMax || len(encoded) > settingsBytesMax:
			return nil, invalidArgument("activity name", fmt.Sprintf("is one too many: at most %d activities and %d bytes of settings are allowed",
				pausedActivitiesMax, settingsBytesMax))
		}
		change := &clusterpb.ChangeSettingsRequest{Settings: encoded, Version: current.GetGetSettings().GetVersion() + 1}
		_, err = h.recordSettings(ctx, false, change)
		if err == nil {
			h.partition.node.config.Logger.Info("attempts of an activity paused or resumed in the whole cluster", "activity", r.Activity,
				"resumed", r.Resume, "principal", request.Principal, "reason", r.Reason)
			return done, nil
		}
		if !errors.Is(err, errSettingsVersion) { // otherwise other settings were recorded meanwhile
			return nil, err
		}
	}
}

// findPaused returns where an activity is among the paused ones, or where it belongs.
func findPaused(settings *journalpb.Settings, name string) (at int, paused bool) {
	return slices.BinarySearchFunc(settings.PausedActivities, name, func(one *journalpb.PausedActivity, name string) int {
		return cmp.Compare(one.Activity, name)
	})
}

// settingsProtocolWait bounds how long a change waits for the protocol of a new cluster. Its leader
// raises it as soon as all members have answered.
const settingsProtocolWait = 2 * raiseInterval

func (h *memberHandler) awaitSettingsProtocol(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settingsProtocolWait)
	defer cancel()
	_ = h.partition.node.poll(ctx, func() bool { return h.journal.Protocol() >= journal.SettingsProtocol })
}

// clusterSettings are the settings that a node applies: those that its replica of the first
// partition shows. While none are recorded, those of its Config apply. That is what a build without
// recorded settings does, and what is recorded never depends on it: outcomes are recorded, and an
// execution records its PayloadMax.
type clusterSettings struct {
	node    *Node
	current atomic.Pointer[Settings]
	paused  atomic.Pointer[map[string]*journalpb.PausedActivity] // by activity name; nil: none
	changed admission.Notifier

	mu      sync.Mutex // held while settings are applied
	version uint64
}

// apply applies the settings that this node's replica shows, if they are new.
func (c *clusterSettings) apply() {
	c.mu.Lock()
	defer c.mu.Unlock()
	encoded, version := c.node.partitions[0].journal.Settings()
	if version == c.version {
		return
	}
	recorded := new(journalpb.Settings)
	if err := proto.Unmarshal(encoded, recorded); err != nil {
		c.node.config.Logger.Error("cannot decode the settings of the cluster, the previous ones still apply", "version", version, "error", err)
		return
	}
	next := settingsOf(recorded)
	c.version = version
	c.current.Store(&next)
	c.node.system.SetLimits(actors.Limits(next.Limits))
	c.applyPaused(recorded.PausedActivities)
	c.node.system.SetActivityRates(next.activityRates(c.node.config.Partitions))
	c.node.system.SetActivityPlacement(placements[next.ActivityPlacement])
	c.changed.Notify()
	c.node.config.Logger.Info("cluster settings applied", "version", version)
}

// follow applies each change of the settings. When the replica first shows what a leader has
// recorded, it compares them with Config.Settings.
func (c *clusterSettings) follow() {
	first := c.node.partitions[0].journal
	changed, cancel := first.WatchSettings()
	defer cancel()
	for compared := false; ; {
		c.apply()
		for _, pa := range c.node.partitions {
			pa.journal.ReconcileVotes()
		}
		if _, version := first.Settings(); version > 0 && !compared {
			if c.node.poll(c.node.ctx, first.IsClockCurrent) != nil {
				return
			}
			c.apply()
			c.logDifference()
			compared = true
		}
		select {
		case <-changed:
		case <-c.node.closing:
			return
		}
	}
}

func (c *clusterSettings) logDifference() {
	if fields := c.node.config.Settings.statedDifferences(*c.current.Load()); len(fields) > 0 {
		c.node.config.Logger.Info("Config.Settings differ from the settings of the cluster, which apply: change those with Client.ChangeSettings or \"tenuto settings\"",
			"fields", strings.Join(fields, ","))
	}
}

// settingsCatchUpTimeout bounds how long a new leader of another partition waits for the first one.
const settingsCatchUpTimeout = 2 * time.Second

// await waits until this node may lead the partition: it applies all settings that were recorded
// before. If the first partition has no leader for a while, the settings are not older than the
// first ones that this node has seen of its present term.
func (c *clusterSettings) await(ctx context.Context, pa *partition) error {
	if pa.number == 0 {
		c.apply()
		return nil
	}
	first := c.node.partitions[0]
	limited, cancel := context.WithTimeout(ctx, settingsCatchUpTimeout)
	defer cancel()
	if first.catchUp(limited) != nil {
		// A node that the first partition has removed may still be needed in the others.
		if err := c.node.poll(ctx, func() bool { return first.journal.IsClockCurrent() || first.journal.Err() != nil }); err != nil {
			return err
		}
	}
	c.apply()
	return nil
}

// record records Config.Settings as the settings of the cluster, if none are recorded and every
// member can read them. It reports false if the leader must call it again.
func (c *clusterSettings) record(ctx context.Context, pa *partition) (done bool) {
	if _, version := pa.journal.Settings(); version > 0 || pa.number > 0 || c.node.config.protocol < journal.SettingsProtocol {
		return true
	}
	if pa.journal.Protocol() < journal.SettingsProtocol {
		return false
	}
	encoded, err := c.node.config.Settings.withDefaults().encode(new(journalpb.Settings))
	if err == nil {
		err = pa.journal.ChangeSettings(ctx, 1, encoded)
	}
	if err != nil && !errors.Is(err, errSettingsVersion) {
		if ctx.Err() == nil {
			c.node.config.Logger.Warn("cluster settings not recorded; trying again", "error", err)
		}
		return false
	}
	return true
}

// applyPaused applies which activities are paused.
func (c *clusterSettings) applyPaused(list []*journalpb.PausedActivity) {
	paused, names := make(map[string]*journalpb.PausedActivity, len(list)), make(map[string]bool, len(list))
	for _, one := range list {
		paused[one.Activity], names[one.Activity] = one, true
	}
	c.paused.Store(&paused)
	c.node.system.SetPausedActivities(names)
}

// pauseOf returns the pause of an activity, nil if it is not paused.
func (c *clusterSettings) pauseOf(name string) *journalpb.PausedActivity {
	if paused := c.paused.Load(); paused != nil {
		return (*paused)[name]
	}
	return nil
}

// payloadMax returns the size limit of a value, in bytes of JSON before the codec.
func (c *clusterSettings) payloadMax() int { return c.current.Load().PayloadMax }

// retentionPeriods returns how long ended instances are kept.
func (c *clusterSettings) retentionPeriods() retention.Periods {
	return retention.Periods(c.current.Load().Retention)
}

// activityRates returns the rates of one partition.
func (s *Settings) activityRates(partitions int) map[string]activity.Rate {
	rates := make(map[string]activity.Rate, len(s.ActivityRates))
	for name, rate := range s.ActivityRates {
		rates[name] = activity.Rate{PerSecond: rate.PerSecond / float64(partitions), Burst: (rate.Burst + partitions - 1) / partitions}
	}
	return rates
}
