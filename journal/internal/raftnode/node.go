package raftnode

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/raftlog"
)

// Node is the Raft library's node. It can be reopened while the journal runs: shut down
// and started again on the same stores, state machine and transport.
//
// The library drops futures that are between its loops when it shuts down. So callers hold a read
// lock from the call until the future has answered, and reopen waits for that lock.
type Node struct {
	transport Transport
	open      func(transport raft.Transport, again bool) (*raft.Raft, error)

	callMu  sync.RWMutex
	current atomic.Pointer[raft.Raft]
	run     *runTransport // of current; changed only by reopen

	mu         sync.Mutex
	observers  map[*raft.Observer]struct{}
	reopenedCh chan struct{} // closed when Raft has been reopened
}

// Transport is a transport of Raft that can be closed.
type Transport interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
}

// Start starts Raft on a transport. shutdown closes the transport. If Start returns an
// error, the caller must close it.
func Start(transport Transport, open func(transport raft.Transport, again bool) (*raft.Raft, error)) (*Node, error) {
	r := &Node{transport: transport, open: open, observers: map[*raft.Observer]struct{}{}, reopenedCh: make(chan struct{})}
	r.run = &runTransport{Transport: transport, WithPreVote: transport}
	current, err := open(r.run, false)
	r.current.Store(current)
	return r, err
}

// Reopen shuts Raft down, prepares its stores, and starts it again. Only one goroutine may call it,
// and not concurrently with shutdown.
func (r *Node) Reopen(prepare func() error) error {
	r.callMu.Lock()
	defer r.callMu.Unlock()
	r.run.close()
	if err := r.current.Load().Shutdown().Error(); err != nil {
		return err
	}
	if err := prepare(); err != nil {
		return err
	}
	r.run = &runTransport{Transport: r.transport, WithPreVote: r.transport}
	current, err := r.open(r.run, true)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for o := range r.observers {
		current.RegisterObserver(o)
	}
	r.current.Store(current)
	close(r.reopenedCh)
	r.reopenedCh = make(chan struct{})
	return nil
}

// Reopened returns a channel that is closed when Raft is reopened the next time.
func (r *Node) Reopened() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reopenedCh
}

// Shutdown ends Raft and closes its transport.
func (r *Node) Shutdown() error {
	r.run.close()
	return errors.Join(r.current.Load().Shutdown().Error(), r.transport.Close())
}

// runTransport is the transport of one start of Raft. It is not closed with Raft. It answers
// heartbeats that arrive after Raft was shut down, which Raft would leave unanswered.
type runTransport struct {
	raft.Transport
	raft.WithPreVote
	mu     sync.RWMutex // held for reading while Raft handles a heartbeat
	closed bool
}

func (t *runTransport) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
}

// SetHeartbeatHandler implements raft.Transport.
func (t *runTransport) SetHeartbeatHandler(handle func(raft.RPC)) {
	t.Transport.SetHeartbeatHandler(func(message raft.RPC) {
		t.mu.RLock()
		defer t.mu.RUnlock()
		if t.closed {
			message.Respond(nil, raftlog.ErrReopening)
			return
		}
		handle(message)
	})
}

// guardedFuture is a future that holds the read lock of callMu until it has answered.
type guardedFuture[F raft.Future] struct {
	future F
	once   sync.Once
	done   func()
}

// Error implements raft.Future.
func (a *guardedFuture[F]) Error() error {
	err := a.future.Error()
	a.once.Do(a.done)
	return err
}

// guardedIndexFuture is a guarded raft.IndexFuture.
type guardedIndexFuture[F raft.IndexFuture] struct{ guardedFuture[F] }

// Index implements raft.IndexFuture.
func (a *guardedIndexFuture[F]) Index() uint64 { return a.future.Index() }

// guardedApplyFuture is a guarded raft.ApplyFuture.
type guardedApplyFuture struct {
	guardedIndexFuture[raft.ApplyFuture]
}

// Response implements raft.ApplyFuture.
func (a *guardedApplyFuture) Response() any { return a.future.Response() }

// callRaft calls query under the read lock. The caller must wait for the future.
func callRaft[F raft.Future](r *Node, query func(*raft.Raft) F) guardedFuture[F] {
	r.callMu.RLock()
	return guardedFuture[F]{future: query(r.current.Load()), done: r.callMu.RUnlock}
}

func (r *Node) call(query func(*raft.Raft) raft.Future) raft.Future {
	f := callRaft(r, query)
	return &f
}

func (r *Node) callIndex(query func(*raft.Raft) raft.IndexFuture) raft.IndexFuture {
	return &guardedIndexFuture[raft.IndexFuture]{callRaft(r, query)}
}

// Apply is raft.Raft.Apply.
func (r *Node) Apply(data []byte, limit time.Duration) raft.ApplyFuture {
	return &guardedApplyFuture{guardedIndexFuture[raft.ApplyFuture]{
		callRaft(r, func(current *raft.Raft) raft.ApplyFuture { return current.Apply(data, limit) }),
	}}
}

