package journal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/clock"
	"github.com/tenuto-dev/tenuto/journal/internal/peer"
	"github.com/tenuto-dev/tenuto/journal/internal/raftlog"
	"github.com/tenuto-dev/tenuto/journal/internal/raftnode"
	"github.com/tenuto-dev/tenuto/journal/internal/snapshot"
	"github.com/tenuto-dev/tenuto/journal/internal/transport"
	"github.com/tenuto-dev/tenuto/journal/state"
)

// Journal is one node of a partition. All methods are safe for concurrent use.
type Journal struct {
	*identities
	*lineages
	*members
	*leaderships
	*elections
	*proposer
	*metadata
	*reads
	*checkpoints
	*founding

	config   Config
	machine  *state.Machine
	failStop *failStop
	fsm      *fsm
	raft     *raftnode.Node

	disk      *raftlog.Disk
	logs      *raftlog.FailStopLog
	snapshots *snapshot.Notifying
	stats     stats

	barriers     *barriers
	acks         *transport.Acks
	liveness     *transport.Liveness
	leaderCommit *transport.LeaderCommit
	clock        *clock.Clock
	streams      *transport.Streams

	clockCommitDue chan struct{} // holds a token for commitClockOnPipelineEnd

	serving       chan struct{} // closed when Raft has started
	closing       chan struct{}
	closeOnce     sync.Once
	closed        chan struct{}      // closed when shutdown has ended
	closeErr      error              // result of shutdown
	cancel        context.CancelFunc // ends the goroutines of callers
	callers       goroutineGroup     // goroutines that need Raft to answer
	writers       goroutineGroup     // pack, awaitEntries and resolveProposals
	releaseStores func() error       // closes the stores below Raft
}

// goroutineGroup starts goroutines and waits until all have ended.
type goroutineGroup struct {
	mu    sync.Mutex
	ended bool
	wg    sync.WaitGroup
}

// start runs f in its own goroutine, unless wait was called.
func (g *goroutineGroup) start(f func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.ended {
		g.wg.Go(f)
	}
	return !g.ended
}

// wait returns when all have ended. None is started afterwards.
func (g *goroutineGroup) wait() {
	g.mu.Lock()
	g.ended = true
	g.mu.Unlock()
	g.wg.Wait()
}

// Open opens or creates the journal in config.Dir, restores the state and joins the partition.
// Entries after the restored state are applied once there is a leader; a reader that needs them
// calls Barrier at the leader. ctx bounds Open alone: canceling it later has no effect.
//
// A damaged state is rebuilt from the newest snapshot and the log. If the snapshots are damaged
// too, Open asks the other nodes for one, for up to config.RepairTimeout, before this node votes or
// acknowledges anything.
//
// Errors: *LockedError, *FormatError, *IdentityError, *PartitionCountError, *DamagedError,
// *RepairError, *LineageError, *VersionError, a *NodeFailedError if the parts on disk contradict
// each other, the error of ctx, or a system error.
// After an error nothing is left open, and config.Network is closed.
func Open(ctx context.Context, config Config) (*Journal, error) {
	c := config.withDefaults()
	j, err := open(ctx, c)
	if err != nil {
		if c.Network != nil {
			err = errors.Join(err, ignoreClosed(c.Network.Close()))
		}
		return nil, fmt.Errorf("open journal: %w", withFileErrors(err))
	}
	return j, nil
}

func open(ctx context.Context, c Config) (*Journal, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dir, err := openDirectory(c.Dir, directoryOwner{c.Node, c.Cluster, c.Partitions, c.Partition}, c.Identity)
	if err != nil {
		return nil, err
	}
	err = checkLineageEnded(c.Dir)
	if err == nil {
		err = dir.countStart()
	}
	if err != nil {
		return nil, errors.Join(err, dir.close())
	}
	logger := raftnode.NewLogger(c.Logger, len(c.Peers) == 1)
	stores, err := openStores(&c, dir, logger)
	if err != nil {
		return nil, errors.Join(err, dir.close())
	}
	release := func() error { return errors.Join(stores.close(), dir.close()) }
	j, err := start(ctx, c, dir.self, stores, logger)
	if err != nil {
		return nil, errors.Join(err, release())
	}
	j.releaseStores = release
	return j, nil
}

