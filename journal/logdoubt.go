package journal

import (
	"errors"
	"fmt"
)

// A write that fails because the disk is full leaves two questions.
//
// What is in the store? A store may say that a write failed although it is in effect: the
// file system had no room for the sync alone. So after each failed write the log compares
// what the store has with what it believes. Entries that were appended all the same are
// deleted before the next write. Otherwise a shorter append would leave some of them behind
// it, and the log would not check when it is opened again.
//
// What does Raft believe? A follower that deletes a conflicting suffix and cannot append
// what belongs there keeps the deleted entry as its last one (hashicorp/raft v1.8.0,
// raft.go:1564). It refuses every later message of its leader, or worse, says that it has an
// entry that is gone. The same happens when a snapshot of the leader ends before the
// uncommitted tail of the follower: Raft deletes the log and keeps its last index. The log
// has diverged then. From this moment it takes no writes and nothing leaves the node, and
// the journal reopens Raft on its stores (see reopen.go).

// logDoubt is what a log remembers of writes that failed.
type logDoubt struct {
	// truncated is set between the truncation of a suffix and the next append.
	truncated bool
	// surplus is the index of the last entry in the store behind the tail; 0: none.
	surplus uint64
}

// errReopening is the error of a log of which Raft believes what is no longer true. It
// passes when Raft was reopened.
var errReopening = errors.New("raft is about to be reopened on its log")

// noteTruncation notes that entries from first up to the last, which was before, were
// deleted. Raft has more entries to append after it has deleted a conflict, which lies
// behind all snapshots, and none after it has installed a snapshot.
func (l *checkedLogs) noteTruncation(first, before uint64) {
	if before == 0 || l.tail.index == before {
		return // nothing, or a prefix
	}
	l.mu.Lock()
	conflict, replaced := first > l.snapshot, before <= l.snapshot
	l.mu.Unlock()
	switch {
	case conflict:
		l.doubt.truncated = true
	case !replaced:
		l.diverge()
	}
}

// appendFailed looks what became of an append that has failed, and returns its error.
func (l *checkedLogs) appendFailed(err error) error {
	if !mayPass(err) {
		return err
	}
	_, last, boundsErr := l.bounds()
	if boundsErr != nil {
		return fmt.Errorf("%w, after: %v", boundsErr, err)
	}
	if last > l.tail.index {
		l.doubt.surplus = last
	}
	if l.doubt.truncated {
		l.diverge()
	}
	return err
}

// deleteFailed looks what became of a deletion that has failed, and returns its error.
func (l *checkedLogs) deleteFailed(err error) error {
	if !mayPass(err) {
		return err
	}
	first, last, boundsErr := l.bounds()
	switch {
	case boundsErr != nil:
		return fmt.Errorf("%w, after: %v", boundsErr, err)
	case first != l.first() || last != l.tail.index:
		l.diverge() // it is in effect
	case l.stable != nil:
		if markErr := l.stable.setMark(l.tail, false); markErr != nil { // it was moved back
			return fmt.Errorf("%w, after: %v", markErr, err)
		}
	}
	return err
}

// removeSurplus deletes what a failed append has left behind the tail.
func (l *checkedLogs) removeSurplus() error {
	if l.doubt.surplus == 0 {
		return nil
	}
	if l.stable != nil {
		if err := l.stable.setMark(l.tail, true); err != nil { // it may be ahead
			return err
		}
	}
	first, last := l.tail.index+1, l.doubt.surplus
	if err := l.store.guarded(func() error { return l.store.DeleteRange(first, last) }); err != nil {
		return err
	}
	l.doubt.surplus = 0
	return nil
}

// diverge stops the log until Raft was reopened on it.
func (l *checkedLogs) diverge() {
	if l.diverged.CompareAndSwap(false, true) {
		notify(l.stale)
	}
}
