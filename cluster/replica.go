package cluster

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"iter"
	"math"
	"runtime/debug"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/cluster/internal/backup"
	"github.com/tenuto-dev/tenuto/cluster/internal/comparison"
	"github.com/tenuto-dev/tenuto/cluster/internal/statement"
	"github.com/tenuto-dev/tenuto/internal/lineage"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// Remote clients wait by long polling. Any node answers such a call from its replica, after a
// bounded time. Each call carries its position, so the next one, at any node, misses nothing.
const (
	// How long a node holds such a call.
	pollTimeout = 5 * time.Second
	// Bounds of one answer: events, and approximate bytes of them.
	pollEventsMax = 256
	pollBytesMax  = 1 << 20
	// How long a node holds a request for the members while it has no newer ones, and how often it
	// checks.
	membersPollTimeout  = 2 * time.Second
	membersPollInterval = 100 * time.Millisecond
)

// replicaCalls answers the calls that any node may answer, from its replicas.
type replicaCalls struct{ node *Node }

// answerLocally answers what any node may answer. It returns nil if the leader must answer.
func (r *replicaCalls) answerLocally(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	kind := kindOf(request)
	answer := kind.local
	switch {
	case answer == nil && request.Stale:
		answer = (*replicaCalls).readStale
	case answer == nil, kind.leaderFirst && !request.Stale && r.otherNodesLead(request):
		return nil, nil
	}
	if err := r.awaitSeenIndexes(ctx, request); err != nil {
		return nil, err
	}
	if refusesRead(r.node, request) {
		return nil, journal.ErrNotLeader // another node will answer
	}
	response, err := answer(r, ctx, request)
	if errors.Is(err, ErrClosed) {
		err = journal.ErrNotLeader // another node will answer
	}
	if err == nil {
		response.AppliedIndex = max(response.AppliedIndex, request.SeenIndex)
	}
	return response, err
}

func (r *replicaCalls) readStale(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	return r.node.router.readStale(ctx, request)
}

// otherNodesLead reports whether another node may lead a partition that the request concerns.
func (r *replicaCalls) otherNodesLead(request *clusterpb.Request) bool {
	return r.node.scatter.concernsAllPartitions(request) || r.node.partitionFor(request).hasOtherLeader()
}

// awaitSeenIndexes waits up to catchUpTimeout until this node has applied what the caller has seen.
func (r *replicaCalls) awaitSeenIndexes(ctx context.Context, request *clusterpb.Request) error {
	ctx, cancel := context.WithTimeout(ctx, catchUpTimeout)
	defer cancel()
	err := r.node.poll(ctx, func() bool { return r.node.partitionFor(request).journal.AppliedIndex() >= request.SeenIndex })
	if len(request.SeenIndexes) == len(r.node.partitions) {
		for i, seen := range request.SeenIndexes {
			err = firstError(err, r.node.poll(ctx, func() bool { return r.node.partitions[i].journal.AppliedIndex() >= seen }))
		}
	}
	if err != nil {
		return journal.ErrNotLeader // a node that is less behind will answer
	}
	return nil
}

func (r *replicaCalls) pollWait(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	soon, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	g := r.node.partitionOf(request.Instance)
	run := runRef{request.GetWait().GetFirstExecution(), request.GetWait().GetIncarnation()}
	status, err := g.waits.await(soon, request.Instance, run)
	if err != nil && !timedOut(ctx, soon) {
		return nil, err
	}
	return &clusterpb.Response{
		AppliedIndex: g.journal.AppliedIndex(),
		Result:       &clusterpb.Response_Wait{Wait: &clusterpb.WaitResult{Status: status}},
	}, nil
}

// timedOut reports whether the context of a call has ended, but not that of its caller.
func timedOut(caller, call context.Context) bool { return call.Err() != nil && caller.Err() == nil }