// start runs a journal on open stores, which stay open after an error. ctx bounds the start alone.
func start(ctx context.Context, c Config, as peer.Process, stores *stores, logger hclog.Logger) (*Journal, error) {
	j := &Journal{
		config:         c,
		barriers:       newBarriers(),
		clockCommitDue: make(chan struct{}, 1),
		serving:        make(chan struct{}),
		closing:        make(chan struct{}),
		closed:         make(chan struct{}),
		releaseStores:  stores.close,
	}
	j.makeParts(as)
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	j.cancel = cancel
	if err := j.startRaft(ctx, running, stores, logger); err != nil {
		cancel()
		j.callers.wait()
		return nil, errors.Join(err, j.closeMachine())
	}
	ctx = running
	j.electSingleNode()
	j.writers.start(j.pack)
	j.writers.start(j.awaitEntries)
	j.writers.start(j.resolveProposals)
	j.callers.start(func() { j.followLeadership(ctx) })
	j.callers.start(func() { j.serveBarriers(ctx) })
	j.callers.start(func() { j.checkLeaderOnPreVote(ctx) })
	j.callers.start(func() { j.monitorContacts(ctx) })
	j.callers.start(func() { j.reopenRaft(ctx) })
	j.callers.start(func() { j.clock.KeepSampled(ctx, c.Dir, c.Logger) })
	j.callers.start(func() { j.commitClockOnPipelineEnd(ctx) })
	j.callers.start(func() { j.failOnStateError(ctx) })
	if c.LeaderChanged != nil {
		j.callers.start(func() { j.notifyLeaderChanges(ctx) })
	}
	if c.needsFounding() {
		j.callers.start(func() { j.founding.run(ctx) })
	}
	j.callers.start(func() { j.snapshotByBytes(ctx) })
	return j, nil
}

// makeParts makes the parts of a journal that need no store. Only lineages and identities are used
// before connectParts.
func (j *Journal) makeParts(as peer.Process) {
	j.proposer = newProposer(&j.config, &j.stats)
	j.lineages = &lineages{config: &j.config, fail: func(cause error) error { return j.failStop.Fail(cause) }}
	j.reads = &reads{}
	j.identities = &identities{
		config: &j.config, self: as, servers: j.servers, isServing: j.isServing, sessions: newSessions(),
		fail: func(cause error) error { return j.failStop.Fail(cause) }, rejections: transport.NewRejections(j.config.Logger),
		dial: func(address string, timeout time.Duration) (net.Conn, error) {
			return j.streams.DialPlain(address, timeout)
		},
		lineages:         j.lineages,
		foundingStateFor: func(h *handshake) *foundingState { return j.founding.stateFor(h) },
	}
	reconcileDue := make(chan struct{}, 1)
	j.metadata = &metadata{proposer: j.proposer, reconcileDue: reconcileDue}
	j.members = &members{
		config: &j.config, identities: j.identities, metadata: j.metadata, callers: &j.callers,
		changeSlot: make(chan struct{}, 1), reconcileDue: reconcileDue,
	}
	j.leaderships = &leaderships{
		config: &j.config, proposer: j.proposer, members: j.members, metadata: j.metadata, callers: &j.callers,
		closing: j.closing, collectClockReadings: j.collectClockReadings,
	}
	j.metadata.leaderships, j.members.leaderships = j.leaderships, j.leaderships
	j.elections = &elections{config: &j.config, members: j.members, leaderships: j.leaderships}
}

// connectParts connects the parts with Raft, its stores and the state, before other nodes can reach
// this one.
func (j *Journal) connectParts() {
	j.proposer.machine, j.proposer.raft, j.proposer.disk, j.proposer.failStop = j.machine, j.raft, j.disk, j.failStop
	j.reads.machine, j.reads.fsm, j.reads.raft = j.machine, j.fsm, j.raft
	j.metadata.clock, j.metadata.machine = j.clock, j.machine
	j.members.raft, j.members.machine, j.members.acks = j.raft, j.machine, j.acks
	j.leaderships.raft, j.leaderships.failStop, j.leaderships.disk = j.raft, j.failStop, j.disk
	j.leaderships.clock, j.leaderships.acks = j.clock, j.acks
	j.elections.raft = j.raft
	j.founding.raft, j.founding.failStop = j.raft, j.failStop
	j.founding.identities, j.founding.members = j.identities, j.members
}

// servers returns the members by the latest configuration in this node's log.
func (j *Journal) servers() []raft.Server { return j.raft.GetConfiguration().Configuration().Servers }

