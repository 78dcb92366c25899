package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
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
// kill the leader before the incremental one. Then it restores both to a directory of no node, and
// records what is in there; see invariant S32.
func restoreBackup(ctx context.Context, s *injection) error {
	f := s.fleet
	f.backups++
	dir := filepath.Join(f.dir, fmt.Sprintf("backup%d", f.backups))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	s.onHeal(func(context.Context) error { return os.RemoveAll(dir) })
	full, incremental := filepath.Join(dir, "full"), filepath.Join(dir, "incremental")
	if _, err := f.backUp(ctx, host.BackupRequest{File: full}); err != nil {
		return err
	}
	sleep(ctx, betweenBackups)
	if s.random.IntN(2) == 0 {
		if err := s.kill(s.leader); err != nil {
			return err
		}
	}
	begin, err := f.backUp(ctx, host.BackupRequest{File: incremental, Base: full})
	if err != nil {
		return err
	}
	restored, err := f.readRestored(ctx, filepath.Join(dir, "restored"), full, incremental)
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

// readRestored restores backups to a directory and returns what is in there.
func (f *fleet) readRestored(ctx context.Context, dir string, names ...string) (restored evidence.Replica, err error) {
	var files []io.Reader
	for _, name := range names {
		file, err := os.Open(name)
		if err != nil {
			return restored, err
		}
		defer file.Close()
		files = append(files, file)
	}
	target := backup.Target{Dir: dir, NodeID: "restored", Logger: slog.New(slog.DiscardHandler)}
	if _, err := backup.Restore(ctx, target, files...); err != nil {
		return restored, err
	}
	restored, err = host.ReadRestored(dir, f.template.Partitions)
	return restored, err
}