func (r *replicaCalls) pollWatch(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	g, asked := r.node.partitionOf(request.Instance), request.GetWatch()
	soon, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	result, size := new(clusterpb.WatchResult), 0
	f := &historyWatcher{partition: g, id: request.Instance, next: history.Position{Execution: asked.Execution, EventID: asked.EventId}}
	if asked.Run != nil {
		f.watchedRun = &journalpb.Instance{FirstExecution: asked.Run.FirstExecution, CreatedAt: asked.Run.CreatedAt}
	}
	var encodeErr error
	f.yield = func(r recordedEvent) bool {
		var encoded []byte
		if encoded, encodeErr = proto.Marshal(r.message); encodeErr != nil {
			return false
		}
		result.Events = append(result.Events, &clusterpb.WatchedEvent{Execution: r.execution, Event: encoded})
		size += len(encoded)
		return len(result.Events) < pollEventsMax && size < pollBytesMax
	}
	// Recorded events are sent at once, without waiting for more.
	f.shouldPause = func() bool { return len(result.Events) > 0 }
	err := f.run(soon)
	switch {
	case encodeErr != nil:
		return nil, encodeErr
	case err == nil:
		result.Ended = true
	case err != errReaderStopped && !timedOut(ctx, soon):
		return nil, err
	}
	result.Execution, result.EventId = f.next.Execution, f.next.EventID
	if f.watchedRun != nil {
		result.Run = &clusterpb.WatchedRun{FirstExecution: f.watchedRun.FirstExecution, CreatedAt: f.watchedRun.CreatedAt}
	}
	return &clusterpb.Response{
		AppliedIndex: g.journal.AppliedIndex(),
		Result:       &clusterpb.Response_Watch{Watch: result},
	}, nil
}

// knownMembers returns the members according to this node; of one partition if the request names
// one. A node that is being added or still reads its log may have outdated members, so it answers
// only if it and its leader are among them. A removed node does not answer.
func (r *replicaCalls) knownMembers(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	if err := r.awaitMembers(ctx, request.GetMembers().GetKnownIndexes()); err != nil {
		return nil, err
	}
	if !r.knowsMembers() || errors.Is(r.node.Err(), ErrRemoved) {
		return nil, fmt.Errorf("%w: this node does not know the members yet", journal.ErrNotLeader)
	}
	if len(r.node.partitions) == 1 || request.Partition > 0 {
		return r.node.partitionFor(request).members.membersResponse(), nil
	}
	var parts []*clusterpb.Response
	for _, g := range r.node.partitions {
		parts = append(parts, g.members.membersResponse())
	}
	return r.node.scatter.mergeMembers(parts), nil
}

// awaitMembers waits, for at most membersPollTimeout, while the caller's members are as recent as
// those of this node.
func (r *replicaCalls) awaitMembers(ctx context.Context, known []uint64) error {
	if len(known) != len(r.node.partitions) {
		return nil
	}
	soon, cancel := context.WithTimeout(ctx, membersPollTimeout)
	defer cancel()
	for r.node.Err() == nil && r.knowsMembers() && !r.hasNewerMembers(known) {
		if r.node.sleep(soon, membersPollInterval) != nil {
			return ctx.Err() // nil after the timeout or a stop: answer with what is known
		}
	}
	return nil
}

func (r *replicaCalls) hasNewerMembers(known []uint64) bool {
	return slices.ContainsFunc(r.node.partitions, func(g *partition) bool { return g.journal.ConfigurationIndex() > known[g.number] })
}

func (pa *partition) hasOtherLeader() bool {
	leader := pa.leader()
	return leader != "" && leader != pa.node.config.NodeID
}

// knowsMembers reports whether this node has the current members, or at least those of a time when
// it was a member itself.
func (r *replicaCalls) knowsMembers() bool {
	first := r.node.partitions[0]
	leader := first.leader()
	return first.self() != nil && (leader == "" || first.journal.IsMember(leader))
}

// checkAsked returns an error unless a request that names a node is for this one.
func (r *replicaCalls) checkAsked(node string) error {
	if node != r.node.config.NodeID {
		return fmt.Errorf("%w: %.100q is not at the address of %q", ErrNotMember, node, r.node.config.NodeID)
	}
	return nil
}

