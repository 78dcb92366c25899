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
// lock from the call until the future has answered, and Reopen waits for that lock.
type Node struct {
	transport Transport
	open      func(transport raft.Transport, again bool) (*raft.Raft, error)

	callMu  sync.RWMutex
	current atomic.Pointer[raft.Raft]
	run     *runTransport // of current; changed only by Reopen

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

// Start starts Raft on a transport. Shutdown closes the transport. If Start returns an
// error, the caller must close it.
func Start(transport Transport, open func(transport raft.Transport, again bool) (*raft.Raft, error)) (*Node, error) {
	r := &Node{transport: transport, open: open, observers: map[*raft.Observer]struct{}{}, reopenedCh: make(chan struct{})}
	r.run = &runTransport{Transport: transport, WithPreVote: transport}
	current, err := open(r.run, false)
	r.current.Store(current)
	return r, err
}

// Reopen shuts Raft down, prepares its stores, and starts it again. Only one goroutine may call it,
// and not concurrently with Shutdown.
func (n *Node) Reopen(prepare func() error) error {
	n.callMu.Lock()
	defer n.callMu.Unlock()
	n.run.close()
	if err := n.current.Load().Shutdown().Error(); err != nil {
		return err
	}
	if err := prepare(); err != nil {
		return err
	}
	n.run = &runTransport{Transport: n.transport, WithPreVote: n.transport}
	current, err := n.open(n.run, true)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for o := range n.observers {
		current.RegisterObserver(o)
	}
	n.current.Store(current)
	close(n.reopenedCh)
	n.reopenedCh = make(chan struct{})
	return nil
}

// Reopened returns a channel that is closed when Raft is reopened the next time.
func (n *Node) Reopened() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.reopenedCh
}

// Shutdown ends Raft and closes its transport.
func (n *Node) Shutdown() error {
	n.run.close()
	return errors.Join(n.current.Load().Shutdown().Error(), n.transport.Close())
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
func (g *guardedFuture[F]) Error() error {
	err := g.future.Error()
	g.once.Do(g.done)
	return err
}

// guardedIndexFuture is a guarded raft.IndexFuture.
type guardedIndexFuture[F raft.IndexFuture] struct{ guardedFuture[F] }

// Index implements raft.IndexFuture.
func (g *guardedIndexFuture[F]) Index() uint64 { return g.future.Index() }

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

func (n *Node) call(query func(*raft.Raft) raft.Future) raft.Future {
	f := callRaft(n, query)
	return &f
}

func (n *Node) callIndex(query func(*raft.Raft) raft.IndexFuture) raft.IndexFuture {
	return &guardedIndexFuture[raft.IndexFuture]{callRaft(n, query)}
}

// Apply is raft.Raft.Apply.
func (n *Node) Apply(data []byte, limit time.Duration) raft.ApplyFuture {
	return &guardedApplyFuture{guardedIndexFuture[raft.ApplyFuture]{
		callRaft(n, func(current *raft.Raft) raft.ApplyFuture { return current.Apply(data, limit) }),
	}}
}

// Barrier is raft.Raft.Barrier.
func (n *Node) Barrier(limit time.Duration) raft.Future {
	return n.call(func(current *raft.Raft) raft.Future { return current.Barrier(limit) })
}

// VerifyLeader is raft.Raft.VerifyLeader.
func (n *Node) VerifyLeader() raft.Future {
	return n.call((*raft.Raft).VerifyLeader)
}

// Snapshot is raft.Raft.Snapshot.
func (n *Node) Snapshot() raft.Future {
	return n.call(func(current *raft.Raft) raft.Future { return current.Snapshot() })
}

// LeadershipTransfer is raft.Raft.LeadershipTransfer.
func (n *Node) LeadershipTransfer() raft.Future {
	return n.call((*raft.Raft).LeadershipTransfer)
}

// LeadershipTransferToServer is raft.Raft.LeadershipTransferToServer.
func (n *Node) LeadershipTransferToServer(id raft.ServerID, address raft.ServerAddress) raft.Future {
	return n.call(func(current *raft.Raft) raft.Future { return current.LeadershipTransferToServer(id, address) })
}

// AddVoter is raft.Raft.AddVoter.
func (n *Node) AddVoter(id raft.ServerID, address raft.ServerAddress, previous uint64, limit time.Duration) raft.IndexFuture {
	return n.callIndex(func(current *raft.Raft) raft.IndexFuture { return current.AddVoter(id, address, previous, limit) })
}

// AddNonvoter is raft.Raft.AddNonvoter.
func (n *Node) AddNonvoter(id raft.ServerID, address raft.ServerAddress, previous uint64, limit time.Duration) raft.IndexFuture {
	return n.callIndex(func(current *raft.Raft) raft.IndexFuture { return current.AddNonvoter(id, address, previous, limit) })
}

// DemoteVoter is raft.Raft.DemoteVoter.
func (n *Node) DemoteVoter(id raft.ServerID, previous uint64, limit time.Duration) raft.IndexFuture {
	return n.callIndex(func(current *raft.Raft) raft.IndexFuture { return current.DemoteVoter(id, previous, limit) })
}

// BootstrapCluster is raft.Raft.BootstrapCluster.
func (n *Node) BootstrapCluster(members raft.Configuration) raft.Future {
	return n.call(func(current *raft.Raft) raft.Future { return current.BootstrapCluster(members) })
}

// RemoveServer is raft.Raft.RemoveServer.
func (n *Node) RemoveServer(id raft.ServerID, previous uint64, limit time.Duration) raft.IndexFuture {
	return n.callIndex(func(current *raft.Raft) raft.IndexFuture { return current.RemoveServer(id, previous, limit) })
}

// RegisterObserver registers an observer with Raft, and again after each reopen.
func (n *Node) RegisterObserver(o *raft.Observer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.observers[o] = struct{}{}
	n.current.Load().RegisterObserver(o)
}

// DeregisterObserver undoes RegisterObserver.
func (n *Node) DeregisterObserver(o *raft.Observer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.observers, o)
	n.current.Load().DeregisterObserver(o)
}

