package comparison

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/internal/statement"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

const (
	// RoundInterval is the time from the beginning of a background round to that of the next.
	RoundInterval = time.Hour
	// A range has at most so many instances, and is not continued after so many bytes.
	rangeInstancesMax = 512
	rangeBytesMax     = 1 << 20
	// viewMax bounds how long one view is compared.
	viewMax = 30 * time.Second
	// Bytes per second, and pauses in relation to the time that a node has computed: in the
	// background, and in a round that an operator asked for.
	backgroundRate, requestedRate   = 4 << 20, 64 << 20
	backgroundPause, requestedPause = 15, 1
	// Bounds of waits.
	viewTimeout    = 5 * time.Second // until the nodes have answered that they will have a view
	recordTimeout  = 10 * time.Second
	compareTimeout = time.Minute
	standbyTimeout = 10 * time.Second // for each range, of a standby
	retryInterval  = 2 * time.Second
	// tieInterval is how often instances that are stopped are compared, idleInterval how often a
	// leader looks for quarantines.
	tieInterval, idleInterval = 10 * time.Second, 5 * time.Second
	// Bounds of what a round keeps.
	suspectsMax = 100
	keptMax     = 1000
)

// A Config is what a leader needs.
type Config struct {
	Node      string
	Partition int
	Journal   *journal.Journal
	Dir       string // of the partition
	Epoch     uint64
	Ask       Ask
	// HandOver transfers leadership to another node.
	HandOver func(ctx context.Context) error
	// Retry makes an instance that was stopped proceed.
	Retry func(instance string)
	// Sign signs a statement; it sets cluster, lineage and partition.
	Sign   func(ctx context.Context, s *statement.Statement) (*clusterpb.SignedRoot, error)
	Stats  *Stats
	Logger *slog.Logger
	// Interval is RoundInterval, or less in tests.
	Interval time.Duration
	// Step is told the steps of repairs, in tests; nil otherwise.
	Step func(step string)
}

// The steps of a repair: of the leader, then of the node that is repaired.
const (
	StepQuarantined = "quarantined" // the quarantine is recorded
	StepPaused      = "paused"      // the node has a view, and is paused
	StepRepaired    = "repaired"    // the node says that it has replaced the instance
	StepCompared    = "compared"    // the replicas are equal
	StepLifted      = "lifted"      // the end of the quarantine is recorded
	StepAsked       = "asked"       // the node has the request
	StepRead        = "read"        // it has read the copy
	StepReplaced    = "replaced"    // it has replaced the instance in memory
)

func (l *Leader) step(name string) {
	if l.config.Step != nil {
		l.config.Step(name)
	}
}

// Stats are of all leaderships of a node in a partition.
type Stats struct {
	Instances, Bytes, Differences, Repairs atomic.Uint64
	// Since is when the last complete round ended, or the leadership began, in Unix nanoseconds; 0
	// where the node does not lead. Took is how long that round took, in nanoseconds.
	Since, Took atomic.Int64
}

// A Leader compares the replicas of a partition during one leadership.
type Leader struct {
	config Config
	wake   chan struct{}

	accepting sync.Mutex // held by Accept

	mu        sync.Mutex
	round     clusterpb.VerifyStatus // the latest requested one, if its number is not 0
	requested bool                   // a requested round is in progress
	cursor    string                 // where the round in progress continues
	whole     bool                   // this leadership has compared it from its beginning
	began     time.Time

	proofs chan *proofRequest
	ended  chan struct{} // closed when Run has returned

	// Used by Run only.
	examined time.Time // when instances that are stopped were last compared
	signed   signedRounds
}

// NewLeader returns a Leader, whose Run must be called.
func NewLeader(config Config) *Leader {
	_, cursor := config.Journal.Comparison()
	return &Leader{
		config: config, wake: make(chan struct{}, 1), proofs: make(chan *proofRequest, proofsMax), ended: make(chan struct{}),
		signed: signedRounds{dir: config.Dir}, cursor: cursor,
	}
}