// isQuarantined reports whether this node's replica of an instance, or of any instance for "", must
// not be used.
func isQuarantined(pa *partition, instance string) bool {
	for _, q := range pa.journal.Quarantines() {
		if q.Node == pa.node.config.NodeID && (instance == "" || q.Instance == instance) {
			return true
		}
	}
	return false
}

// countQuarantines counts, among the quarantines of a partition, the replicas of a node and the
// instances that are stopped.
func countQuarantines(all []*journalpb.Quarantine, node string) (quarantined, stopped int) {
	for _, q := range all {
		switch q.Node {
		case node:
			quarantined++
		case "":
			stopped++
		}
	}
	return quarantined, stopped
}

// refusesRead reports whether this node must not answer a request from its replica.
func refusesRead(n *Node, request *clusterpb.Request) bool {
	if kind := kindOf(request); kind.local != nil && !kind.ofInstance && !request.Stale {
		return false // it is not about instances
	}
	if n.scatter.concernsAllPartitions(request) {
		return slices.ContainsFunc(n.partitions, func(pa *partition) bool { return isQuarantined(pa, "") })
	}
	return isQuarantined(n.partitionFor(request), request.Instance)
}

// actorsJournal is the journal of the actors: they do not run an instance that is stopped because
// its replicas disagree.
type actorsJournal struct{ *journal.Journal }

// Events implements actors.Journal.
func (j actorsJournal) Events(instance string, execution, from uint64) iter.Seq2[*journalpb.Event, error] {
	for _, q := range j.Quarantines() {
		if q.Instance == instance && q.Node == "" {
			return func(yield func(*journalpb.Event, error) bool) {
				yield(nil, &replay.Mismatch{
					Kind: comparison.ReplicasDisagree, Instance: instance, Execution: execution, EventID: q.EventId,
					Found: q.Reason, Expected: comparison.ExpectedReplicas,
				})
			}
		}
	}
	return j.Journal.Events(instance, execution, from)
}

// askInPartition returns how the nodes of a partition ask each other.
func askInPartition(pa *partition) comparison.Ask {
	return func(ctx context.Context, node, address string, request *clusterpb.Request) (*clusterpb.Response, error) {
		return pa.node.router.askNode(ctx, node, address, pa.prepareRequest(request))
	}
}

// comparisonConfig returns the configuration of the comparisons of a leadership.
func comparisonConfig(pa *partition, p *actors.Partition, epoch uint64) comparison.Config {
	interval := pa.node.config.harness.CompareInterval
	if interval == 0 {
		interval = comparison.RoundInterval
	}
	return comparison.Config{
		Node: pa.node.config.NodeID, Partition: pa.number, Journal: pa.journal, Epoch: epoch, Ask: askInPartition(pa), Dir: pa.node.config.partitionDir(pa.number),
		HandOver: pa.handOver, Retry: p.Retry, Stats: &pa.comparisonStats, Logger: pa.node.config.Logger, Interval: interval,
		Step: pa.node.config.harness.RepairStep,
		Sign: func(ctx context.Context, s *statement.Statement) (*clusterpb.SignedRoot, error) {
			return sign(ctx, pa, s)
		},
	}
}

// sign signs a statement of this node as the leader of a partition.
func sign(ctx context.Context, pa *partition, s *statement.Statement) (*clusterpb.SignedRoot, error) {
	secret, err := pa.node.tokens.awaitKey(ctx)
	if err != nil {
		return nil, err
	}
	s.Cluster, s.Partition = pa.node.config.ClusterID, uint64(pa.number)
	s.Lineage = lineage.Latest(pa.journal.Lineages()).GetId()
	encoded := s.Encode()
	return &clusterpb.SignedRoot{Statement: encoded, Signature: ed25519.Sign(statement.SigningKey(secret, s.Cluster), encoded)}, nil
}