// openTransport builds the transport, which accepts no connection yet. running ends with the
// journal.
func (j *Journal) openTransport(running context.Context, stores *stores, logger hclog.Logger) *transport.Acked {
	j.leaderCommit = transport.NewLeaderCommit(j.hasApplied)
	network, streams := newTransport(&j.config, j.isMuted, j.isAdmitted, j.rejections, logger)
	j.streams = streams
	if sender, ok := network.(*transport.Verified); ok {
		sender.DelayPreVote, sender.Applied = j.delayPreVote, appliedEntries{j}
		sender.ReportCommit, sender.Identities = j.leaderCommit.Report, j.identities
		streams.Handshake, streams.RequiresHandshake = j.performHandshake, j.hasRecordedIdentities
	}
	requests := newRequestServer(j, stores.snapshotsOnDisk)
	streams.Resolve, streams.ReportFailure = j.config.AddressBook.Resolve, j.config.AddressBook.ReportFailure
	streams.OnRequest = func(conn net.Conn) { requests.serve(running, conn) }
	j.acks, j.liveness = transport.NewAcks(), transport.NewLiveness()
	return &transport.Acked{
		Transport: network, Acks: j.acks, Liveness: j.liveness,
		OnPipelineEnd: func() { notify(j.clockCommitDue) },
		IsReplicatingTo: func(to raft.Server, term uint64) bool {
			return j.isServing() && j.isReplicatingTo(to, term)
		},
	}
}

// startRaft builds the transport and failStop, and starts the Raft library on them. ctx bounds the
// start; running ends with the journal.
func (j *Journal) startRaft(ctx, running context.Context, stores *stores, logger hclog.Logger) error {
	j.disk = raftlog.NewDisk(j.config.StallLimit, j.stats.logWrite.observe, j.onDiskStall, j.onDiskRecover)
	acked := j.openTransport(running, stores, logger)
	j.failStop = newFailStop(func(nodeFailed *NodeFailedError) {
		_ = j.streams.Disconnect() // a failed node has no use for the error
		j.queue.reject(nodeFailed)
	}, func(nodeFailed *NodeFailedError) {
		if errors.Is(nodeFailed.Cause, ErrRemoved) { // as an operator has asked
			j.config.Logger.Warn("this node was removed from the cluster for good: stop it and delete its directory")
			return
		}
		j.config.Logger.Error("node failed", "error", nodeFailed.Cause)
	})
	logs, stable, err := raftlog.Open(stores.logs, stores.stable, j.failStop, j.disk, j.config.SnapshotBytes)
	if err == nil {
		j.logs = logs
		j.machine, err = (&stateLoader{&j.config, stores.snapshotsOnDisk, logs, logs.Checked.Configurations, &j.stats}).open(ctx)
	}
	if err == nil {
		j.lineages.machine, j.lineages.logs = j.machine, logs
		err = j.lineages.ask(ctx, otherAddresses(&j.config, stores, logs.Checked))
	}
	if err == nil {
		j.fsm = newFSM(j.machine, stores.snapshotsOnDisk, j.failStop)
		j.fsm.onCommitted = acked.OnCommitted
		j.fsm.supported = &VersionError{Node: j.config.Node, Oldest: max(j.config.Protocol, 2) - 1, Newest: j.config.Protocol}
		err = j.fsm.checkProtocol()
	}
	if err == nil {
		if stores.snapshotsOnDisk != nil {
			stores.snapshotsOnDisk.OnDamaged = func(err error) { _ = j.failStop.Fail(err) }
			stores.snapshotsOnDisk.LastLocalIndex, stores.snapshotsOnDisk.HasConflict = j.lastLocalIndex, j.hasConflict
		}
		j.checkpoints = openCheckpoints(&j.config, j.machine, stores.snapshotsOnDisk, logs.Checked)
		j.snapshots, err = snapshot.NewNotifying(stores.snapshots, logs.Checked.RecordSnapshot)
	}
	if err == nil {
		j.founding, err = openFounding(&j.config)
	}
	config := raftConfig(&j.config, logger)
	if err == nil {
		err = foundAlone(config, &j.config, j.self.Identity, logs, stable, j.snapshots, acked)
	}
	if err == nil {
		j.clock = openClusterClock(&j.config, j.machine, stable)
		j.raft, err = raftnode.Start(acked, func(transport raft.Transport, again bool) (*raft.Raft, error) {
			return j.newRaft(config, stable, transport, again)
		})
		if err != nil {
			err = fmt.Errorf("start raft: %w", err)
		}
	}
	if err != nil {
		return errors.Join(err, j.failStop.Err(), acked.Close())
	}
	j.connectParts()
	logs.SetServing()
	close(j.serving)
	j.streams.Serve()
	if nodeFailed := j.failStop.Err(); nodeFailed != nil {
		return errors.Join(nodeFailed, j.raft.Shutdown())
	}
	return nil
}