// Run compares, repairs and signs until ctx ends. It must be called once.
func (l *Leader) Run(ctx context.Context) {
	defer func() {
		close(l.ended)
		if err := l.signed.close(); err != nil {
			l.config.Logger.Warn("files with signed roots not removed", "partition", l.config.Partition, "error", err)
		}
	}()
	l.config.Stats.Since.Store(time.Now().UnixNano())
	defer l.config.Stats.Since.Store(0)
	next := time.Now()
	if _, cursor := l.config.Journal.Comparison(); cursor == "" {
		next = next.Add(l.config.Interval / 60)
	}
	for ctx.Err() == nil {
		l.answerProofs(ctx)
		wait := time.Until(next)
		if l.config.Journal.Protocol() < journal.ComparisonProtocol {
			wait = retryInterval // older members would ignore the records
			l.setWaits("a member does not speak protocol 4")
		} else {
			if l.handleQuarantines(ctx) {
				wait = min(wait, retryInterval)
			}
			if l.isRequested() || !time.Now().Before(next) {
				done, err := l.compareBatch(ctx)
				switch {
				case ctx.Err() != nil:
					return
				case err != nil:
					l.setWaits(err.Error())
					l.config.Logger.Debug("replicas not compared, trying again", "partition", l.config.Partition, "error", err)
					wait = retryInterval
				case done:
					next = l.began.Add(l.config.Interval)
					wait = min(time.Until(next), retryInterval)
				default:
					wait = 0
				}
			}
		}
		l.sleep(ctx, min(wait, idleInterval))
	}
}

func (l *Leader) sleep(ctx context.Context, wait time.Duration) {
	timer := time.NewTimer(max(wait, 0))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.wake:
	case <-ctx.Done():
	}
}

func (l *Leader) isRequested() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.requested
}

// position returns where the round in progress continues.
func (l *Leader) position() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cursor
}

func (l *Leader) setWaits(reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.round.Waits = reason
}

// Verify begins the round that a request asks for, and returns how far it is.
func (l *Leader) Verify(r *clusterpb.VerifyRequest) *clusterpb.VerifyStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case r.Round != 0 && r.Round != l.round.Round:
		return &clusterpb.VerifyStatus{Epoch: l.config.Epoch}
	case r.Round == 0 && !l.requested:
		l.round = clusterpb.VerifyStatus{Round: l.round.Round + 1, Epoch: l.config.Epoch}
		l.requested, l.whole, l.cursor = true, false, ""
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	return &clusterpb.VerifyStatus{
		Round: l.round.Round, Epoch: l.round.Epoch, Done: l.round.Done, Instances: l.round.Instances, Events: l.round.Events, Bytes: l.round.Bytes,
		Replicas: l.round.Replicas, Voters: l.round.Voters, Standbys: l.round.Standbys, Waits: l.round.Waits,
		Differences: append([]*clusterpb.Difference(nil), l.round.Differences...), Roots: append([]*clusterpb.SignedRoot(nil), l.round.Roots...),
	}
}

// A comparedSet is the members whose views of one comparison are compared.
type comparedSet struct {
	number  uint64
	voters  int              // of the partition, whether they take part or not
	answers []journal.Member // those that take part, this node first
}

// votersAnswered returns how many voters take part.
func (s *comparedSet) votersAnswered() (n int) {
	for _, m := range s.answers {
		if m.Voter {
			n++
		}
	}
	return n
}

// withViews records a comparison and calls f with the members that have a view of it. Nodes that
// have none, or do not answer, take no part. The node pause is paused.
func (l *Leader) withViews(ctx context.Context, from, pause string, f func(*comparedSet) error) error {
	number, _ := l.config.Journal.Comparison()
	set := &comparedSet{number: number + 1}
	var members []journal.Member
	for _, m := range l.config.Journal.Members() {
		if m.Voter {
			set.voters++
		}
		if m.Node == l.config.Node {
			members = append([]journal.Member{m}, members...)
		} else {
			members = append(members, m)
		}
	}
	if set.voters == 0 || members[0].Node != l.config.Node {
		return journal.ErrNotLeader
	}
	limited, cancel := context.WithTimeout(ctx, viewTimeout)
	asked := each(members, func(m journal.Member) error {
		_, err := l.config.Ask(limited, m.Node, m.Address, &clusterpb.Request{Call: &clusterpb.Request_View{View: &clusterpb.ViewRequest{
			Node: m.Node, Number: set.number, Pause: m.Node == pause,
		}}})
		return err
	})
	cancel()
	for i, m := range members {
		if asked[i] == nil {
			set.answers = append(set.answers, m)
		}
	}
	defer l.endViews(ctx, members, set.number)
	if asked[0] != nil {
		return asked[0]
	}
	limited, cancel = context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	if err := l.config.Journal.RecordComparison(limited, set.number, from); err != nil {
		return err
	}
	return f(set)
}

