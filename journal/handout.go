package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/hashicorp/raft"
)

// handouts answer the nodes that ask for a snapshot, one at a time, and those that
// ask for the time.
type handouts struct {
	journal *Journal
	busy    chan struct{} // holds a token during an answer
}

// take answers on a connection whose first byte has been read, in a goroutine of
// the journal, and closes it. ctx ends it early.
func (h *handouts) take(ctx context.Context, conn net.Conn) {
	answer := func() {
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		defer stop()
		defer conn.Close()
		err := error(nil)
		if sender := senderOf(conn); sender != "" && !h.journal.admitsMember(sender) {
			err = fmt.Errorf("%w: %s", errStranger, sender)
			h.journal.refusals.add(sender, err)
		} else {
			err = h.answer(ctx, &patientConn{conn})
		}
		if err != nil && ctx.Err() == nil {
			h.journal.config.Logger.Warn("a question was not answered", "error", err)
		}
	}
	if !h.journal.callers.start(answer) {
		_ = conn.Close()
	}
}

func (h *handouts) answer(ctx context.Context, conn net.Conn) error {
	magic := make([]byte, len(askMagic)-1)
	if _, err := io.ReadFull(conn, magic); err != nil {
		return fmt.Errorf("read question: %w", err)
	}
	switch string(magic) {
	case askMagic[1:]:
		return h.answerSnapshot(ctx, conn)
	case clockMagic[1:]:
		return h.journal.tellTime(conn)
	default:
		return fmt.Errorf("a question that begins with %q", askMagic[:1]+string(magic))
	}
}

func (h *handouts) answerSnapshot(ctx context.Context, conn net.Conn) error {
	var q question
	if err := readAsk(conn, &q); err != nil {
		return fmt.Errorf("read question: %w", err)
	}
	select {
	case h.busy <- struct{}{}:
		defer func() { <-h.busy }()
	case <-ctx.Done():
		return ctx.Err()
	}
	m, err := h.snapshot(&q)
	if err != nil {
		return errors.Join(err, writeAsk(conn, "", reply{Refusal: err.Error()}))
	}
	return h.send(conn, m, &q)
}

// snapshot returns one that is good for whoever asks: the newest, or if that is
// not new enough, one that is taken now. It holds nothing but what is committed,
// so that the node need not lead.
func (h *handouts) snapshot(q *question) (*manifest, error) {
	j := h.journal
	if q.Cluster != j.config.Cluster {
		return nil, fmt.Errorf("this node is of the cluster %q", j.config.Cluster)
	}
	if j.fsm.snapshots == nil {
		return nil, errors.New("this node keeps everything in memory")
	}
	for again := true; ; again = false {
		all, err := j.fsm.snapshots.manifests()
		if err != nil {
			return nil, err
		}
		if len(all) > 0 && all[0].Index >= q.Least {
			return all[0], nil
		}
		if applied := j.fsm.appliedIndex(); !again || applied < q.Least {
			return nil, fmt.Errorf("this node has entries up to %d, not %d", applied, q.Least)
		}
		if err := j.raft.Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
			return nil, fmt.Errorf("take snapshot: %w", err)
		}
	}
}

func (h *handouts) send(conn net.Conn, m *manifest, q *question) error {
	stream, err := h.journal.fsm.snapshots.newStream(m)
	if err != nil {
		return errors.Join(err, writeAsk(conn, "", reply{Refusal: err.Error()}))
	}
	err = writeAsk(conn, "", reply{})
	if err == nil {
		_, err = io.Copy(conn, stream)
	}
	if err = errors.Join(err, stream.Close()); err != nil {
		return fmt.Errorf("hand out snapshot: %w", err)
	}
	h.journal.stats.handedOut.Add(1)
	h.journal.config.Logger.Info("a snapshot was handed out", "index", m.Index, "to", q.Node)
	return nil
}