// newRaft starts the Raft library after the last entry that the state has applied. again means that
// Raft was running on this state before.
func (j *Journal) newRaft(config *raft.Config, stable raft.StableStore, transport raft.Transport, again bool) (*raft.Raft, error) {
	applied, term := j.machine.Applied()
	snapshots, err := snapshot.NewStarting(j.snapshots, j.logs.Checked, applied, term)
	if err != nil {
		return nil, err
	}
	runConfig := *config
	runConfig.NoSnapshotRestoreOnStart = runConfig.NoSnapshotRestoreOnStart || again
	return raft.NewRaft(&runConfig, &clockedFSM{j.fsm, j.clock}, j.logs, stable, snapshots, transport)
}

// lastLocalIndex returns the index of the last entry in the log or in the state.
func (j *Journal) lastLocalIndex() uint64 {
	last, _ := j.logs.Checked.LastIndex() // in memory, cannot fail
	return max(last, j.fsm.appliedIndex())
}

// hasConflict reports whether the log has an entry at index that is of another term and not applied
// here.
func (j *Journal) hasConflict(index, term uint64) bool {
	if index <= j.fsm.appliedIndex() || !j.logs.Checked.HasEntry(index) {
		return false
	}
	var log raft.Log
	err := j.logs.GetLog(index, &log)
	return err == nil && log.Term != term
}

// appliedEntries recognizes what a leader sends although it is applied here. What is applied is
// committed, and so is the same on every node.
type appliedEntries struct{ journal *Journal }

// IncludeSnapshot implements transport.AppliedEntries for a snapshot of the current leader.
func (a appliedEntries) IncludeSnapshot(request *raft.InstallSnapshotRequest) bool {
	return request.Term == a.journal.raft.CurrentTerm() && request.LastLogIndex <= a.journal.raft.AppliedIndex()
}

// Trim implements transport.AppliedEntries.
//
// A node that has fetched its state from another one has no log entries before that. A leader that
// assumes an older position finds no common entry and sends an older snapshot. The node has applied
// all of that, so nothing changes, and the leader begins again. A request about applied entries
// needs no common entry.
func (a appliedEntries) Trim(request *raft.AppendEntriesRequest) {
	prev, applied := request.PrevLogEntry, a.journal.raft.AppliedIndex()
	switch {
	case prev == 0 && len(request.Entries) == 0: // a heartbeat
		return
	case prev > applied, prev == a.journal.raft.LastIndex(), a.journal.logs.Checked.HasEntry(prev):
		return
	}
	request.Entries = slices.DeleteFunc(slices.Clone(request.Entries), func(entry *raft.Log) bool { return entry.Index <= applied })
	request.PrevLogEntry, request.PrevLogTerm = 0, 0 // Raft compares nothing
}

// newTransport returns the transport and the streams below it. A node without a Network does not
// use the streams.
func newTransport(c *Config, isMuted func() bool, isMember func(string) bool, rejections *transport.Rejections, logger hclog.Logger) (transport.Transport, *transport.Streams) {
	s := transport.NewStreams(c.Network, c.Address, isMuted)
	if c.Network == nil {
		_, memory := raft.NewInmemTransport(raft.ServerAddress(c.Address))
		return memory, s
	}
	return transport.NewVerified(s, isMember, rejections, logger), s
}

func raftConfig(c *Config, logger hclog.Logger) *raft.Config {
	config := raft.DefaultConfig()
	config.LocalID = raft.ServerID(c.Node)
	config.HeartbeatTimeout = c.HeartbeatTimeout
	config.ElectionTimeout = c.ElectionTimeout
	config.LeaderLeaseTimeout = c.LeaderLease
	config.CommitTimeout = c.CommitTimeout
	config.SnapshotThreshold = c.SnapshotThreshold
	config.SnapshotInterval = c.SnapshotInterval
	config.TrailingLogs = c.TrailingLogs
	config.MaxAppendEntries = maxAppendEntries
	config.NoSnapshotRestoreOnStart = c.Dir != "" // stateLoader has restored it
	config.ShutdownOnRemove = false               // only Close shuts Raft down
	config.NoLegacyTelemetry = true
	config.Logger = logger
	if c.tests.adjustRaftConfig != nil {
		c.tests.adjustRaftConfig(config)
	}
	return config
}

// maxAppendEntries is how many entries Raft sends at once. See DESIGN.md.
const maxAppendEntries = 64