// Barrier is raft.Raft.Barrier.
func (r *Node) Barrier(limit time.Duration) raft.Future {
	return r.call(func(current *raft.Raft) raft.Future { return current.Barrier(limit) })
}

// VerifyLeader is raft.Raft.VerifyLeader.
func (r *Node) VerifyLeader() raft.Future {
	return r.call((*raft.Raft).VerifyLeader)
}

// Snapshot is raft.Raft.Snapshot.
func (r *Node) Snapshot() raft.Future {
	return r.call(func(current *raft.Raft) raft.Future { return current.Snapshot() })
}

// LeadershipTransfer is raft.Raft.LeadershipTransfer.
func (r *Node) LeadershipTransfer() raft.Future {
	return r.call((*raft.Raft).LeadershipTransfer)
}

// LeadershipTransferToServer is raft.Raft.LeadershipTransferToServer.
func (r *Node) LeadershipTransferToServer(id raft.ServerID, address raft.ServerAddress) raft.Future {
	return r.call(func(current *raft.Raft) raft.Future { return current.LeadershipTransferToServer(id, address) })
}

// AddVoter is raft.Raft.AddVoter.
func (r *Node) AddVoter(id raft.ServerID, address raft.ServerAddress, previous uint64, limit time.Duration) raft.IndexFuture {
	return r.callIndex(func(current *raft.Raft) raft.IndexFuture { return current.AddVoter(id, address, previous, limit) })
}

// AddNonvoter is raft.Raft.AddNonvoter.
func (r *Node) AddNonvoter(id raft.ServerID, address raft.ServerAddress, previous uint64, limit time.Duration) raft.IndexFuture {
	return r.callIndex(func(current *raft.Raft) raft.IndexFuture { return current.AddNonvoter(id, address, previous, limit) })
}

// DemoteVoter is raft.Raft.DemoteVoter.
func (r *Node) DemoteVoter(id raft.ServerID, previous uint64, limit time.Duration) raft.IndexFuture {
	return r.callIndex(func(current *raft.Raft) raft.IndexFuture { return current.DemoteVoter(id, previous, limit) })
}

// BootstrapCluster is raft.Raft.BootstrapCluster.
func (r *Node) BootstrapCluster(members raft.Configuration) raft.Future {
	return r.call(func(current *raft.Raft) raft.Future { return current.BootstrapCluster(members) })
}

// RemoveServer is raft.Raft.RemoveServer.
func (r *Node) RemoveServer(id raft.ServerID, previous uint64, limit time.Duration) raft.IndexFuture {
	return r.callIndex(func(current *raft.Raft) raft.IndexFuture { return current.RemoveServer(id, previous, limit) })
}

// RegisterObserver registers an observer with Raft, and again after each reopen.
func (r *Node) RegisterObserver(o *raft.Observer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observers[o] = struct{}{}
	r.current.Load().RegisterObserver(o)
}

// DeregisterObserver undoes RegisterObserver.
func (r *Node) DeregisterObserver(o *raft.Observer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.observers, o)
	r.current.Load().DeregisterObserver(o)
}

// GetConfiguration is raft.Raft.GetConfiguration, which answers at once.
func (r *Node) GetConfiguration() raft.ConfigurationFuture {
	return r.current.Load().GetConfiguration()
}

// ReloadConfig is raft.Raft.ReloadConfig.
func (r *Node) ReloadConfig(c raft.ReloadableConfig) error {
	return r.current.Load().ReloadConfig(c)
}

// ReloadableConfig is raft.Raft.ReloadableConfig.
func (r *Node) ReloadableConfig() raft.ReloadableConfig {
	return r.current.Load().ReloadableConfig()
}

// LeaderWithID is raft.Raft.LeaderWithID.
func (r *Node) LeaderWithID() (raft.ServerAddress, raft.ServerID) {
	return r.current.Load().LeaderWithID()
}

// LeaderCh is raft.Raft.LeaderCh. After Raft has been reopened, an earlier channel delivers nothing
// more; call LeaderCh again.
func (r *Node) LeaderCh() <-chan bool { return r.current.Load().LeaderCh() }

// State is raft.Raft.State.
func (r *Node) State() raft.RaftState { return r.current.Load().State() }

// Stats is raft.Raft.Stats.
func (r *Node) Stats() map[string]string { return r.current.Load().Stats() }

// LastContact is raft.Raft.LastContact.
func (r *Node) LastContact() time.Time { return r.current.Load().LastContact() }

// CurrentTerm is raft.Raft.CurrentTerm.
func (r *Node) CurrentTerm() uint64 { return r.current.Load().CurrentTerm() }

// LastIndex is raft.Raft.LastIndex.
func (r *Node) LastIndex() uint64 { return r.current.Load().LastIndex() }

// CommitIndex is raft.Raft.CommitIndex.
func (r *Node) CommitIndex() uint64 { return r.current.Load().CommitIndex() }

// AppliedIndex is raft.Raft.AppliedIndex.
func (r *Node) AppliedIndex() uint64 { return r.current.Load().AppliedIndex() }
