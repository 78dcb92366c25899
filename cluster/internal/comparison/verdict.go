package comparison

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A vote is what one replica has of an instance. The digest is empty if it does not have it.
type vote struct {
	node    string
	standby bool // it is compared, and does not count
	digest  []byte
	damage  *clusterpb.InstanceDigest // nil if it does not contradict itself
}

// A verdict says which replicas of an instance are right and which are not. With neither, there is
// a tie.
type verdict struct{ right, wrong []vote }

func (v verdict) isTie() bool { return len(v.right) == 0 }

// decide returns the verdict of votes, of so many voters.
func decide(votes []vote, voters int) (v verdict) {
	var groups [][]vote
	var damaged []vote
	for _, of := range votes {
		if of.damage != nil {
			damaged = append(damaged, of)
			continue
		}
		at := slices.IndexFunc(groups, func(g []vote) bool { return bytes.Equal(g[0].digest, of.digest) })
		if at < 0 {
			groups = append(groups, []vote{of})
			continue
		}
		groups[at] = append(groups[at], of)
	}
	right := slices.IndexFunc(groups, func(g []vote) bool { return 2*votersIn(g) > voters })
	if right < 0 {
		right = slices.IndexFunc(groups, hasVoter)
		if right < 0 || slices.ContainsFunc(groups[right+1:], hasVoter) {
			return verdict{}
		}
	}
	v.right, v.wrong = groups[right], damaged
	for i, g := range groups {
		if i != right {
			v.wrong = append(v.wrong, g...)
		}
	}
	return v
}

// votersIn returns how many of votes are those of voters.
func votersIn(votes []vote) (n int) {
	for _, of := range votes {
		if !of.standby {
			n++
		}
	}
	return n
}

func hasVoter(votes []vote) bool { return votersIn(votes) > 0 }

// votesOn returns what the replicas have of an instance.
func (l *Leader) votesOn(ctx context.Context, set *comparedSet, instance string) (votes []vote, err error) {
	digests, err := l.compare(ctx, set, &clusterpb.CompareRequest{From: instance, To: instance + "\x00", Each: true}, false)
	if err != nil {
		return nil, err
	}
	for _, m := range set.answers {
		v := vote{node: m.Node, standby: !m.Voter}
		for _, d := range digests[m.Node].GetEach() {
			v.digest = d.Digest
			if d.Damage != "" {
				v.damage = d
			}
		}
		votes = append(votes, v)
	}
	return votes, nil
}

// examine compares an instance at a comparison of its own, and acts on the result.
func (l *Leader) examine(ctx context.Context, instance string) error {
	from := l.position()
	return l.withViews(ctx, from, "", func(set *comparedSet) error {
		votes, err := l.votesOn(ctx, set, instance)
		if err != nil {
			return err
		}
		v := decide(votes, set.voters)
		switch {
		case v.isTie() && set.voters == 1:
			l.report(l.locate(ctx, set, instance, votes[0], votes[0]), "replica damaged: it contradicts itself, and there is no other voter to repair it from; restore a backup")
			return nil
		case v.isTie():
			return l.stop(ctx, set, instance, votes)
		}
		for _, wrong := range v.wrong {
			if err := l.quarantine(ctx, l.locate(ctx, set, instance, wrong, v.right[0])); err != nil {
				return err
			}
		}
		return l.lift(ctx, instance, v.right)
	})
}

// locate returns the quarantine of a replica, with the first difference from another one.
func (l *Leader) locate(ctx context.Context, set *comparedSet, instance string, wrong, right vote) *journalpb.Quarantine {
	q := &journalpb.Quarantine{Instance: instance, Node: wrong.node}
	if d := wrong.damage; d != nil {
		q.Execution, q.EventId, q.Reason = d.Execution, d.EventId, d.Damage
		return q
	}
	if err := l.locateEvent(ctx, set, q, right.node); err != nil {
		q.Reason = "the replicas differ; the event is unknown: " + err.Error()
	}
	return q
}

// locateEvent sets where a replica first differs from that of another node, and how.
func (l *Leader) locateEvent(ctx context.Context, set *comparedSet, q *journalpb.Quarantine, other string) error {
	events, err := l.eventsOf(ctx, set, q, q.Node, other)
	if err != nil {
		return err
	}
	a, b := events[0].GetExecutions(), events[1].GetExecutions()
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) {
			q.Execution, q.EventId = uint64(i)+1, 1
			q.Reason = fmt.Sprintf("it has %d executions, node %s has %d", len(a), other, len(b))
			return nil
		}
		q.Execution = a[i].Number
		if !bytes.Equal(a[i].Digest, b[i].Digest) {
			return l.locateInExecution(ctx, set, q, other)
		}
	}
	q.Reason = "the header differs, the events are equal"
	return nil
}

