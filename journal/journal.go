package journal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Journal is one node of a group that keeps histories. All methods may be called
// by any number of goroutines at once.
type Journal struct {
	config  Config
	machine *state.Machine
	fence   *fence
	fsm     *fsm
	raft    *reopenable

	disk      *disk
	logs      *fencedLogs
	snapshots *countedSnapshots
	stats     stats

	queue        *queue
	slots        chan struct{} // one token for each entry in flight
	flights      chan *flight  // from pack to settle, in order
	answers      chan *flight  // from pack to complete, in order
	reign        atomic.Pointer[reign]
	barriers     *barriers
	acks         *acks
	signs        *signs
	refusals     *refusals
	told         *leaderCommit
	clock        *clusterClock
	streams      *streams
	self         self
	selfRecorded atomic.Bool // this node's own identity; it stays so
	sessions     *sessions
	learned      learned
	rivals       rivals
	disowned     atomic.Pointer[DirectoryError]
	founding     *founding
	changing     chan struct{} // holds a token during a change of the members
	tending      chan struct{} // holds a token when tend has something to do
	unsent       chan struct{} // holds a token when Raft should send something; see resend

	reloading sync.Mutex   // held while Raft's configuration is changed
	transfers atomic.Int32 // of leadership that are under way

	serving   chan struct{} // closed when Raft has started
	closing   chan struct{}
	closeOnce sync.Once
	closed    chan struct{}      // closed when everything has ended
	closeErr  error              // of that
	cancel    context.CancelFunc // of follow and verify
	callers   tasks              // goroutines that need Raft to answer
	writers   tasks              // pack, settle and complete
	release   func() error       // of what lies below Raft
}

// tasks are goroutines that somebody waits for.
type tasks struct {
	mu    sync.Mutex
	ended bool
	wg    sync.WaitGroup
}

// start runs f in a goroutine of its own, unless wait was called.
func (t *tasks) start(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended {
		t.wg.Go(f)
	}
	return !t.ended
}

// wait returns when all have ended. None is started afterwards.
func (t *tasks) wait() {
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	t.wg.Wait()
}