func (l *Leader) endViews(ctx context.Context, members []journal.Member, number uint64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), retryInterval)
	defer cancel()
	each(members, func(m journal.Member) error {
		_, err := l.config.Ask(ctx, m.Node, m.Address, &clusterpb.Request{Call: &clusterpb.Request_EndView{EndView: &clusterpb.EndViewRequest{Node: m.Node, Number: number}}})
		return err // without an answer, the lease ends the view
	})
}

// each calls f with each member at the same time, and returns the errors in their order.
func each(members []journal.Member, f func(journal.Member) error) []error {
	errs := make([]error, len(members))
	var calls sync.WaitGroup
	for i, m := range members {
		calls.Go(func() { errs[i] = f(m) })
	}
	calls.Wait()
	return errs
}

// compare returns the digests of a range, by node; with ownEach, that of this node has each
// instance. It sets r.To to where the range ends on this node. Nodes that do not answer are removed
// from the set; the error is that of this node, or of ctx.
func (l *Leader) compare(ctx context.Context, set *comparedSet, r *clusterpb.CompareRequest, ownEach bool) (map[string]*clusterpb.RangeDigest, error) {
	limited, cancel := context.WithTimeout(ctx, compareTimeout)
	defer cancel()
	digests, mu := make(map[string]*clusterpb.RangeDigest), sync.Mutex{}
	ask := func(m journal.Member) error {
		timeout := compareTimeout
		if !m.Voter {
			timeout = standbyTimeout
		}
		asking, cancel := context.WithTimeout(limited, timeout)
		defer cancel()
		request := &clusterpb.CompareRequest{Node: m.Node, Number: set.number, From: r.From, To: r.To, InstancesMax: r.InstancesMax, BytesMax: r.BytesMax, Each: r.Each || ownEach && m.Node == l.config.Node}
		response, err := l.config.Ask(asking, m.Node, m.Address, &clusterpb.Request{Call: &clusterpb.Request_Compare{Compare: request}})
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		digests[m.Node] = response.GetCompare()
		return nil
	}
	if err := ask(set.answers[0]); err != nil {
		return nil, err
	}
	// The others compare up to where this node's range ends.
	r.To, r.InstancesMax, r.BytesMax = digests[l.config.Node].To, 0, 0
	kept := set.answers[:1:1]
	for i, err := range each(set.answers[1:], ask) {
		if err == nil {
			kept = append(kept, set.answers[i+1])
		}
	}
	if err := ctx.Err(); err != nil { // this leadership ends: the nodes may have answered
		return nil, err
	}
	set.answers = kept
	return digests, nil
}

