package replaytest

import (
	"errors"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A journal is the real state machine without the Raft group around it. An
// append waits until it is let in, so that somebody else than the Go scheduler
// decides in which order appends are committed.
type journal struct {
	*state.Machine
	// Somebody waits to be let in, or an attempt has failed. Made in the bubble,
	// of one place.
	changed chan struct{}

	applying sync.Mutex // one record after the other

	mu     sync.Mutex
	held   []*proposal
	closed bool
}

// A proposal is an append that is not decided.
type proposal struct {
	append  *journalpb.Append
	done    func(error)
	arrival *arrival // once it was looked at
}

// errClosed is what appends are refused with while everything ends.
var errClosed = errors.New("the test has ended")

func newJournal() *journal {
	return &journal{Machine: state.New(), changed: make(chan struct{}, 1)}
}

// notify wakes whoever waits for a change.
func (j *journal) notify() {
	select {
	case j.changed <- struct{}{}:
	default:
	}
}

// reign begins an epoch, in a cluster that has come to the newest protocol.
func (j *journal) reign() (epoch uint64, err error) {
	epoch, err = j.apply(&journalpb.Record{Command: &journalpb.Record_Epoch{Epoch: new(journalpb.Epoch)}})
	if err != nil {
		return 0, err
	}
	newest := &journalpb.GroupChange{Epoch: epoch, Protocol: state.NewestProtocol}
	_, err = j.apply(&journalpb.Record{Command: &journalpb.Record_GroupChange{GroupChange: newest}})
	return epoch, err
}

func (j *journal) apply(record *journalpb.Record) (epoch uint64, err error) {
	encoded, err := proto.Marshal(record)
	if err != nil {
		return 0, err
	}
	j.applying.Lock()
	defer j.applying.Unlock()
	return j.Machine.Apply(encoded)
}

// Append holds the append until it is let in.
func (j *journal) Append(a *journalpb.Append, done func(error)) {
	j.mu.Lock()
	closed := j.closed
	if !closed {
		j.held = append(j.held, &proposal{append: proto.CloneOf(a), done: done})
	}
	j.mu.Unlock()
	if closed {
		done(errClosed)
		return
	}
	j.notify()
}

// SetCondition decides at once, too.
func (j *journal) SetCondition(c *journalpb.SetCondition, done func(error)) {
	_, err := j.apply(&journalpb.Record{Command: &journalpb.Record_SetCondition{SetCondition: c}})
	done(err)
}

// Attempt decides at once: it is no event, and nothing depends on its order. One
// that will be followed by another is news, lest attempts that fail for ever go
// unnoticed.
func (j *journal) Attempt(a *journalpb.Attempt, done func(error)) {
	_, err := j.apply(&journalpb.Record{Command: &journalpb.Record_Attempt{Attempt: a}})
	done(err)
	if a.NextAt != 0 {
		j.notify()
	}
}

// waiting returns what waits to be let in.
func (j *journal) waiting() []*proposal {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.held[:len(j.held):len(j.held)]
}

// commit lets a proposal in.
func (j *journal) commit(p *proposal) error {
	j.mu.Lock()
	for i := range j.held {
		if j.held[i] == p {
			j.held = append(j.held[:i:i], j.held[i+1:]...)
			break
		}
	}
	j.mu.Unlock()
	_, err := j.apply(&journalpb.Record{Command: &journalpb.Record_Append{Append: p.append}})
	p.done(err)
	return err
}

// close refuses what waits and what is still to come.
func (j *journal) close() {
	j.mu.Lock()
	j.closed = true
	held := j.held
	j.held = nil
	j.mu.Unlock()
	for _, p := range held {
		p.done(errClosed)
	}
}
