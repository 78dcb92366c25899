package journal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// reopenRaft reopens Raft on its stores whenever its log has diverged from what Raft
// believes (see logdoubt.go), until ctx ends. The node fails if that is not possible.
func (j *Journal) reopenRaft(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-j.fence.drawn:
			return
		case <-j.logs.checked.stale:
		}
		last, _ := j.logs.checked.LastIndex() // of what is in memory
		j.config.Logger.Warn("raft believes in entries of the log that are gone, and is reopened",
			"group", j.config.Group, "last", j.raft.LastIndex(), "log_ends_at", last)
		if err := j.raft.reopen(j.logs.checked.reread); err != nil {
			j.fence.draw(fmt.Errorf("reopen raft: %w", err))
			return
		}
		j.config.Logger.Info("raft was reopened", "group", j.config.Group, "last", j.raft.LastIndex())
	}
}

// reopenable is the Raft library's node. It can be reopened: shut down and started again on
// the same stores, the same state machine and the same transport, while the journal runs.
//
// The library forgets futures that are between its loops when it is shut down. So a future
// is asked for and answered under a read lock, and reopening waits for that lock.
type reopenable struct {
	transport closingTransport
	open      func(transport raft.Transport, again bool) (*raft.Raft, error)

	answering sync.RWMutex
	current   atomic.Pointer[raft.Raft]
	run       *runTransport // of current; changed by reopen alone

	mu        sync.Mutex
	observers map[*raft.Observer]struct{}
	next      chan struct{} // closed when Raft has been reopened
}

// startRaftOn starts Raft on a transport. The transport is closed by shutdown, or by the caller
// after an error.
func startRaftOn(transport closingTransport, open func(transport raft.Transport, again bool) (*raft.Raft, error)) (*reopenable, error) {
	r := &reopenable{transport: transport, open: open, observers: map[*raft.Observer]struct{}{}, next: make(chan struct{})}
	r.run = &runTransport{Transport: transport, WithPreVote: transport}
	current, err := open(r.run, false)
	r.current.Store(current)
	return r, err
}

// reopen shuts Raft down, prepares its stores, and starts it again. Only one goroutine
// calls it, and not together with shutdown.
func (r *reopenable) reopen(prepare func() error) error {
	r.answering.Lock()
	defer r.answering.Unlock()
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
	close(r.next)
	r.next = make(chan struct{})
	return nil
}

// reopened returns a channel that is closed when Raft has been reopened the next time.
func (r *reopenable) reopened() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next
}

// shutdown ends Raft and closes its transport.
func (r *reopenable) shutdown() error {
	r.run.close()
	return errors.Join(r.current.Load().Shutdown().Error(), r.transport.Close())
}

// runTransport is the transport of one start of Raft. It is not closed with Raft, and it
// answers the heartbeats that come after Raft was shut down: Raft would leave whoever waits
// for the answer waiting.
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
			message.Respond(nil, errReopening)
			return
		}
		handle(message)
	})
}

// answered is a future that lets Raft be reopened when it has answered.
type answered[F raft.Future] struct {
	future F
	once   sync.Once
	done   func()
}

// Error implements raft.Future.
func (a *answered[F]) Error() error {
	err := a.future.Error()
	a.once.Do(a.done)
	return err
}

// answeredIndex is an answered raft.IndexFuture.
type answeredIndex[F raft.IndexFuture] struct{ answered[F] }

// Index implements raft.IndexFuture.
func (a *answeredIndex[F]) Index() uint64 { return a.future.Index() }

// answeredApply is an answered raft.ApplyFuture.
type answeredApply struct {
	answeredIndex[raft.ApplyFuture]
}

// Response implements raft.ApplyFuture.
func (a *answeredApply) Response() any { return a.future.Response() }

// asked asks Raft for something. Whoever asks has to wait for the answer.
func asked[F raft.Future](r *reopenable, ask func(*raft.Raft) F) answered[F] {
	r.answering.RLock()
	return answered[F]{future: ask(r.current.Load()), done: r.answering.RUnlock}
}

func (r *reopenable) ask(ask func(*raft.Raft) raft.Future) raft.Future {
	f := asked(r, ask)
	return &f
}

func (r *reopenable) askIndex(ask func(*raft.Raft) raft.IndexFuture) raft.IndexFuture {
	return &answeredIndex[raft.IndexFuture]{asked(r, ask)}
}

// Apply is raft.Raft.Apply.
func (r *reopenable) Apply(data []byte, limit time.Duration) raft.ApplyFuture {
	return &answeredApply{answeredIndex[raft.ApplyFuture]{
		asked(r, func(current *raft.Raft) raft.ApplyFuture { return current.Apply(data, limit) }),
	}}
}

// Barrier is raft.Raft.Barrier.
func (r *reopenable) Barrier(limit time.Duration) raft.Future {
	return r.ask(func(current *raft.Raft) raft.Future { return current.Barrier(limit) })
}