// locateInExecution sets the first event that differs in the execution of a quarantine.
func (l *Leader) locateInExecution(ctx context.Context, set *comparedSet, q *journalpb.Quarantine, other string) error {
	for q.EventId = 1; ; {
		events, err := l.eventsOf(ctx, set, q, q.Node, other)
		if err != nil {
			return err
		}
		a, b := events[0].GetHashes(), events[1].GetHashes()
		n, same := min(len(a), len(b))/8, 0
		for same < n && binary.BigEndian.Uint64(a[8*same:]) == binary.BigEndian.Uint64(b[8*same:]) {
			same++
		}
		q.EventId += uint64(same)
		if same < n || n == 0 || len(a) != len(b) {
			q.Reason = fmt.Sprintf("event %d differs from that of node %s", q.EventId, other)
			return nil
		}
	}
}

// eventsOf asks nodes for the executions of the instance of a quarantine and, if the quarantine
// names an execution, for the hashes of its events, from the named event on.
func (l *Leader) eventsOf(ctx context.Context, set *comparedSet, q *journalpb.Quarantine, nodes ...string) (events []*clusterpb.EventHashes, err error) {
	for _, node := range nodes {
		at := slices.IndexFunc(set.answers, func(m journal.Member) bool { return m.Node == node })
		if at < 0 {
			return nil, fmt.Errorf("node %s does not answer", node)
		}
		limited, cancel := context.WithTimeout(ctx, compareTimeout)
		response, err := l.config.Ask(limited, node, set.answers[at].Address, &clusterpb.Request{Call: &clusterpb.Request_CompareEvents{
			CompareEvents: &clusterpb.CompareEventsRequest{Node: node, Number: set.number, Instance: q.Instance, Execution: q.Execution, From: q.EventId},
		}})
		cancel()
		if err != nil {
			return nil, err
		}
		events = append(events, response.GetCompareEvents())
	}
	return events, nil
}

// report logs a difference and adds it to the requested round. message says what happens next.
func (l *Leader) report(q *journalpb.Quarantine, message string) {
	l.config.Stats.Differences.Add(1)
	l.keep(&clusterpb.Difference{Instance: q.Instance, Node: q.Node, Execution: q.Execution, EventId: q.EventId, Reason: q.Reason})
	l.config.Logger.Error(message, "differing", q.Node, "partition", l.config.Partition, "instance", q.Instance,
		"execution", q.Execution, "event_id", q.EventId, "reason", q.Reason)
}

// quarantineOf returns the quarantine of a node's replica of an instance, or with node "" the
// record that the instance is stopped; nil if there is none.
func (l *Leader) quarantineOf(instance, node string) *journalpb.Quarantine {
	for _, q := range l.config.Journal.Quarantines() {
		if q.Instance == instance && q.Node == node {
			return q
		}
	}
	return nil
}

func (l *Leader) quarantine(ctx context.Context, q *journalpb.Quarantine) error {
	if l.quarantineOf(q.Instance, q.Node) != nil {
		return nil // it is being repaired
	}
	l.report(q, "replicas differ: a majority agrees, so this one is quarantined and repaired")
	if err := l.config.Journal.Quarantine(ctx, q); err != nil {
		return err
	}
	l.step(StepQuarantined)
	return nil
}

// stop stops an instance on which no majority agrees.
func (l *Leader) stop(ctx context.Context, set *comparedSet, instance string, votes []vote) error {
	if l.quarantineOf(instance, "") != nil {
		return nil
	}
	for _, v := range votes[1:] {
		if !v.standby && (v.damage != nil || !bytes.Equal(v.digest, votes[0].digest)) {
			q := l.locate(ctx, set, instance, v, votes[0])
			q.Node = ""
			l.report(q, "replicas differ: no majority agrees, so the instance is stopped until an operator accepts a replica (tenuto accept)")
			l.setCondition(ctx, instance, &journalpb.Condition{
				Kind: journalpb.ConditionKind_CONDITION_KIND_STALLED, Mismatch: ReplicasDisagree, EventId: q.EventId, Expected: ExpectedReplicas, Found: q.Reason,
			})
			return l.config.Journal.Quarantine(ctx, q)
		}
	}
	return nil
}

// ReplicasDisagree is the kind of mismatch of an instance that is stopped, ExpectedReplicas what it
// expects.
const (
	ReplicasDisagree = "replicas disagree"
	ExpectedReplicas = "the same on a majority of nodes; accept one with: tenuto accept"
)