// Open opens the journal in config.Dir, or creates it, restores the state from
// the newest snapshot and joins the group. Entries after the snapshot are
// applied when the group has a leader; a reader who needs them calls Barrier at
// the leader. ctx bounds Open alone: ending it later does nothing.
//
// A state that is damaged is rebuilt from the newest snapshot and the log; if the
// snapshots are, too, the other nodes are asked for one before this node takes part
// in anything, for up to config.RepairTimeout.
//
// Errors: *LockedError, *FormatError, *IdentityError, *GroupsError,
// *DamagedError, *RepairError, a *FencedError if what is on disk does not fit together, or one of
// the system. After an error nothing is left open, and config.Network is closed.
func Open(ctx context.Context, config Config) (*Journal, error) {
	c := config.withDefaults()
	j, err := open(ctx, c)
	if err != nil {
		if c.Network != nil {
			err = errors.Join(err, ignoreClosed(c.Network.Close()))
		}
		return nil, fmt.Errorf("open journal: %w", err)
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
	dir, err := openDirectory(c.Dir, stamp{c.Node, c.Cluster, c.Groups, c.Group}, c.Identity)
	if err != nil {
		return nil, err
	}
	if err := dir.countStart(); err != nil {
		return nil, errors.Join(err, dir.close())
	}
	logger := raftLogger(c.Logger, len(c.Peers) == 1)
	stores, err := openStores(&c, dir, logger)
	if err != nil {
		return nil, errors.Join(err, dir.close())
	}
	release := func() error { return errors.Join(stores.close(), dir.close()) }
	j, err := start(ctx, c, dir.self, stores, logger)
	if err != nil {
		return nil, errors.Join(err, release())
	}
	j.release = release
	return j, nil
}

// start runs a journal on open stores, which it leaves open after an error. ctx
// bounds the start alone.
func start(ctx context.Context, c Config, as self, stores *stores, logger hclog.Logger) (*Journal, error) {
	j := &Journal{
		config:   c,
		self:     as,
		sessions: newSessions(),
		queue:    newQueue(c.QueueEntriesMax, c.QueueBytesMax),
		slots:    make(chan struct{}, c.InFlightMax),
		flights:  make(chan *flight, c.InFlightMax),
		answers:  make(chan *flight, c.InFlightMax),
		barriers: newBarriers(),
		changing: make(chan struct{}, 1),
		tending:  make(chan struct{}, 1),
		unsent:   make(chan struct{}, 1),
		serving:  make(chan struct{}),
		closing:  make(chan struct{}),
		closed:   make(chan struct{}),
		release:  stores.close,
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	j.cancel = cancel
	if err := j.startRaft(ctx, running, stores, logger); err != nil {
		cancel()
		j.callers.wait()
		return nil, errors.Join(err, j.closeMachine())
	}
	ctx = running
	j.electAlone()
	j.writers.start(j.pack)
	j.writers.start(j.settle)
	j.writers.start(j.complete)
	j.callers.start(func() { j.follow(ctx) })
	j.callers.start(func() { j.verify(ctx) })
	j.callers.start(func() { j.lookOut(ctx) })
	j.callers.start(func() { j.watchContacts(ctx) })
	j.callers.start(func() { j.reopenRaft(ctx) })
	j.callers.start(func() { j.markTime(ctx) })
	j.callers.start(func() { j.resend(ctx) })
	j.callers.start(func() { j.guardState(ctx) })
	if c.LeaderChanged != nil {
		j.callers.start(func() { j.tellLeader(ctx) })
	}
	if c.awaitsFounding() {
		j.callers.start(func() { j.found(ctx) })
	}
	j.callers.start(func() { j.snapshotByBytes(ctx) })
	return j, nil
}

// startRaft builds the transport and the fence, and starts the Raft library on
// them. ctx bounds that; running ends with the journal.
func (j *Journal) startRaft(ctx, running context.Context, stores *stores, logger hclog.Logger) error {
	j.disk = newDisk(j.config.StallLimit, j.stalled, j.recovered)
	j.refusals = &refusals{logger: j.config.Logger}
	j.told = &leaderCommit{has: j.hasApplied}
	network, streams := newTransport(&j.config, j.silent, j.admitsMember, j.refusals, logger)
	j.streams = streams
	if sender, ok := network.(*senderTransport); ok {
		sender.holdBack, sender.has, sender.told, sender.journal = j.holdBack, j.has, j.told.tell, j
		streams.greet, streams.greets = j.greet, j.recordsIdentities
	}
	handouts := &handouts{journal: j, busy: make(chan struct{}, 1)}
	streams.asked = func(conn net.Conn) { handouts.take(running, conn) }
	j.acks = newAcks()
	transport := &ackedTransport{closingTransport: network, acks: j.acks, signs: newSigns()}
	j.signs = transport.signs
	transport.ended = func() {
		select {
		case j.unsent <- struct{}{}:
		default:
		}
	}
	transport.replicates = func(to raft.Server, term uint64) bool { return j.isServing() && j.replicates(to, term) }
	j.fence = newFence(func(fenced *FencedError) {
		_ = streams.cut() // a fenced node has no use for the error
		j.queue.refuse(fenced)
	}, func(fenced *FencedError) {
		j.config.Logger.Error("fenced", "error", fenced.Cause)
	})
	logs, stable, err := stores.checked(j.fence, j.disk, j.config.SnapshotBytes)
	if err == nil {
		j.logs = logs
		j.machine, err = (&recovery{&j.config, stores.checkpoints, logs, &j.stats}).open(ctx)
	}
	if err == nil {
		j.fsm = newFSM(j.machine, stores.checkpoints, j.fence)
		j.fsm.committed = transport.committed
		j.fsm.newest = &VersionError{Node: j.config.Node, Oldest: max(j.config.Protocol, 2) - 1, Newest: j.config.Protocol}
		err = j.fsm.speaks()
	}
	if err == nil {
		if stores.checkpoints != nil {
			stores.checkpoints.damaged = func(err error) { j.fence.draw(err) }
			stores.checkpoints.reach, stores.checkpoints.conflicts = j.reach, j.conflicts
		}
		j.snapshots, err = newCountedSnapshots(stores.snapshots, logs.checked.snapshotTaken)
	}
	if err == nil {
		err = j.openFounding()
	}
	config := raftConfig(&j.config, logger)
	if err == nil {
		err = bootstrap(config, &j.config, j.self.Identity, logs, stable, j.snapshots, transport)
	}
	if err == nil {
		j.clock = openClusterClock(&j.config, j.machine, stable)
		j.raft, err = startRaftOn(transport, func(transport raft.Transport, again bool) (*raft.Raft, error) {
			return j.newRaft(config, stable, transport, again)
		})
	}
	if err != nil {
		return errors.Join(fmt.Errorf("start raft: %w", err), j.fence.err(), transport.Close())
	}
	logs.serving.Store(true)
	close(j.serving)
	streams.serve()
	if fenced := j.fence.err(); fenced != nil {
		return errors.Join(fenced, j.raft.shutdown())
	}
	return nil
}

// newRaft starts the Raft library behind what the state has; again says that it ran before
// on this state.
func (j *Journal) newRaft(config *raft.Config, stable raft.StableStore, transport raft.Transport, again bool) (*raft.Raft, error) {
	applied, term := j.machine.Applied()
	snapshots, err := newHeadStart(j.snapshots, j.logs.checked, applied, term)
	if err != nil {
		return nil, err
	}
	ours := *config
	ours.NoSnapshotRestoreOnStart = ours.NoSnapshotRestoreOnStart || again
	return raft.NewRaft(&ours, &clockedFSM{j.fsm, j.clock}, j.logs, stable, snapshots, transport)
}

// reach returns the index of the last entry in the log or in the state.
func (j *Journal) reach() uint64 {
	last, _ := j.logs.checked.LastIndex() // of what is in memory
	return max(last, j.fsm.appliedIndex())
}

// conflicts reports whether the log has an entry at an index that is of another term and was
// not applied here.
func (j *Journal) conflicts(index, term uint64) bool {
	if index <= j.fsm.appliedIndex() || !j.logs.checked.has(index) {
		return false
	}
	var log raft.Log
	err := j.logs.GetLog(index, &log)
	return err == nil && log.Term != term
}

// has tells whether all that is in a snapshot of the present leader was applied here:
// what is applied is committed, and so the same everywhere.
func (j *Journal) has(request *raft.InstallSnapshotRequest) bool {
	return request.Term == j.raft.CurrentTerm() && request.LastLogIndex <= j.raft.AppliedIndex()
}

// closingTransport is what both of Raft's transports are.
type closingTransport interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
}

// newTransport returns the transport and the streams below it, which a group of
// one has none of: then they are empty.
func newTransport(c *Config, silent func() bool, isMember func(string) bool, refusals *refusals, logger hclog.Logger) (closingTransport, *streams) {
	s := newStreams(c.Network, c.Address, silent)
	if c.Network == nil {
		_, memory := raft.NewInmemTransport(raft.ServerAddress(c.Address))
		return memory, s
	}
	return newSenderTransport(s, isMember, refusals, logger), s
}

// ioTimeout bounds one exchange between two nodes; Raft allows more for a large
// snapshot.
const ioTimeout = 5 * time.Second

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
	config.NoSnapshotRestoreOnStart = c.Dir != "" // openMachine has seen to it
	config.ShutdownOnRemove = false               // Close ends it, nothing else
	config.NoLegacyTelemetry = true
	config.Logger = logger
	if c.tests.raft != nil {
		c.tests.raft(config)
	}
	return config
}

