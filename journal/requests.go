package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/clock"
	"github.com/tenuto-dev/tenuto/journal/internal/snapshot"
	"github.com/tenuto-dev/tenuto/journal/internal/transport"
)

// requestServer answers the requests of other nodes for a snapshot or for the cluster time.
type requestServer struct {
	journal   *Journal
	snapshots *snapshot.Server
}

// serve answers on a connection whose first byte has been read, in a goroutine of the journal, and
// closes it. ctx ends it early.
func (r *requestServer) serve(ctx context.Context, conn net.Conn) {
	answer := func() {
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		defer stop()
		defer conn.Close()
		err := error(nil)
		if sender := transport.SenderOf(conn); sender != "" && !r.journal.isAdmitted(sender) {
			err = fmt.Errorf("%w: %s", transport.ErrUnknownMember, sender)
			r.journal.rejections.Add(sender, err)
		} else {
			err = r.handle(ctx, &snapshot.TimeoutConn{Conn: conn})
		}
		if err != nil && ctx.Err() == nil {
			r.journal.config.Logger.Warn("cannot answer a request for a snapshot or state", "sender", transport.SenderOf(conn), "error", err)
		}
	}
	if !r.journal.callers.start(answer) {
		_ = conn.Close()
	}
}

func (r *requestServer) handle(ctx context.Context, conn net.Conn) error {
	magic := make([]byte, len(snapshot.RequestMagic)-1)
	if _, err := io.ReadFull(conn, magic); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	switch string(magic) {
	case snapshot.RequestMagic[1:]:
		return r.snapshots.Serve(ctx, conn)
	case clock.RequestMagic[1:]:
		return r.journal.clock.ServeReading(conn, r.journal.config.Cluster)
	default:
		return fmt.Errorf("request begins with %q", snapshot.RequestMagic[:1]+string(magic))
	}
}

// newRequestServer returns the server of a journal, which need not run yet.
func newRequestServer(j *Journal, snapshots *snapshot.Store) *requestServer {
	return &requestServer{j, snapshot.NewServer(snapshot.Server{
		Cluster: j.config.Cluster, Snapshots: snapshots, AppliedIndex: j.AppliedIndex, TakeSnapshot: func() error {
			if err := j.raft.Snapshot().Error(); !errors.Is(err, raft.ErrNothingNewToSnapshot) {
				return err
			}
			return nil
		},
		OnServed: func() { j.stats.snapshotsServed.Add(1) }, Logger: j.config.Logger,
	})}
}