// foundAlone founds a partition of this node alone, unless the directory already belongs to
// one. Several nodes must agree first; see founding.go. With an older protocol, which only tests
// configure, each node founds it from the same list.
func foundAlone(config *raft.Config, c *Config, identity string, logs raft.LogStore, stable raft.StableStore, snapshots raft.SnapshotStore, transport raft.Transport) error {
	if err := raftlog.UndoPartialBootstrap(logs, stable); err != nil {
		return err
	}
	exists, err := raft.HasExistingState(logs, stable, snapshots)
	if err != nil || exists || c.Join || c.needsFounding() {
		return err
	}
	if c.Protocol < identityProtocol {
		identity = ""
	}
	var partition raft.Configuration
	for _, p := range c.Peers {
		partition.Servers = append(partition.Servers, raft.Server{ID: raft.ServerID(p.Node), Address: peer.Address(p.Address, identity)})
	}
	return raft.BootstrapCluster(config, logs, stable, snapshots, transport, partition)
}

// Failed returns a channel that is closed after the node has failed and has logged why, or could
// not log it in time. Err returns the failure earlier.
func (j *Journal) Failed() <-chan struct{} { return j.failStop.reported }

// Err returns a *NodeFailedError once the node has failed, nil before.
func (j *Journal) Err() error { return j.failStop.Err() }

// Close ends leadership, waits for Lead and for entries in flight, and closes everything that Open
// has opened, including Network. Appends not yet proposed get ErrClosed. It may be called more than
// once, but not from Lead or from a done callback.
//
// If a disk write has been pending for 10 s, Close returns a *StalledError and shutdown continues
// in the background. Any other result is final.
func (j *Journal) Close() error {
	j.closeOnce.Do(func() {
		go func() {
			defer close(j.closed)
			j.closeErr = j.shutdown()
		}()
	})
	for {
		select {
		case <-j.closed:
			return j.closeErr
		case <-time.After(closeStallMax - min(j.disk.WriteAge(), closeStallMax-time.Millisecond)):
			if age := j.disk.WriteAge(); age >= closeStallMax {
				return &StalledError{Duration: age}
			}
		}
	}
}

// closeStallMax is the age of a write at which Close returns a *StalledError.
const closeStallMax = 10 * time.Second

// isMuted reports whether nothing may leave this node. A leader with a stalled disk must not
// prevent the others from electing another. A follower with a stalled disk still answers, since a
// leader that needs it would lose leadership otherwise. Raft's messages are also muted after the
// log has lost entries that Raft believes are stored.
func (j *Journal) isMuted() bool {
	if j.isServing() && j.logs.Checked.HasDiverged() {
		return true
	}
	if !j.disk.IsStalled() {
		return false
	}
	return !j.isServing() || j.raft.State() == raft.Leader
}

// isServing reports whether Raft has started.
func (j *Journal) isServing() bool {
	select {
	case <-j.serving:
		return true
	default:
		return false
	}
}

// onDiskStall and onDiskRecover are called by the disk.
func (j *Journal) onDiskStall(age time.Duration) {
	j.stats.logStalls.Add(1)
	j.config.Logger.Error("disk write stalled; if this node leads, it steps down", "age", age)
}

func (j *Journal) onDiskRecover(elapsed time.Duration) {
	j.config.Logger.Warn("disk write finished after stall", "after", elapsed)
}

// shutdown defines the order in which everything ends.
func (j *Journal) shutdown() error {
	if j.machine != nil {
		j.machine.DisablePacing() // Raft waits for a running snapshot, which waits for a flush
	}
	close(j.closing)          // waiters in Barrier return
	j.queue.reject(ErrClosed) // no new proposals; queued ones fail
	j.cancel()                // Lead's context ends
	j.callers.wait()          // Raft must still run to answer them: it drops futures when it stops
	j.queue.end()             // pack ends after it has failed the last proposal
	j.writers.wait()          // every done has been called
	err := j.raft.Shutdown()  // its goroutines, the transport and the network
	if err != nil {
		err = fmt.Errorf("stop raft: %w", err)
	}
	return errors.Join(err, j.closeMachine(), j.releaseStores()) // nothing uses the stores any more
}

// closeMachine writes the part of the state that is not on disk yet, and closes the state machine.
func (j *Journal) closeMachine() error {
	if j.machine == nil {
		return nil
	}
	return j.machine.Close()
}

// failOnStateError fails the node if the state store fails, until ctx ends.
func (j *Journal) failOnStateError(ctx context.Context) {
	select {
	case <-j.machine.Failed():
		_ = j.failStop.Fail(j.machine.Err())
	case <-ctx.Done():
	}
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Fail fails the node for a reason that the caller has found: the node was removed, its directory
// was copied, or another of its partitions has failed.
func (j *Journal) Fail(cause error) { _ = j.failStop.Fail(cause) }