// prove returns a signed root that covers an execution of an instance with all the events that it
// has now, and what else it covers of the instance.
func prove(ctx context.Context, pa *partition, r *clusterpb.Request) (*clusterpb.Response, error) {
	comparing := pa.comparing.Load()
	known, ok := pa.journal.Instance(r.Instance)
	execution := cmp.Or(r.GetProve().GetExecution(), known.GetExecution())
	switch {
	case !ok || execution > known.Execution:
		return nil, actors.ErrNotFound
	case pa.node.config.InMemory:
		return nil, backup.ErrInMemory
	case comparing == nil:
		return nil, journal.ErrNotLeader
	}
	last := known.LastEventId
	if execution < known.Execution {
		execution, last = execution+1, 0 // it is complete
	}
	signed := new(clusterpb.SignedHistory)
	for range 2 {
		root, err := comparing.Prove(ctx, r.Instance, execution, last)
		if err != nil {
			return nil, fmt.Errorf("prove: %w", err)
		}
		executions, err := executionsUpTo(pa, r.Instance, root)
		if err != nil {
			return nil, err
		}
		signed.Statement, signed.Signature, signed.Leaf = root.Statement, root.Signature, root.Position
		for i := range executions {
			x := &executions[i]
			signed.Executions = append(signed.Executions, &clusterpb.ExecutionDigest{Number: x.Number, LastEventId: x.LastEventID, Digest: x.Digest[:]})
		}
		for i := range root.Path {
			signed.Path = append(signed.Path, root.Path[i][:])
		}
		if statement.Leaf(statement.HistoryDigest(r.Instance, executions)) == root.Leaf {
			secret, err := pa.node.tokens.awaitKey(ctx)
			if err != nil {
				return nil, err
			}
			signed.Key = statement.SigningKey(secret, pa.node.config.ClusterID).Public().(ed25519.PublicKey)
			return &clusterpb.Response{Result: &clusterpb.Response_Prove{Prove: signed}}, nil
		}
		// The root is of an instance that was purged. No root covers so many executions.
		signed, execution = new(clusterpb.SignedHistory), math.MaxUint64
	}
	return nil, actors.ErrNotFound
}

// executionsUpTo returns what a signed root covers of an instance.
func executionsUpTo(pa *partition, instance string, root *comparison.RootPath) (executions []statement.Execution, err error) {
	for number := uint64(1); number <= root.Execution; number++ {
		x, digest := statement.Execution{Number: number}, statement.NewExecutionDigest(instance, number)
		for event, err := range pa.journal.EncodedEvents(instance, number, 1) {
			if err != nil {
				return nil, err
			}
			if number == root.Execution && x.LastEventID == root.LastEventID {
				break
			}
			digest.Add(event)
			x.LastEventID++
		}
		x.Digest = digest.Sum()
		executions = append(executions, x)
	}
	return executions, nil
}

// signingKey answers with the public key of the leaders' signatures.
func (r *replicaCalls) signingKey(ctx context.Context, _ *clusterpb.Request) (*clusterpb.Response, error) {
	secret, err := r.node.tokens.awaitKey(ctx)
	if err != nil {
		return nil, err
	}
	id := r.node.config.ClusterID
	key := statement.SigningKey(secret, id).Public().(ed25519.PublicKey)
	return &clusterpb.Response{Result: &clusterpb.Response_SigningKey{SigningKey: &clusterpb.SigningKey{Key: key, Cluster: id}}}, nil
}

// verifyReplicas begins or follows a comparison of all instances of a partition that this node
// leads.
func verifyReplicas(pa *partition, r *clusterpb.VerifyRequest) (*clusterpb.Response, error) {
	if pa.node.config.InMemory {
		return nil, backup.ErrInMemory
	}
	comparing := pa.comparing.Load()
	if comparing == nil {
		return nil, journal.ErrNotLeader
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Verify{Verify: comparing.Verify(r)}}, nil
}