// setCondition records why a running instance does not proceed, or that it can, for nil. If that is
// not recorded, the instance shows it when it next has input.
func (l *Leader) setCondition(ctx context.Context, instance string, condition *journalpb.Condition) {
	known, ok := l.config.Journal.Instance(instance)
	if !ok || known.Status != journalpb.Status_STATUS_RUNNING || condition == nil && known.Condition.GetMismatch() != ReplicasDisagree {
		return
	}
	done := make(chan struct{})
	l.config.Journal.SetCondition(&journalpb.SetCondition{
		Instance: instance, Epoch: l.config.Epoch, Incarnation: known.Incarnation, Execution: known.Execution,
		LastEventId: known.LastEventId, Condition: condition,
	}, func(error) { close(done) })
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// lift ends the quarantines of the replicas that are right, and lets a stopped instance go on.
func (l *Leader) lift(ctx context.Context, instance string, right []vote) error {
	for _, v := range right {
		q := l.quarantineOf(instance, v.node)
		if q == nil {
			continue
		}
		if err := l.config.Journal.LiftQuarantine(ctx, instance, v.node); err != nil {
			return err
		}
		l.step(StepLifted)
		l.markRepaired(q)
		l.config.Stats.Repairs.Add(1)
		l.config.Logger.Info("replica repaired: it agrees with the majority again", "repaired", v.node, "partition", l.config.Partition, "instance", instance)
	}
	if l.quarantineOf(instance, "") == nil {
		return nil
	}
	if err := l.config.Journal.LiftQuarantine(ctx, instance, ""); err != nil {
		return err
	}
	l.config.Logger.Info("instance goes on: a majority of its replicas agrees", "partition", l.config.Partition, "instance", instance)
	l.setCondition(ctx, instance, nil)
	l.config.Retry(instance)
	return nil
}

// handleQuarantines repairs what is quarantined, one replica after another: a node has one view of
// a partition at a time. Proofs that wait are answered in between. A node that does not answer is
// asked once. It reports whether it must be called again.
func (l *Leader) handleQuarantines(ctx context.Context) (again bool) {
	all := l.config.Journal.Quarantines()
	for _, q := range all {
		if q.Node == l.config.Node {
			if err := handOver(ctx, l, q); err != nil && ctx.Err() == nil {
				l.config.Logger.Warn("partition not handed over, trying again", "partition", l.config.Partition, "error", err)
			}
			return true
		}
	}
	tiesDue, silent := time.Since(l.examined) >= tieInterval, make(map[string]bool)
	for _, q := range all {
		l.answerProofs(ctx)
		if ctx.Err() != nil {
			return false
		}
		members := l.config.Journal.Members()
		at := slices.IndexFunc(members, func(m journal.Member) bool { return m.Node == q.Node })
		var err error
		switch {
		case q.Node == "" && !tiesDue:
		case q.Node == "":
			l.examined = time.Now()
			err = l.examine(ctx, q.Instance)
		case at < 0:
			err = l.config.Journal.LiftQuarantine(ctx, q.Instance, q.Node)
		case silent[q.Node], l.quarantineOf(q.Instance, "") != nil:
			// It has no view, or there is no replica to copy yet.
		default:
			err = l.repair(ctx, q)
		}
		if err != nil && ctx.Err() == nil {
			silent[q.Node] = silent[q.Node] || errors.Is(err, errSilent)
			l.config.Logger.Warn("replica not repaired yet, trying again", "differing", q.Node, "partition", l.config.Partition, "instance", q.Instance, "error", err)
		}
	}
	return slices.ContainsFunc(l.config.Journal.Quarantines(), func(q *journalpb.Quarantine) bool { return q.Node != "" })
}

// handOver hands the partition over, because this node's replica of an instance is quarantined. If
// those of all voters are, none can be copied: it stops the instance again until an operator
// accepts a replica.
func handOver(ctx context.Context, l *Leader, own *journalpb.Quarantine) error {
	voters := votersOf(l.config.Journal)
	if slices.ContainsFunc(voters, func(node string) bool { return l.quarantineOf(own.Instance, node) == nil }) {
		l.config.Logger.Warn("handing partition over: this node's replica of an instance is quarantined", "partition", l.config.Partition, "instance", own.Instance)
		return l.config.HandOver(ctx)
	}
	l.config.Logger.Error("no voter has a replica to copy, so the instance is stopped until an operator accepts a replica (tenuto accept)",
		"partition", l.config.Partition, "instance", own.Instance)
	stopped := &journalpb.Quarantine{Instance: own.Instance, Reason: "the replicas of all voters are quarantined"}
	if err := l.config.Journal.Quarantine(ctx, stopped); err != nil {
		return err
	}
	for _, node := range voters {
		if err := l.config.Journal.LiftQuarantine(ctx, own.Instance, node); err != nil {
			return err
		}
	}
	return nil
}

func votersOf(j *journal.Journal) (voters []string) {
	for _, m := range j.Members() {
		if m.Voter {
			voters = append(voters, m.Node)
		}
	}
	return voters
}

// errSilent means that a node has no view, or has not answered.
var errSilent = errors.New("the node does not answer or had no view")

// errNotSource means that this node's replica must not be copied.
var errNotSource = errors.New("this node's replica is not that of the majority")

// repair replaces a quarantined replica by this node's, and compares again.
func (l *Leader) repair(ctx context.Context, q *journalpb.Quarantine) error {
	from := l.position()
	err := l.withViews(ctx, from, q.Node, func(set *comparedSet) error {
		votes, err := l.votesOn(ctx, set, q.Instance)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(set.answers, func(m journal.Member) bool { return m.Node == q.Node })
		if at < 0 {
			return fmt.Errorf("node %s: %w", q.Node, errSilent)
		}
		// A replica that all voters were compared with is copied after a tie only if it was
		// accepted.
		v := decide(votes, set.voters)
		if v.isTie() && q.Accepted != l.config.Node && set.votersAnswered() == set.voters || !v.allows(l.config.Node) {
			return errNotSource
		}
		l.step(StepPaused)
		ctx, cancel := context.WithTimeout(ctx, compareTimeout)
		defer cancel()
		_, err = l.config.Ask(ctx, q.Node, set.answers[at].Address, &clusterpb.Request{Call: &clusterpb.Request_Repair{Repair: &clusterpb.RepairRequest{
			Node: q.Node, Number: set.number, Instance: q.Instance, Source: l.config.Node, SourceAddress: set.answers[0].Address,
		}}})
		return err
	})
	if errors.Is(err, errNotSource) {
		return errors.Join(err, l.examine(ctx, q.Instance)) // it quarantines this node's, or stops the instance
	}
	if err != nil {
		return err
	}
	l.step(StepRepaired)
	return l.examineRepaired(ctx, q)
}

// allows reports whether a node's replica may be copied. After a tie, an operator has chosen.
func (v verdict) allows(node string) bool {
	return v.isTie() || slices.ContainsFunc(v.right, func(of vote) bool { return of.node == node })
}

// examineRepaired compares a replica with this node's, and ends its quarantine if they are equal.
func (l *Leader) examineRepaired(ctx context.Context, q *journalpb.Quarantine) error {
	from := l.position()
	return l.withViews(ctx, from, "", func(set *comparedSet) error {
		votes, err := l.votesOn(ctx, set, q.Instance)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(votes, func(v vote) bool { return v.node == q.Node })
		if at < 0 || votes[at].damage != nil || votes[0].damage != nil || !bytes.Equal(votes[at].digest, votes[0].digest) {
			return fmt.Errorf("node %s does not answer, or differs still", q.Node)
		}
		l.step(StepCompared)
		return l.lift(ctx, q.Instance, votes[at:at+1])
	})
}

// Accept makes the replica of a voter the right one for a stopped instance: those of the other
// members are quarantined, and repaired from it. The error is journal.ErrNotMember for a node
// without a vote: it cannot lead, so its replica cannot be copied.
func (l *Leader) Accept(ctx context.Context, instance, node string) error {
	l.accepting.Lock()
	defer l.accepting.Unlock()
	if l.quarantineOf(instance, "") == nil {
		return ErrNotStopped
	}
	voters := votersOf(l.config.Journal)
	if !slices.Contains(voters, node) {
		return fmt.Errorf("%w: node %.100q has no vote; accept the replica of a voter, of which there are %v", journal.ErrNotMember, node, voters)
	}
	// It can be quarantined since before the tie, or by an earlier call that has failed.
	if l.quarantineOf(instance, node) != nil {
		if err := l.config.Journal.LiftQuarantine(ctx, instance, node); err != nil {
			return err
		}
	}
	for _, m := range l.config.Journal.Members() {
		if m.Node == node {
			continue
		}
		q := &journalpb.Quarantine{Instance: instance, Node: m.Node, Accepted: node, Reason: "an operator accepted the replica of node " + node}
		if err := l.config.Journal.Quarantine(ctx, q); err != nil {
			return err
		}
	}
	if err := l.config.Journal.LiftQuarantine(ctx, instance, ""); err != nil {
		return err
	}
	l.setCondition(ctx, instance, nil)
	l.config.Retry(instance)
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return nil
}