// maxAppendEntries is how many entries Raft sends at once. See DESIGN.md.
const maxAppendEntries = 64

// bootstrap makes a new group of this node alone, unless the directory belongs to a group
// already. Several nodes agree first; see founding.go. With a protocol from before
// that, which only tests ask for, each node does so with the same list.
func bootstrap(config *raft.Config, c *Config, identity string, logs raft.LogStore, stable raft.StableStore, snapshots raft.SnapshotStore, transport raft.Transport) error {
	if err := forgetHalfBootstrap(logs, stable); err != nil {
		return err
	}
	exists, err := raft.HasExistingState(logs, stable, snapshots)
	if err != nil || exists || c.Join || c.awaitsFounding() {
		return err
	}
	if c.Protocol < identityProtocol {
		identity = ""
	}
	var group raft.Configuration
	for _, p := range c.Peers {
		group.Servers = append(group.Servers, raft.Server{ID: raft.ServerID(p.Node), Address: withIdentity(p.Address, identity)})
	}
	return raft.BootstrapCluster(config, logs, stable, snapshots, transport, group)
}

// forgetHalfBootstrap undoes a bootstrap that was cut off: it sets the term to 1
// before it writes the first entry, and without that entry the node would belong
// to no group for ever. Whoever has taken part in anything is in a later term.
func forgetHalfBootstrap(logs raft.LogStore, stable raft.StableStore) error {
	term, err := stable.GetUint64([]byte(keyTerm))
	if err != nil || term != 1 {
		return ignoreNotFound(err)
	}
	if last, err := logs.LastIndex(); err != nil || last > 0 {
		return err
	}
	return stable.SetUint64([]byte(keyTerm), 0)
}

