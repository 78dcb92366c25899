package transport

import (
	"time"

	"github.com/hashicorp/raft"
)

// A leader includes its commit index in each message with entries. If no entry follows, the Raft
// library sends the commit index of the last ones only after one to two Config.CommitTimeouts. A
// caller at a follower would learn only then that an instance has ended. So the leader sends the
// commit index early, in a message without entries like that of the library. Only pipelines send
// such notices. A new pipeline continues from the message before it, and one that has ended is soon
// replaced.

// NoticeDelay is how long a notice waits. If an entry is sent meanwhile, that carries the commit
// index, and the notice is dropped.
const NoticeDelay = time.Millisecond

// entryID identifies one entry of the log on any node: a term has one leader, which writes one
// entry at each index (Ongaro and Ousterhout, In Search of an Understandable Consensus Algorithm,
// section 5.3: log matching).
type entryID struct{ index, term uint64 }

// OnCommitted is called for each committed entry by the goroutine that applies entries. It does not
// block.
func (a *Acked) OnCommitted(index, term uint64) {
	entry := entryID{index, term}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lastCommitted = entry
	for p := range a.openPipelines {
		if p.isAwaiting(entry) {
			p.queueNotice(entry)
		}
	}
}

// recordConfirmed records the last message that a server has confirmed before a pipeline to it is
// opened.
func (a *Acked) recordConfirmed(id raft.ServerID, args *raft.AppendEntriesRequest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.confirmed == nil {
		a.confirmed = make(map[raft.ServerID]*raft.AppendEntriesRequest)
	}
	if before := a.confirmed[id]; before == nil || before.Term <= args.Term {
		a.confirmed[id] = requestAfter(args)
	}
}

// resumePipeline lets a new pipeline to a server continue from the last message that the server has
// confirmed. The last entry of that message may be committed already: then a notice is due now. mu
// is held.
func (a *Acked) resumePipeline(id raft.ServerID, p *pipeline) {
	if sent := a.confirmed[id]; sent != nil {
		delete(a.confirmed, id)
		p.lastSent.Store(sent)
	}
	a.queueLatestNotice(p)
}

// recheckCommit queues a notice if an entry was committed after Raft made the message being sent,
// and before lastSent recorded the message: OnCommitted has missed it.
func (a *Acked) recheckCommit(p *pipeline) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.queueLatestNotice(p)
}

// queueLatestNotice queues a notice of the latest commit if p waits for it. mu is held.
func (a *Acked) queueLatestNotice(p *pipeline) {
	if p.isAwaiting(a.lastCommitted) {
		p.queueNotice(a.lastCommitted)
	}
}

// reportPipelineEnd reports that a pipeline has ended, or could not be opened.
func (a *Acked) reportPipelineEnd() {
	if a.OnPipelineEnd != nil {
		a.OnPipelineEnd()
	}
}

// isAwaiting reports whether an entry is the last one sent and its commit index has not been sent.
// The commit of any other entry must not be sent, even at the same index: another leader, which
// lacks the entry sent here, may have committed it.
func (p *pipeline) isAwaiting(entry entryID) bool {
	sent := p.lastSent.Load()
	return sent != nil && entry == entryID{sent.PrevLogEntry, sent.PrevLogTerm} && sent.LeaderCommitIndex < entry.index
}

// queueNotice queues a notice of an entry and replaces any earlier one.
func (p *pipeline) queueNotice(entry entryID) {
	select {
	case <-p.notices:
	default:
	}
	p.notices <- entry
}

// sendNotices sends notices of committed entries until the pipeline is closed.
func (p *pipeline) sendNotices() {
	for {
		select {
		case entry := <-p.notices:
			select {
			case <-time.After(NoticeDelay):
			case <-p.closed:
				return
			}
			if err := p.sendNotice(entry); err != nil {
				_ = p.closeInner() // Raft gets the error at its next send
				p.onEnd()
			}
		case <-p.closed:
			return
		}
	}
}

// sendNotice sends the commit index of an entry, unless another entry was or is being sent.
func (p *pipeline) sendNotice(entry entryID) error {
	select {
	case p.sendSlot <- struct{}{}:
	default:
		return nil
	}
	defer func() { <-p.sendSlot }()
	if !p.isAwaiting(entry) {
		return nil
	}
	request := *p.lastSent.Load()
	request.LeaderCommitIndex = entry.index
	p.lastSent.Store(&request)
	_, err := p.AppendPipeline.AppendEntries(&request, new(raft.AppendEntriesResponse))
	return err
}

// AppendEntries implements raft.AppendPipeline.
func (p *pipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	p.sendSlot <- struct{}{}
	defer func() { <-p.sendSlot }()
	p.lastSent.Store(requestAfter(args))
	p.recheckCommit()
	return p.AppendPipeline.AppendEntries(args, resp)
}

// requestAfter returns a request without entries that can follow args.
func requestAfter(args *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	next := *args
	if n := len(args.Entries); n > 0 {
		next.PrevLogEntry, next.PrevLogTerm = args.Entries[n-1].Index, args.Entries[n-1].Term
	}
	next.Entries = nil
	return &next
}
