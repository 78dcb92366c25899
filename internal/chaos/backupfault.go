package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/backup"
	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

const (
	// How long a backup may take, with its repetitions.
	backupTimeout = 2 * time.Minute
	// The load between the full backup and the incremental one.
	betweenBackups = time.Second
)

// restoreBackup makes a full backup under load and then an incremental one. Half of the injections
// kill the leader before the incremental one. Then it restores both to a directory of no node, half
// of the time to a random point between the two if there is one, and records what is in there; see
// invariant S32.
func restoreBackup(ctx context.Context, s *injection) error {
	f := s.fleet
	f.backups++
	dir := filepath.Join(f.dir, fmt.Sprintf("backup%d", f.backups))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	s.onHeal(func(context.Context) error { return os.RemoveAll(dir) })
	full, incremental := filepath.Join(dir, "full"), filepath.Join(dir, "incremental")
	beginFull, err := f.backUp(ctx, host.BackupRequest{File: full})
	if err != nil {
		return err
	}
	sleep(ctx, betweenBackups)
	if f.template.Partitions > 1 { // its cut is a point between the two others
		if _, err := f.backUp(ctx, host.BackupRequest{File: filepath.Join(dir, "between")}); err != nil {
			return err
		}
	}
	if s.random.IntN(2) == 0 {
		if err := s.kill(s.leader); err != nil {
			return err
		}
	}
	begin, err := f.backUp(ctx, host.BackupRequest{File: incremental, Base: full, Points: s.random.IntN(2) == 0})
	if err != nil {
		return err
	}
	var until backup.Point
	if s.random.IntN(2) == 0 {
		if until, err = pointBetween(s.random, full, incremental); err != nil {
			return err
		}
	}
	if until.Index > 0 {
		begin = beginFull
	}
	restored, err := f.readRestored(ctx, filepath.Join(dir, "restored"), until, full, incremental)
	if err != nil {
		return err
	}
	restored.Node, restored.Begin, restored.End = fmt.Sprintf("backup %d", f.backups), begin, f.log.Now()
	f.log.Replica(restored)
	return nil
}

// backUp lets one node after the other make a backup until one succeeds. It returns when that one
// began.
func (f *fleet) backUp(ctx context.Context, request host.BackupRequest) (begin time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, backupTimeout)
	defer cancel()
	for try := f.backups; ; try++ {
		begin = f.log.Now()
		var answer struct{ Err string }
		err = f.post(ctx, f.nodes[try%len(f.nodes)], host.BackupPath, request, &answer)
		if err == nil && answer.Err == "" {
			return begin, nil
		}
		if sleep(ctx, 100*time.Millisecond); ctx.Err() != nil {
			return 0, errors.Join(fmt.Errorf("back up: %w: %s", ctx.Err(), answer.Err), err)
		}
	}
}

// pointBetween returns a point between a full backup and the incremental one after it, none if
// there is none.
func pointBetween(random *rand.Rand, full, incremental string) (point backup.Point, err error) {
	var ends [2]uint64
	hasPoints := false
	for i, name := range []string{full, incremental} {
		file, err := os.Open(name)
		if err != nil {
			return point, err
		}
		info, err := backup.ReadInfo(file)
		if err = errors.Join(err, file.Close()); err != nil {
			return point, err
		}
		ends[i], hasPoints = info.Partitions[0].Index, info.HasPoints()
	}
	if hasPoints {
		point.Index = ends[0] + random.Uint64N(ends[1]-ends[0])
	}
	return point, nil
}

// readRestored restores backups to a directory, up to a point, and returns what is in there.
func (f *fleet) readRestored(ctx context.Context, dir string, until backup.Point, names ...string) (restored evidence.Replica, err error) {
	var files []io.Reader
	for _, name := range names {
		file, err := os.Open(name)
		if err != nil {
			return restored, err
		}
		defer file.Close()
		files = append(files, file)
	}
	target := backup.Target{Dir: dir, NodeID: "restored", Until: until, Logger: slog.New(slog.DiscardHandler)}
	if _, err := backup.Restore(ctx, target, files...); err != nil {
		return restored, err
	}
	restored, err = host.ReadRestored(dir, f.template.Partitions)
	return restored, err
}