// ignoreNotFound drops the error by which a stable store, that of the Raft
// library in memory for one, says that it has no such key.
func ignoreNotFound(err error) error {
	if err != nil && err.Error() == "not found" {
		return nil
	}
	return err
}

// Append hands an append to the journal and returns at once. done is called
// exactly once with the outcome: nil when the events are committed and applied
// here. If the append is refused at once, that is before Append returns;
// otherwise it is in a goroutine of the journal, which everything later waits
// for, so it must not block. a may be changed after Append has returned.
//
// Nothing happened if the error is ErrNotLeader, ErrBusy, ErrClosed, a
// *TooLargeError, a *FencedError without ErrUnknownOutcome, or a refusal of
// the state machine: *state.StaleEpochError, *state.ConflictError,
// *state.InvalidAppendError. After ErrUnknownOutcome it is open whether it
// did. What one goroutine proposes, appends, attempts and purges, is applied in
// the order of the calls.
func (j *Journal) Append(a *journalpb.Append, done func(error)) {
	j.propose(proposal{record: encodeAppend(a), done: done})
}

// Attempt proposes what the attempts of an open activity have come to: it
// replaces what was known before and is gone when the activity is closed. done
// and the errors are as in Append, except that the refusals of the state machine
// are *state.StaleEpochError, *state.ClosedError if the operation is not open
// (any more), and *state.InvalidAppendError if it is no activity or fewer
// attempts have failed than before. It is an error, too, if a text in a is not
// UTF-8. Repeating an attempt changes nothing.
func (j *Journal) Attempt(a *journalpb.Attempt, done func(error)) {
	record, err := encodeAttempt(a)
	if err != nil {
		done(err)
		return
	}
	j.propose(proposal{record: record, done: done})
}

// Purge proposes to remove instances, with everything that is kept of them, and
// tells how many were removed: those that run and those that are not known, or
// named twice, are passed over. Afterwards their IDs are as if they had never
// been used. Only a chained start, or that of an abandoned child, that such an
// instance has asked for is kept until it is made. done and the errors are as in Append; the only refusal of
// the state machine is *state.StaleEpochError.
func (j *Journal) Purge(p *journalpb.Purge, done func(purged int, err error)) {
	purged := new(uint64)
	j.propose(proposal{record: encodePurge(p), outcome: purged, done: func(err error) {
		if err != nil {
			done(0, err)
			return
		}
		done(int(*purged), nil)
	}})
}