// GetConfiguration is raft.Raft.GetConfiguration, which answers at once.
func (n *Node) GetConfiguration() raft.ConfigurationFuture {
	return n.current.Load().GetConfiguration()
}

// ReloadConfig is raft.Raft.ReloadConfig.
func (n *Node) ReloadConfig(c raft.ReloadableConfig) error {
	return n.current.Load().ReloadConfig(c)
}

// ReloadableConfig is raft.Raft.ReloadableConfig.
func (n *Node) ReloadableConfig() raft.ReloadableConfig {
	return n.current.Load().ReloadableConfig()
}

// LeaderWithID is raft.Raft.LeaderWithID.
func (n *Node) LeaderWithID() (raft.ServerAddress, raft.ServerID) {
	return n.current.Load().LeaderWithID()
}

// LeaderCh is raft.Raft.LeaderCh. After Raft has been reopened, an earlier channel delivers nothing
// more; call LeaderCh again.
func (n *Node) LeaderCh() <-chan bool { return n.current.Load().LeaderCh() }

// State is raft.Raft.State.
func (n *Node) State() raft.RaftState { return n.current.Load().State() }

// Stats is raft.Raft.Stats.
func (n *Node) Stats() map[string]string { return n.current.Load().Stats() }

// LastContact is raft.Raft.LastContact.
func (n *Node) LastContact() time.Time { return n.current.Load().LastContact() }

// CurrentTerm is raft.Raft.CurrentTerm.
func (n *Node) CurrentTerm() uint64 { return n.current.Load().CurrentTerm() }

// LastIndex is raft.Raft.LastIndex.
func (n *Node) LastIndex() uint64 { return n.current.Load().LastIndex() }

// CommitIndex is raft.Raft.CommitIndex.
func (n *Node) CommitIndex() uint64 { return n.current.Load().CommitIndex() }

// AppliedIndex is raft.Raft.AppliedIndex.
func (n *Node) AppliedIndex() uint64 { return n.current.Load().AppliedIndex() }
