package replaytest

import (
	"errors"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A journal is the real state machine without a Raft group. An append waits until it is
// admitted, so that the Go scheduler does not decide the order of commits.
type journal struct {
	*state.Machine
	// Signals that an arrival waits or an attempt has failed. Created in the bubble, with a
	// capacity of 1.
	changed chan struct{}

	applyMu sync.Mutex // serializes records

	mu      sync.Mutex
	pending []*proposal
	closed  bool
}

// A proposal is an append that is not committed yet.
type proposal struct {
	append  *journalpb.Append
	done    func(error)
	arrival *arrival // set by arrivalOf
}

// errClosed is the error of appends while the environment closes.
var errClosed = errors.New("the test has ended")

func newJournal() *journal {
	return &journal{Machine: state.New(), changed: make(chan struct{}, 1)}
}

// notify signals a change.
func (j *journal) notify() {
	select {
	case j.changed <- struct{}{}:
	default:
	}
}

// beginEpoch starts an epoch of a cluster with the newest protocol.
func (j *journal) beginEpoch() (epoch uint64, err error) {
	epoch, err = j.apply(&journalpb.Record{Command: &journalpb.Record_Epoch{Epoch: new(journalpb.Epoch)}})
	if err != nil {
		return 0, err
	}
	newest := &journalpb.MetadataChange{Epoch: epoch, Protocol: state.NewestProtocol}
	_, err = j.apply(&journalpb.Record{Command: &journalpb.Record_MetadataChange{MetadataChange: newest}})
	return epoch, err
}

func (j *journal) apply(record *journalpb.Record) (epoch uint64, err error) {
	encoded, err := proto.Marshal(record)
	if err != nil {
		return 0, err
	}
	j.applyMu.Lock()
	defer j.applyMu.Unlock()
	return j.Machine.Apply(encoded)
}

// Append holds the append until it is admitted.
func (j *journal) Append(a *journalpb.Append, done func(error)) {
	j.mu.Lock()
	closed := j.closed
	if !closed {
		j.pending = append(j.pending, &proposal{append: proto.CloneOf(a), done: done})
	}
	j.mu.Unlock()
	if closed {
		done(errClosed)
		return
	}
	j.notify()
}

// SetCondition applies the condition at once.
func (j *journal) SetCondition(c *journalpb.SetCondition, done func(error)) {
	_, err := j.apply(&journalpb.Record{Command: &journalpb.Record_SetCondition{SetCondition: c}})
	done(err)
}

// CopyHistory applies the copy at once.
func (j *journal) CopyHistory(c *journalpb.CopyHistory, done func(error)) {
	_, err := j.apply(&journalpb.Record{Command: &journalpb.Record_CopyHistory{CopyHistory: c}})
	done(err)
	j.notify()
}

// Attempt applies the attempt at once: it records no event, and its order has no effect. It signals
// a failed attempt, so that endless retries are noticed.
func (j *journal) Attempt(a *journalpb.Attempt, done func(error)) {
	_, err := j.apply(&journalpb.Record{Command: &journalpb.Record_Attempt{Attempt: a}})
	done(err)
	if a.NextAt != 0 {
		j.notify()
	}
}

// pendingProposals returns the appends that wait.
func (j *journal) pendingProposals() []*proposal {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.pending[:len(j.pending):len(j.pending)]
}

// commit applies a proposal.
func (j *journal) commit(p *proposal) error {
	j.mu.Lock()
	for i := range j.pending {
		if j.pending[i] == p {
			j.pending = append(j.pending[:i:i], j.pending[i+1:]...)
			break
		}
	}
	j.mu.Unlock()
	_, err := j.apply(&journalpb.Record{Command: &journalpb.Record_Append{Append: p.append}})
	p.done(err)
	return err
}

// close rejects waiting and later appends.
func (j *journal) close() {
	j.mu.Lock()
	j.closed = true
	held := j.pending
	j.pending = nil
	j.mu.Unlock()
	for _, p := range held {
		p.done(errClosed)
	}
}

// events returns the history of an execution; 0 means the latest.
func (j *journal) events(id string, execution uint64) ([]*journalpb.Event, error) {
	var events []*journalpb.Event
	for event, err := range j.Events(id, execution, 1) {
		if err != nil {
			return nil, err
		}
		events = append(events, event)
	}
	return events, nil
}