// Started proposes to forget a chained start, or that of a child to be abandoned,
// whose instance was started in another group: nothing else would tell that it was
// made. done and the errors are as in Append; the only refusal of the state machine
// is *state.StaleEpochError. Repeating it changes nothing.
func (j *Journal) Started(epoch uint64, target string, done func(error)) {
	j.proposeGroup(&reign{epoch: epoch}, &journalpb.GroupChange{Started: target}, done)
}

// propose puts a record into the queue, or says at once why not.
func (j *Journal) propose(p proposal) {
	if len(p.record) > j.config.AppendBytesMax {
		p.done(&TooLargeError{Bytes: len(p.record), Max: j.config.AppendBytesMax})
		return
	}
	if err := j.queue.put(p); err != nil {
		p.done(err)
	}
}

// Failed returns a channel that is closed when the node fences itself.
func (j *Journal) Failed() <-chan struct{} { return j.fence.drawn }

// Err returns a *FencedError once the node has fenced itself, nil before.
func (j *Journal) Err() error { return j.fence.err() }

// Close ends the reign, waits for Lead and for what is in flight, and closes
// everything that Open has opened, Network included. Appends that were not
// proposed yet get ErrClosed. It may be called more than once, but not from Lead
// or from a done.
//
// When the disk has not answered for 10 s it returns a *StalledError: what is
// left goes on ending in the background. Any other result is final.
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
		case <-time.After(closeStallMax - min(j.disk.age(), closeStallMax-time.Millisecond)):
			if age := j.disk.age(); age >= closeStallMax {
				return &StalledError{For: age}
			}
		}
	}
}

// closeStallMax is the age of a write at which Close gives up.
const closeStallMax = 10 * time.Second

// silent tells whether nothing may leave this node: a leader whose disk hangs must not
// keep others from electing another. Others harm nobody, and a leader that needs one of
// them would lose its leadership for it. Nor may what Raft says that believes in entries
// that are gone.
func (j *Journal) silent() bool {
	if j.isServing() && j.logs.checked.diverged.Load() {
		return true
	}
	if !j.disk.hangs() {
		return false
	}
	return !j.isServing() || j.raft.State() == raft.Leader
}

// isServing tells whether Raft has started.
func (j *Journal) isServing() bool {
	select {
	case <-j.serving:
		return true
	default:
		return false
	}
}

// stalled and recovered are called by the disk.
func (j *Journal) stalled(age time.Duration) {
	j.stats.logStalls.Add(1)
	j.config.Logger.Error("the disk hangs", "since", age)
}

func (j *Journal) recovered(took time.Duration) {
	j.config.Logger.Warn("the disk has answered", "after", took)
}

// shutdown is the one place that says in which order things end.
func (j *Journal) shutdown() error {
	if j.machine != nil {
		j.machine.Hasten() // Raft waits for a snapshot that is being made, and that for a flush
	}
	close(j.closing)          // those who wait in Barrier leave
	j.queue.refuse(ErrClosed) // nothing new comes in, and what waits is failed
	j.cancel()                // Lead's context ends
	j.callers.wait()          // Raft must live to answer them: it forgets futures when it stops
	j.queue.end()             // pack ends when it has failed the last proposal
	j.writers.wait()          // every done has been called
	err := j.raft.shutdown()  // its goroutines, and the transport with the network
	if err != nil {
		err = fmt.Errorf("stop raft: %w", err)
	}
	return errors.Join(err, j.closeMachine(), j.release()) // only now nobody uses the stores
}

// closeMachine writes what of the state is not on disk yet, and closes it.
func (j *Journal) closeMachine() error {
	if j.machine == nil {
		return nil
	}
	return j.machine.Close()
}

// guardState fences the node when the store of its state fails, until ctx ends.
func (j *Journal) guardState(ctx context.Context) {
	select {
	case <-j.machine.Failed():
		j.fence.draw(j.machine.Err())
	case <-ctx.Done():
	}
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