// compareBatch compares ranges at one comparison, and then acts on the instances that differ. done
// says that a round is complete.
func (l *Leader) compareBatch(ctx context.Context) (done bool, err error) {
	from, requested := l.beginBatch()
	var suspects []string
	to, deadline := from, time.Now().Add(viewMax)
	leaves := l.signed.newLeaves()
	err = l.withViews(ctx, from, "", func(set *comparedSet) error {
		index := uint64(0)
		for {
			r := &clusterpb.CompareRequest{From: to, InstancesMax: rangeInstancesMax, BytesMax: rangeBytesMax}
			digests, err := l.compare(ctx, set, r, true)
			if err != nil {
				return err
			}
			own := digests[l.config.Node]
			if differ(digests) {
				found, err := l.suspectsIn(ctx, set, to, r.To)
				if err != nil {
					return err
				}
				suspects = append(suspects, found...)
			}
			leaves.add(own)
			index, to = own.Index, own.To
			l.count(set, own)
			if to == "" || time.Now().After(deadline) || len(suspects) >= suspectsMax || len(l.proofs) > 0 {
				break
			}
			l.pace(ctx, requested, own.Bytes, digests)
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		if len(suspects) == 0 {
			l.signBatch(ctx, set, &statement.Statement{Index: index, From: from, To: to}, leaves, requested)
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	for _, instance := range suspects {
		if err := l.examine(ctx, instance); err != nil {
			return false, err
		}
	}
	return l.endBatch(requested, to), nil
}

// beginBatch returns where the round continues, and whether it was asked for.
func (l *Leader) beginBatch() (from string, requested bool) {
	l.mu.Lock()
	if l.cursor == "" {
		l.whole = true
	}
	begins := l.cursor == "" || l.began.IsZero()
	if begins {
		l.began = time.Now()
	}
	from, requested = l.cursor, l.requested
	l.mu.Unlock()
	if !begins {
		return from, requested
	}
	if err := l.signed.begin(); err != nil {
		l.config.Logger.Warn("no file for signed roots; a proof compares again", "partition", l.config.Partition, "error", err)
	}
	return from, requested
}

// endBatch records where the round continues, and reports whether it is complete.
func (l *Leader) endBatch(requested bool, to string) (done bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.requested != requested {
		return false // another round was asked for meanwhile
	}
	l.cursor, l.round.Waits = to, ""
	if to != "" {
		return false
	}
	if l.whole {
		l.config.Stats.Took.Store(int64(time.Since(l.began)))
	}
	l.config.Stats.Since.Store(time.Now().UnixNano())
	if requested {
		l.requested, l.round.Done = false, true
	}
	return true
}

// differ reports whether digests differ, or one shows damage.
func differ(digests map[string]*clusterpb.RangeDigest) bool {
	var first []byte
	for _, d := range digests {
		damaged := slices.ContainsFunc(d.Each, func(of *clusterpb.InstanceDigest) bool { return of.Damage != "" })
		if damaged || first != nil && !bytes.Equal(first, d.Digest) {
			return true
		}
		first = d.Digest
	}
	return false
}

func (l *Leader) count(set *comparedSet, own *clusterpb.RangeDigest) {
	l.config.Stats.Instances.Add(own.Instances)
	l.config.Stats.Bytes.Add(own.Bytes)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.requested {
		return
	}
	s := &l.round
	s.Instances, s.Events, s.Bytes = s.Instances+own.Instances, s.Events+own.Events, s.Bytes+own.Bytes
	n := uint32(set.votersAnswered())
	standbys := uint32(len(set.answers)) - n
	if s.Replicas == 0 {
		s.Replicas, s.Standbys = n, standbys
	}
	s.Replicas, s.Standbys = min(s.Replicas, n), min(s.Standbys, standbys)
	s.Voters, s.Waits = uint32(set.voters), ""
}

// pace pauses so that the bounds of the package comment hold.
func (l *Leader) pace(ctx context.Context, requested bool, size uint64, digests map[string]*clusterpb.RangeDigest) {
	rate, share := uint64(backgroundRate), int64(backgroundPause)
	if requested {
		rate, share = requestedRate, requestedPause
	}
	took := int64(0)
	for _, d := range digests {
		took = max(took, d.Took)
	}
	timer := time.NewTimer(max(time.Duration(float64(size)/float64(rate)*float64(time.Second)), time.Duration(took*share)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// suspectsIn returns the instances of a range that differ or are damaged.
func (l *Leader) suspectsIn(ctx context.Context, set *comparedSet, from, to string) (suspects []string, err error) {
	digests, err := l.compare(ctx, set, &clusterpb.CompareRequest{From: from, To: to, Each: true}, false)
	if err != nil {
		return nil, err
	}
	if to != "" && digests[l.config.Node].To != to {
		return nil, errors.New("the range changed")
	}
	first := make(map[string][]byte) // the digest of the first replica that has the instance
	equal := make(map[string]int)    // how many replicas have that digest
	damaged := make(map[string]bool)
	var all []string
	for _, m := range set.answers {
		for _, d := range digests[m.Node].GetEach() {
			if _, known := first[d.Instance]; !known {
				first[d.Instance] = d.Digest
				all = append(all, d.Instance)
			}
			if bytes.Equal(first[d.Instance], d.Digest) {
				equal[d.Instance]++
			}
			damaged[d.Instance] = damaged[d.Instance] || d.Damage != ""
		}
	}
	for _, instance := range all {
		if damaged[instance] || equal[instance] != len(set.answers) {
			suspects = append(suspects, instance)
		}
	}
	return suspects, nil
}

// keep adds a difference to the requested round.
func (l *Leader) keep(d *clusterpb.Difference) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.requested && len(l.round.Differences) < keptMax {
		l.round.Differences = append(l.round.Differences, d)
	}
}

// markRepaired marks the differences of a replica in the requested round.
func (l *Leader) markRepaired(q *journalpb.Quarantine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, d := range l.round.Differences {
		if d.Instance == q.Instance && d.Node == q.Node {
			l.round.Differences[i] = &clusterpb.Difference{Instance: d.Instance, Node: d.Node, Execution: d.Execution, EventId: d.EventId, Reason: d.Reason, Repaired: true}
		}
	}
}
