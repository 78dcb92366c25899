package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/frame"
)

// snapshotServer answers requests for a snapshot, one at a time, and requests for the cluster time.
type snapshotServer struct {
	journal *Journal
	busy    chan struct{} // holds a token during an answer
}

// serve answers on a connection whose first byte has been read, in a goroutine of the journal, and
// closes it. ctx ends it early.
func (h *snapshotServer) serve(ctx context.Context, conn net.Conn) {
	answer := func() {
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		defer stop()
		defer conn.Close()
		err := error(nil)
		if sender := senderOf(conn); sender != "" && !h.journal.isAdmitted(sender) {
			err = fmt.Errorf("%w: %s", errUnknownMember, sender)
			h.journal.refusals.add(sender, err)
		} else {
			err = h.handle(ctx, &timeoutConn{conn})
		}
		if err != nil && ctx.Err() == nil {
			h.journal.config.Logger.Warn("cannot answer request", "error", err)
		}
	}
	if !h.journal.callers.start(answer) {
		_ = conn.Close()
	}
}

func (h *snapshotServer) handle(ctx context.Context, conn net.Conn) error {
	magic := make([]byte, len(snapshotRequestMagic)-1)
	if _, err := io.ReadFull(conn, magic); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	switch string(magic) {
	case snapshotRequestMagic[1:]:
		return h.handleSnapshotRequest(ctx, conn)
	case clockRequestMagic[1:]:
		return h.journal.serveClockReading(conn)
	default:
		return fmt.Errorf("request begins with %q", snapshotRequestMagic[:1]+string(magic))
	}
}

func (h *snapshotServer) handleSnapshotRequest(ctx context.Context, conn net.Conn) error {
	var q snapshotRequest
	if err := frame.ReadJSON(conn, &q); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	select {
	case h.busy <- struct{}{}:
		defer func() { <-h.busy }()
	case <-ctx.Done():
		return ctx.Err()
	}
	m, err := h.findSnapshot(&q)
	if err != nil {
		return errors.Join(err, frame.WriteJSON(conn, "", snapshotReply{Refusal: err.Error()}))
	}
	return h.send(conn, m, &q)
}

// findSnapshot returns the newest snapshot if it satisfies the request, or takes one now. A
// snapshot holds only what is committed, so this node need not lead.
func (h *snapshotServer) findSnapshot(q *snapshotRequest) (*manifest, error) {
	j := h.journal
	if q.Cluster != j.config.Cluster {
		return nil, fmt.Errorf("this node belongs to cluster %q", j.config.Cluster)
	}
	if j.fsm.snapshots == nil {
		return nil, errors.New("this node keeps everything in memory")
	}
	for again := true; ; again = false {
		all, err := j.fsm.snapshots.manifests()
		if err != nil {
			return nil, err
		}
		if len(all) > 0 && all[0].Index >= q.MinIndex {
			return all[0], nil
		}
		if applied := j.fsm.appliedIndex(); !again || applied < q.MinIndex {
			return nil, fmt.Errorf("this node has applied entries up to %d, not %d", applied, q.MinIndex)
		}
		if err := j.raft.Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
			return nil, fmt.Errorf("take snapshot: %w", err)
		}
	}
}

func (h *snapshotServer) send(conn net.Conn, m *manifest, q *snapshotRequest) error {
	stream, err := h.journal.fsm.snapshots.newStream(m)
	if err != nil {
		return errors.Join(err, frame.WriteJSON(conn, "", snapshotReply{Refusal: err.Error()}))
	}
	err = frame.WriteJSON(conn, "", snapshotReply{})
	if err == nil {
		_, err = io.Copy(conn, stream)
	}
	if err = errors.Join(err, stream.Close()); err != nil {
		return fmt.Errorf("send snapshot: %w", err)
	}
	h.journal.stats.snapshotsServed.Add(1)
	h.journal.config.Logger.Info("snapshot sent", "index", m.Index, "to", q.Node)
	return nil
}
