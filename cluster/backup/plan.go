package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A Plan makes backups at intervals:
//
//	cluster.Config{Backups: backup.Plan{To: backup.Directory("/backups/shop"), Every: time.Hour, Keep: 72}}
//
// All nodes of a cluster should have the same plan. The node that leads the first partition
// executes it, from the files of another node if there is one. If that node is lost or loses its
// leadership, the next leader makes the backup; what the first one has written is no backup. If a
// backup fails, it is tried again after 1 s, 2 s and so on, up to 5 minutes or Every. The outcome
// is part of [cluster.Health], of the metrics and of the dashboard; a cause that passes by itself,
// such as a change of leader, counts as a failure after 3 minutes.
type Plan struct {
	// To is where backups are stored. Every node must reach it, and no other cluster may use it.
	// Required.
	To Sink
	// Every is the time from the beginning of one backup to that of the next, 1 s or more.
	// Required. The first is made at once.
	Every time.Duration
	// Keep is how many backups are kept, besides those that they continue. Older ones are removed.
	// Backups of earlier lineages of the cluster are never removed. Defaults to 0: all are kept.
	Keep int
	// Increments is how many incremental backups follow a full one, before the next full one; -1
	// for none. To restore, all from the full one on are read. Defaults to 23.
	Increments int
	// Points makes it possible to restore to moments between two backups: to every entry of the
	// log, or with several partitions to points that are recorded every 10 s. Incremental backups
	// then have all entries since the one before, even if the changed files are smaller, and an
	// incremental backup is made right before each full one. A backup has no points if the node no
	// longer had the whole log since the one before; see [Options]. Defaults to false.
	Points bool
}

const (
	everyMin          = time.Second
	incrementsDefault = 23
	incrementsMax     = 10_000
)

// Check implements the interface of [cluster.Config.Backups].
func (p Plan) Check() error {
	switch {
	case p.To == nil:
		return invalidPlan("To", "is nil")
	case p.Every < everyMin:
		return invalidPlan("Every", fmt.Sprintf("is %v: the minimum is %v", p.Every, everyMin))
	case p.Keep < 0:
		return invalidPlan("Keep", fmt.Sprintf("is %d: it must not be negative", p.Keep))
	case p.Points && p.Increments == -1:
		return invalidPlan("Points", "is set, but Increments is -1: only incremental backups have points")
	case p.Increments < -1 || p.Increments > incrementsMax:
		return invalidPlan("Increments", fmt.Sprintf("is %d: -1 to %d are allowed", p.Increments, incrementsMax))
	}
	return nil
}

// Interval implements the interface of [cluster.Config.Backups].
func (p Plan) Interval() time.Duration { return p.Every }

// Run implements the interface of [cluster.Config.Backups]. Nodes call it.
func (p Plan) Run(ctx context.Context, node *cluster.Node) {
	internals, err := node.Client().Internal(access.Key{})
	if err != nil || internals.Backups == nil {
		return // the node is closed
	}
	r := &runner{
		plan: p, leads: internals.Backups.Leads, origin: internals.Backups.Origin, progress: internals.Backups.Progress,
		logger: internals.Backups.Logger, point: internals.Backups.RecordPoint,
		begin: func(ctx context.Context, base *Info) (checkpoint, error) {
			s, err := begin(ctx, node.Client(), Options{Base: base, Points: p.Points})
			if err != nil {
				return nil, err
			}
			return s, nil
		},
		record: func(ctx context.Context, outcome *journalpb.BackupRecord) error {
			_, err := internals.Call(ctx, &clusterpb.Request{Call: &clusterpb.Request_RecordBackup{
				RecordBackup: &clusterpb.RecordBackupRequest{Outcome: outcome},
			}})
			return err
		},
	}
	r.run(ctx)
}

// put stores a checkpoint in a sink under a name, and returns the size of the stream.
func put(ctx context.Context, to Sink, name string, from checkpoint, progress func(written, total int64)) (size int64, err error) {
	content, writer := io.Pipe()
	counted := &countingWriter{to: writer}
	copied := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		err := from.write(ctx, counted, progress)
		copied <- err // before Put can see it
		writer.CloseWithError(err)
	}()
	defer func() { // after a panic of Put, too
		select {
		case copyErr := <-copied:
			err = cmp.Or(copyErr, err)
		default:
			cancel()
			content.CloseWithError(errStopped)
			<-copied
			err = cmp.Or(err, errStopped)
		}
		size = counted.written
	}()
	return 0, to.Put(ctx, name, content)
}

// errStopped ends a copy that the sink has not read to its end.
var errStopped = errors.New("the sink has not read all of the backup")

// A countingWriter counts the bytes that were written.
type countingWriter struct {
	to      io.Writer
	written int64
}

// Write implements io.Writer.
func (w *countingWriter) Write(b []byte) (int, error) {
	n, err := w.to.Write(b)
	w.written += int64(n)
	return n, err
}