// VerifyLeader is raft.Raft.VerifyLeader.
func (r *reopenable) VerifyLeader() raft.Future {
	return r.ask((*raft.Raft).VerifyLeader)
}

// Snapshot is raft.Raft.Snapshot.
func (r *reopenable) Snapshot() raft.Future {
	return r.ask(func(current *raft.Raft) raft.Future { return current.Snapshot() })
}

// LeadershipTransfer is raft.Raft.LeadershipTransfer.
func (r *reopenable) LeadershipTransfer() raft.Future {
	return r.ask((*raft.Raft).LeadershipTransfer)
}

// LeadershipTransferToServer is raft.Raft.LeadershipTransferToServer.
func (r *reopenable) LeadershipTransferToServer(id raft.ServerID, address raft.ServerAddress) raft.Future {
	return r.ask(func(current *raft.Raft) raft.Future { return current.LeadershipTransferToServer(id, address) })
}

// AddVoter is raft.Raft.AddVoter.
func (r *reopenable) AddVoter(id raft.ServerID, address raft.ServerAddress, previous uint64, limit time.Duration) raft.IndexFuture {
	return r.askIndex(func(current *raft.Raft) raft.IndexFuture { return current.AddVoter(id, address, previous, limit) })
}

// AddNonvoter is raft.Raft.AddNonvoter.
func (r *reopenable) AddNonvoter(id raft.ServerID, address raft.ServerAddress, previous uint64, limit time.Duration) raft.IndexFuture {
	return r.askIndex(func(current *raft.Raft) raft.IndexFuture { return current.AddNonvoter(id, address, previous, limit) })
}

// DemoteVoter is raft.Raft.DemoteVoter.
func (r *reopenable) DemoteVoter(id raft.ServerID, previous uint64, limit time.Duration) raft.IndexFuture {
	return r.askIndex(func(current *raft.Raft) raft.IndexFuture { return current.DemoteVoter(id, previous, limit) })
}

// BootstrapCluster is raft.Raft.BootstrapCluster.
func (r *reopenable) BootstrapCluster(members raft.Configuration) raft.Future {
	return r.ask(func(current *raft.Raft) raft.Future { return current.BootstrapCluster(members) })
}

// RemoveServer is raft.Raft.RemoveServer.
func (r *reopenable) RemoveServer(id raft.ServerID, previous uint64, limit time.Duration) raft.IndexFuture {
	return r.askIndex(func(current *raft.Raft) raft.IndexFuture { return current.RemoveServer(id, previous, limit) })
}

// RegisterObserver registers an observer with Raft, also when it was reopened.
func (r *reopenable) RegisterObserver(o *raft.Observer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observers[o] = struct{}{}
	r.current.Load().RegisterObserver(o)
}

// DeregisterObserver undoes RegisterObserver.
func (r *reopenable) DeregisterObserver(o *raft.Observer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.observers, o)
	r.current.Load().DeregisterObserver(o)
}

// GetConfiguration is raft.Raft.GetConfiguration, which answers at once.
func (r *reopenable) GetConfiguration() raft.ConfigurationFuture {
	return r.current.Load().GetConfiguration()
}

// ReloadConfig is raft.Raft.ReloadConfig.
func (r *reopenable) ReloadConfig(c raft.ReloadableConfig) error {
	return r.current.Load().ReloadConfig(c)
}

// ReloadableConfig is raft.Raft.ReloadableConfig.
func (r *reopenable) ReloadableConfig() raft.ReloadableConfig {
	return r.current.Load().ReloadableConfig()
}

// LeaderWithID is raft.Raft.LeaderWithID.
func (r *reopenable) LeaderWithID() (raft.ServerAddress, raft.ServerID) {
	return r.current.Load().LeaderWithID()
}

// LeaderCh is raft.Raft.LeaderCh; it says nothing more when Raft has been reopened.
func (r *reopenable) LeaderCh() <-chan bool { return r.current.Load().LeaderCh() }

// State is raft.Raft.State.
func (r *reopenable) State() raft.RaftState { return r.current.Load().State() }

// Stats is raft.Raft.Stats.
func (r *reopenable) Stats() map[string]string { return r.current.Load().Stats() }

// LastContact is raft.Raft.LastContact.
func (r *reopenable) LastContact() time.Time { return r.current.Load().LastContact() }

// CurrentTerm is raft.Raft.CurrentTerm.
func (r *reopenable) CurrentTerm() uint64 { return r.current.Load().CurrentTerm() }

// LastIndex is raft.Raft.LastIndex.
func (r *reopenable) LastIndex() uint64 { return r.current.Load().LastIndex() }

// CommitIndex is raft.Raft.CommitIndex.
func (r *reopenable) CommitIndex() uint64 { return r.current.Load().CommitIndex() }

// AppliedIndex is raft.Raft.AppliedIndex.
func (r *reopenable) AppliedIndex() uint64 { return r.current.Load().AppliedIndex() }
