package journal

import (
	"context"
	"time"

	"github.com/hashicorp/raft"
)

// A leader tells with the entries that it sends how far all is committed. The Raft library
// tells of the last ones, behind which nothing comes, after Config.CommitTimeout or up to
// twice that; so long a follower's callers would wait for the end of what has ended. So the
// leader says it again, without entries, as the library would later. That needs a pipeline:
// a new one goes on from the message before it, and one that has ended is soon replaced.

// noticeAfter is how long the next entry may take to bring the news.
const noticeAfter = time.Millisecond

// An entryID names one entry of the log, on whichever node: a term has one leader, which
// writes one entry at each index (Ongaro and Ousterhout, In Search of an Understandable
// Consensus Algorithm, section 5.3: log matching).
type entryID struct{ index, term uint64 }

// committed takes notice that an entry is. It is called by the one goroutine that applies
// entries, and does not block.
func (t *ackedTransport) committed(entry entryID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.latest = entry
	for p := range t.open {
		if p.awaits(entry) {
			p.announce(entry)
		}
	}
}

// confirm notes what a server has been sent last, and has, before a pipeline to it is opened.
func (t *ackedTransport) confirm(id raft.ServerID, args *raft.AppendEntriesRequest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.confirmed == nil {
		t.confirmed = make(map[raft.ServerID]*raft.AppendEntriesRequest)
	}
	if before := t.confirmed[id]; before == nil || before.Term <= args.Term {
		t.confirmed[id] = behind(args)
	}
}

// takeUp has a new pipeline to a server go on from what that has been sent last. Its commit
// may have come before the pipeline. It is called with the lock held.
func (t *ackedTransport) takeUp(id raft.ServerID, p *pipeline) {
	if sent := t.confirmed[id]; sent != nil {
		delete(t.confirmed, id)
		p.sent.Store(sent)
	}
	t.announceLatest(p)
}

// recheck has a commit told that came after the message that is being sent was made, and
// before it was noted.
func (t *ackedTransport) recheck(p *pipeline) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.announceLatest(p)
}

// announceLatest is called with the lock held.
func (t *ackedTransport) announceLatest(p *pipeline) {
	if p.awaits(t.latest) {
		p.announce(t.latest)
	}
}

// reportEnd tells that a pipeline has ended, or could not be opened.
func (t *ackedTransport) reportEnd() {
	if t.ended != nil {
		t.ended()
	}
}

// resend commits the time when a pipeline has ended, until ctx ends. Raft sends nothing to a
// server after that before there is an entry, or Config.CommitTimeout has passed.
func (j *Journal) resend(ctx context.Context) {
	for {
		select {
		case <-j.unsent:
		case <-ctx.Done():
			return
		}
		j.recordClock()
		select {
		case <-time.After(lookEvery): // a server may refuse whatever comes over a pipeline
		case <-ctx.Done():
			return
		}
	}
}

// awaits tells whether an entry is the last that was sent, and not known to be committed
// there. Of another than the one that was sent, at its index or behind, nothing may
// be said: it may be of another leader, who does not have what was sent.
func (p *pipeline) awaits(entry entryID) bool {
	sent := p.sent.Load()
	return sent != nil && entry == entryID{sent.PrevLogEntry, sent.PrevLogTerm} && sent.LeaderCommitIndex < entry.index
}

// announce has an entry told of, instead of any before it.
func (p *pipeline) announce(entry entryID) {
	select {
	case <-p.news:
	default:
	}
	p.news <- entry
}

// notify tells of committed entries until the pipeline is closed.
func (p *pipeline) notify() {
	for {
		select {
		case entry := <-p.news:
			select {
			case <-time.After(noticeAfter):
			case <-p.closed:
				return
			}
			if err := p.notice(entry); err != nil {
				_ = p.release() // Raft meets the error when it sends the next time
				p.ended()
			}
		case <-p.closed:
			return
		}
	}
}

// notice says that an entry is committed, unless another was sent meanwhile, or is being
// sent.
func (p *pipeline) notice(entry entryID) error {
	select {
	case p.sending <- struct{}{}:
	default:
		return nil
	}
	defer func() { <-p.sending }()
	if !p.awaits(entry) {
		return nil
	}
	request := *p.sent.Load()
	request.LeaderCommitIndex = entry.index
	p.sent.Store(&request)
	_, err := p.AppendPipeline.AppendEntries(&request, new(raft.AppendEntriesResponse))
	return err
}

// AppendEntries implements raft.AppendPipeline.
func (p *pipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	p.sending <- struct{}{}
	defer func() { <-p.sending }()
	p.sent.Store(behind(args))
	p.recheck()
	return p.AppendPipeline.AppendEntries(args, resp)
}

// behind returns what can be sent behind a request, without entries.
func behind(args *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	next := *args
	if n := len(args.Entries); n > 0 {
		next.PrevLogEntry, next.PrevLogTerm = args.Entries[n-1].Index, args.Entries[n-1].Term
	}
	next.Entries = nil
	return &next
}