// acceptReplica makes one node's replica of a stopped instance the right one.
func acceptReplica(ctx context.Context, pa *partition, r *clusterpb.Request) (*clusterpb.Response, error) {
	comparing, node := pa.comparing.Load(), r.GetAcceptReplica().GetNode()
	switch {
	case pa.node.config.InMemory:
		return nil, backup.ErrInMemory
	case comparing == nil:
		return nil, journal.ErrNotLeader
	case !pa.journal.IsMember(node):
		return nil, fmt.Errorf("%w: %.100q", ErrNotMember, node)
	}
	if err := comparing.Accept(ctx, r.Instance, node); err != nil {
		return nil, err
	}
	pa.node.config.Logger.Info("replica accepted by an operator", "accepted", node, "partition", pa.number, "instance", r.Instance, "principal", r.Principal, "reason", r.Reason)
	return &clusterpb.Response{Result: &clusterpb.Response_AcceptReplica{AcceptReplica: new(clusterpb.ReplicaAccepted)}}, nil
}

// serveView answers what the leader asks of this node's view.
func serveView(ctx context.Context, pa *partition, r *clusterpb.Request) (*clusterpb.Response, error) {
	response, node, err := new(clusterpb.Response), "", error(nil)
	checked := func() bool {
		err = pa.node.replicaCalls.checkAsked(node)
		return err == nil
	}
	switch call := r.Call.(type) {
	case *clusterpb.Request_View:
		if node = call.View.GetNode(); checked() {
			result := new(clusterpb.Response_View)
			result.View, err = pa.views.View(ctx, call.View)
			response.Result = result
		}
	case *clusterpb.Request_Compare:
		if node = call.Compare.GetNode(); checked() {
			result := new(clusterpb.Response_Compare)
			result.Compare, err = pa.views.Compare(ctx, call.Compare)
			response.Result = result
		}
	case *clusterpb.Request_CompareEvents:
		if node = call.CompareEvents.GetNode(); checked() {
			result := new(clusterpb.Response_CompareEvents)
			result.CompareEvents, err = pa.views.CompareEvents(ctx, call.CompareEvents)
			response.Result = result
		}
	case *clusterpb.Request_ReadView:
		if node = call.ReadView.GetNode(); checked() {
			result := new(clusterpb.Response_ReadView)
			result.ReadView, err = pa.views.Read(ctx, call.ReadView)
			response.Result = result
		}
	case *clusterpb.Request_Repair:
		if node = call.Repair.GetNode(); checked() {
			result := new(clusterpb.Response_Repair)
			result.Repair, err = pa.views.Repair(ctx, call.Repair)
			response.Result = result
		}
	case *clusterpb.Request_EndView:
		if node = call.EndView.GetNode(); checked() {
			response.Result = &clusterpb.Response_EndView{EndView: pa.views.End(call.EndView)}
		}
	}
	if err != nil {
		return nil, err
	}
	return response, nil
}

// backupPartitions returns the partitions of a node as package backup uses them.
func backupPartitions(n *Node) (all []backup.Partition) {
	for i, pa := range n.partitions {
		all = append(all, backup.Partition{
			Dir: n.config.partitionDir(i), Journal: pa.journal,
			RecordCut: func(ctx context.Context, cut uint64) error {
				request := &clusterpb.Request{Call: &clusterpb.Request_RecordCut{RecordCut: &clusterpb.RecordCutRequest{Cut: cut}}}
				_, err := n.router.call(ctx, pa.prepareRequest(request))
				return err
			},
		})
	}
	return all
}

// beginBackup makes a checkpoint of this node's replicas.
func (r *replicaCalls) beginBackup(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	if err := r.checkAsked(request.GetBeginBackup().Node); err != nil {
		return nil, err
	}
	begun, err := r.node.backups.Begin(ctx, request.GetBeginBackup().After)
	if err != nil {
		return nil, fmt.Errorf("begin backup: %w", err)
	}
	begun.Cluster, begun.Version = r.node.config.ClusterID, moduleVersion()
	return &clusterpb.Response{Result: &clusterpb.Response_BeginBackup{BeginBackup: begun}}, nil
}

// readBackup reads a part of a file of that checkpoint.
func (r *replicaCalls) readBackup(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	read := request.GetReadBackup()
	if err := r.checkAsked(read.Node); err != nil {
		return nil, err
	}
	data, err := r.node.backups.Read(ctx, read)
	if err != nil {
		return nil, err
	}
	return &clusterpb.Response{Result: &clusterpb.Response_ReadBackup{ReadBackup: &clusterpb.BackupBytes{Data: data}}}, nil
}

// endBackup removes that checkpoint.
func (r *replicaCalls) endBackup(_ context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	end := request.GetEndBackup()
	if err := r.checkAsked(end.Node); err != nil {
		return nil, err
	}
	if err := r.node.backups.End(end.Id, end.KeepLog, end.Instead); err != nil {
		return nil, err
	}
	return &clusterpb.Response{Result: &clusterpb.Response_EndBackup{EndBackup: new(clusterpb.BackupEnded)}}, nil
}

// backupErrorMax bounds the recorded error of a backup, in bytes.
const backupErrorMax = 1024

func checkRecordBackup(r *clusterpb.Request) error {
	outcome := r.GetRecordBackup().GetOutcome()
	switch {
	case r.Partition > 1:
		return invalidArgument("partition", fmt.Sprintf("is %d: the first one records backups", r.Partition))
	case outcome == nil || (outcome.Id == "") == (outcome.Error == ""):
		return invalidArgument("outcome", "must have either an ID or an error")
	}
	return firstError(checkText("backup ID", outcome.Id, 0, nameMax), checkText("error", outcome.Error, 0, backupErrorMax))
}

// backupProgress is how far a backup has come that this node makes.
type backupProgress struct{ written, total int64 }

// runBackups runs the plan of Config.Backups until the node closes. A panic ends the plan, not the
// process, and a plan that does not return does not keep the node from closing: its destination may
// hang.
func runBackups(n *Node) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() {
			if panicked := recover(); panicked != nil {
				n.config.Logger.Error("the plan for backups panicked: this node makes no backups until it is started again",
					"panic", panicked, "stack", string(debug.Stack()))
			}
		}()
		n.config.Backups.Run(n.ctx, n)
	}()
	select {
	case <-ended:
		return
	case <-n.ctx.Done():
	}
	grace := time.NewTimer(n.config.StopGrace)
	defer grace.Stop()
	select {
	case <-ended:
	case <-grace.C:
		n.config.Logger.Warn("the plan for backups has not returned, closing anyway", "after", n.config.StopGrace)
	}
}

// planOf returns how a plan for backups reaches its node.
func planOf(n *Node) *access.Backups {
	return &access.Backups{
		Leads: func() bool { return n.partitions[0].isLeader() && !n.stopping.Load() },
		Origin: func() (clusterID, lineageID string) {
			return n.config.ClusterID, lineage.Latest(n.partitions[0].journal.Lineages()).GetId()
		},
		Progress:    func(written, total int64) { n.backupProgress.Store(&backupProgress{written, total}) },
		RecordPoint: n.backups.RecordPoint,
		Logger:      n.config.Logger,
	}
}

// reportBackups returns what this node knows of scheduled backups, nil if there is nothing to know.
func reportBackups(n *Node) *clusterpb.BackupReport {
	r := &clusterpb.BackupReport{Record: n.partitions[0].journal.BackupRecord()}
	if n.config.Backups != nil {
		r.Interval = int64(n.config.Backups.Interval())
	}
	if p := n.backupProgress.Load(); p != nil {
		r.Written, r.Total = uint64(p.written), uint64(p.total)
	}
	if r.Record == nil && r.Interval == 0 {
		return nil
	}
	return r
}

func checkReadBackup(r *clusterpb.ReadBackupRequest) error {
	err := firstError(checkText("node ID", r.GetNode(), 1, nodeIDMax), checkText("file", r.GetFile(), 1, nameMax))
	switch {
	case err != nil:
		return err
	case r.GetOffset() < 0:
		return invalidArgument("offset", "is negative")
	case r.GetSize() == 0 || r.GetSize() > backup.ReadMax:
		return invalidArgument("size", fmt.Sprintf("is %d: it must be from 1 to %d", r.GetSize(), backup.ReadMax))
	}
	return nil
}
