package backup

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/internal/lineage"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

const (
	// Lease is how long a checkpoint is kept after it was made or last read.
	Lease = 2 * time.Minute
	// ReadMax is the most bytes of one read.
	ReadMax = 1 << 20
	// cutsMax bounds the cuts that Begin tries until all partitions have a checkpoint at the same
	// cut.
	cutsMax = 10
	// dirName is the name of the directory of a partition's checkpoint in the directory of its
	// journal.
	dirName = "backup"
)

var (
	// ErrInProgress means that the node serves another backup.
	ErrInProgress = errors.New("tenuto: another backup of this node is in progress")
	// ErrClosed means that the node was closed.
	ErrClosed = admission.ErrClosed
	// ErrNotFound means that the node has no such checkpoint, for example because it has expired.
	ErrNotFound = errors.New("tenuto: the node has no such backup; it may have expired")
	// ErrInMemory means that the node has no directory.
	ErrInMemory = errors.New("tenuto: the node keeps its journal in memory: nothing to back up, compare or prove")
	// ErrMissed means that flushes have prevented all cuts.
	ErrMissed = errors.New("tenuto: the node was too busy for a checkpoint: try again")
)

// A Partition is a partition of the cluster, on this node.
type Partition struct {
	Dir     string // of its journal; "" if the journal is in memory
	Journal *journal.Journal
	// RecordCut asks the partition's leader, which may be another node, to record a cut.
	RecordCut func(ctx context.Context, cut uint64) error
}

// A Server makes and serves one checkpoint at a time. Its methods may be called concurrently.
type Server struct {
	partitions []Partition
	logger     *slog.Logger
	ctx        context.Context // ends with Close
	cancel     context.CancelFunc
	making     sync.Mutex // held while a checkpoint is made; after Close it is never unlocked
	pacer      pacer

	pointing sync.Mutex
	pointed  uint64 // applied, at the latest RecordPoint; guarded by pointing

	mu     sync.Mutex
	served *clusterpb.BackupBegun // the checkpoint that exists; nil if there is none
	begun  []uint64               // where the latest checkpoint ends, until End is called for it
	expiry *time.Timer            // runs while served is set
}

// NewServer returns the server of a node, and removes the checkpoint that an earlier process left.
func NewServer(partitions []Partition, logger *slog.Logger) *Server {
	s := &Server{partitions: partitions, logger: logger}
	s.pacer.applied = s.applied
	s.ctx, s.cancel = context.WithCancel(context.Background())
	_ = s.removeFiles() // Begin tries again, and returns the error
	return s
}

// Begin makes a checkpoint and describes it. after is that of [clusterpb.BeginBackupRequest]. The
// caller sets the fields Cluster and Version.
//
// Errors: [ErrInProgress]; [ErrClosed]; [ErrInMemory]; [ErrMissed] if ten cuts were missed; errors
// of ctx, of recording a cut and of the stores.
func (s *Server) Begin(ctx context.Context, after []uint64) (*clusterpb.BackupBegun, error) {
	if !s.making.TryLock() {
		return nil, s.refusal()
	}
	defer s.making.Unlock()
	if s.isServing() {
		return nil, ErrInProgress
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	begun, err := s.makeCheckpoint(ctx)
	if err == nil {
		s.retainBegun(begun) // the copy of the entries takes long
		err = s.copyEntries(ctx, begun, after)
	}
	if err != nil {
		return nil, errors.Join(err, s.removeFiles())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.served = begun
	s.expiry = time.AfterFunc(Lease, func() { _ = s.End(begun.Id, false, nil) })
	return begun, nil
}

// refusal returns why no other checkpoint can be made now.
func (s *Server) refusal() error {
	if s.ctx.Err() != nil {
		return ErrClosed
	}
	return ErrInProgress
}

func (s *Server) isServing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.served != nil
}

// makeCheckpoint tries cuts until one succeeds.
func (s *Server) makeCheckpoint(ctx context.Context) (*clusterpb.BackupBegun, error) {
	err := s.removeFiles()
	if err != nil {
		return nil, err
	}
	for range cutsMax {
		var begun *clusterpb.BackupBegun
		if begun, err = s.tryCut(ctx); err == nil {
			return begun, nil
		}
		if removeErr := s.removeFiles(); removeErr != nil || !errors.Is(err, journal.ErrCutMissed) {
			return nil, errors.Join(err, removeErr)
		}
	}
	return nil, ErrMissed
}

// tryCut makes a checkpoint at a new cut. It records the cut in all partitions while this node
// waits for the recorded cut in each. The error is journal.ErrCutMissed if another cut may succeed.
func (s *Server) tryCut(ctx context.Context) (*clusterpb.BackupBegun, error) {
	begun := &clusterpb.BackupBegun{Id: NewID()}
	made := make([]*journal.Checkpoint, len(s.partitions))
	preparing, preparingCtx := errgroup.WithContext(ctx)
	for _, p := range s.partitions {
		if p.Dir == "" {
			return nil, ErrInMemory
		}
		preparing.Go(func() error { return p.Journal.PrepareCheckpoint(preparingCtx) })
	}
	if err := preparing.Wait(); err != nil {
		return nil, err
	}
	begun.Cut = s.nextCut()
	cutting, ctx := errgroup.WithContext(ctx)
	for i, p := range s.partitions {
		cutting.Go(func() (err error) {
			made[i], err = p.Journal.CheckpointAtCut(ctx, begun.Cut, filepath.Join(p.Dir, dirName))
			return err
		})
		cutting.Go(func() error { return p.RecordCut(ctx, begun.Cut) })
	}
	if err := cutting.Wait(); err != nil {
		return nil, err
	}
	for _, of := range made {
		begun.Partitions = append(begun.Partitions, encode(of))
		begun.Time = max(begun.Time, of.AppendedAt.UnixNano())
	}
	first := s.partitions[0].Journal
	begun.Lineage, begun.Protocol = lineage.Latest(first.Lineages()).GetId(), first.Protocol()
	return begun, nil
}

// entriesFile is the name of the file with the entries of the log, beside those of the state.
const entriesFile = "entries"

// copyEntries copies the entries after those of another backup into the checkpoint. If that is not
// possible, the files of the state suffice. The error is that of ctx.
func (s *Server) copyEntries(ctx context.Context, begun *clusterpb.BackupBegun, after []uint64) error {
	if len(after) != len(s.partitions) {
		return nil
	}
	for i, p := range s.partitions {
		of := begun.Partitions[i]
		path := filepath.Join(p.Dir, dirName, entriesFile)
		to := &entriesWriter{ctx: ctx, pause: s.pacer.pause}
		err := to.create(path)
		if err == nil {
			err = errors.Join(p.Journal.WriteEntries(ctx, to, after[i], of.Index), to.close())
		}
		if err == nil {
			of.Entries = &clusterpb.BackupFile{Name: entriesFile, Size: to.size, Crc32C: to.sum}
		} else if err := os.Remove(path); err != nil && ctx.Err() == nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && !errors.Is(err, journal.ErrNoEntries) {
			s.logger.Warn("cannot copy the log for a backup, copying files of the state instead", "partition", i, "error", err)
		}
	}
	return nil
}

// An entriesWriter writes a file, in parts of ReadMax bytes, before each of which it pauses as a
// read does.
type entriesWriter struct {
	ctx   context.Context
	pause func(context.Context) error

	file   *os.File
	buffer *bufio.Writer
	size   int64
	sum    uint32
}

func (w *entriesWriter) create(path string) (err error) {
	w.file, err = os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	w.buffer = bufio.NewWriterSize(partWriter{w}, ReadMax)
	return err
}

// Write implements io.Writer.
func (w *entriesWriter) Write(b []byte) (int, error) { return w.buffer.Write(b) }

func (w *entriesWriter) close() error { return errors.Join(w.buffer.Flush(), w.file.Close()) }

// A partWriter writes a part of the file.
type partWriter struct{ *entriesWriter }

// Write implements io.Writer.
func (w partWriter) Write(b []byte) (int, error) {
	if err := w.pause(w.ctx); err != nil {
		return 0, err
	}
	n, err := w.file.Write(b)
	w.size, w.sum = w.size+int64(n), crc32.Update(w.sum, castagnoli, b[:n])
	return n, err
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (s *Server) nextCut() (cut uint64) {
	for _, p := range s.partitions {
		cut = max(cut, p.Journal.Cut()+1)
	}
	return cut
}

// RecordPoint records a cut in all partitions, unless nothing was applied since the latest one: a
// point to restore to between two backups. It does nothing with one partition, where every entry is
// such a point.
func (s *Server) RecordPoint(ctx context.Context) error {
	s.pointing.Lock()
	defer s.pointing.Unlock()
	if len(s.partitions) == 1 || s.applied() == s.pointed {
		return nil
	}
	cut, before := s.nextCut(), s.applied()
	cutting, cuttingCtx := errgroup.WithContext(ctx)
	for _, p := range s.partitions {
		cutting.Go(func() error { return p.RecordCut(cuttingCtx, cut) })
	}
	if err := cutting.Wait(); err != nil {
		return err
	}
	if err := s.awaitCut(ctx, cut); err != nil {
		return err
	}
	// What was applied beside the records of the cut may not be in the point.
	if s.pointed = s.applied(); s.pointed-before > uint64(len(s.partitions)) {
		s.pointed = 0
	}
	return nil
}

// cutInterval is how often awaitCut checks whether this node has applied a cut.
const cutInterval = 20 * time.Millisecond

// awaitCut waits until this node has applied a recorded cut in all partitions.
func (s *Server) awaitCut(ctx context.Context, cut uint64) error {
	for slices.ContainsFunc(s.partitions, func(p Partition) bool { return p.Journal.Cut() < cut }) {
		if err := admission.Sleep(ctx, nil, cutInterval); err != nil {
			return err
		}
	}
	return nil
}

// NewID returns a random ID of 32 hexadecimal digits.
func NewID() string {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	return hex.EncodeToString(id)
}

func encode(c *journal.Checkpoint) *clusterpb.BackupPartition {
	p := &clusterpb.BackupPartition{Index: c.Index, Term: c.Term, Database: c.Database}
	for _, f := range c.Files {
		p.Files = append(p.Files, &clusterpb.BackupFile{Name: f.Name, Size: f.Size, Crc32C: f.CRC32C, Immutable: f.Immutable})
	}
	return p
}

// parts are buffers of ReadMax bytes. The allocation and the clearing of a new one for each part
// would cost a third of what reading it costs.
var parts sync.Pool // *[ReadMax]byte

func newPart() []byte {
	if part, ok := parts.Get().(*[ReadMax]byte); ok {
		return part[:]
	}
	return make([]byte, ReadMax)
}

// Reuse lets a later Read return the buffer that an earlier one has returned. The caller must not
// use it afterwards.
func Reuse(data []byte) {
	if cap(data) == ReadMax {
		parts.Put((*[ReadMax]byte)(data[:ReadMax]))
	}
}

// Read returns a part of a file of the checkpoint: at most [ReadMax] bytes, and fewer than
// requested at the end of the file. While the node is in use, it first pauses for up to 25 ms, in
// which case the error may be that of ctx. Other errors are [ErrNotFound] and those of the file.
func (s *Server) Read(ctx context.Context, r *clusterpb.ReadBackupRequest) ([]byte, error) {
	path, err := s.pathOf(r)
	if err != nil {
		return nil, err
	}
	if err := s.pacer.pause(ctx); err != nil {
		return nil, err
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read backup: %w", err)
	}
	data := newPart()[:min(r.Size, ReadMax)]
	n, err := file.ReadAt(data, r.Offset)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return data[:n], errors.Join(err, file.Close())
}

// applied returns how many entries the node has applied, of all partitions.
func (s *Server) applied() (entries uint64) {
	for _, p := range s.partitions {
		entries += p.Journal.AppliedIndex()
	}
	return entries
}

// pathOf returns the path of a file of the checkpoint, and renews the lease.
func (s *Server) pathOf(r *clusterpb.ReadBackupRequest) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.served == nil || s.served.Id != r.Id || int(r.Partition) >= len(s.partitions) ||
		r.File == "" || strings.ContainsAny(r.File, `/\`) || r.File == ".." {
		return "", ErrNotFound
	}
	s.expiry.Reset(Lease)
	return filepath.Join(s.partitions[r.Partition].Dir, dirName, r.File), nil
}

// End removes the checkpoint with an ID, if it exists. With keepLog, the node keeps the log after
// it, for a backup that continues it, and no longer the log after the indexes instead, if there are
// any.
func (s *Server) End(id string, keepLog bool, instead []uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.served == nil || s.served.Id != id {
		return nil
	}
	if keepLog {
		s.retainLogs(s.begun, instead)
	} else {
		s.retainLogs(nil, s.begun)
	}
	s.begun = nil
	return s.end()
}

func indexesOf(begun *clusterpb.BackupBegun) (indexes []uint64) {
	for _, p := range begun.Partitions {
		indexes = append(indexes, p.Index)
	}
	return indexes
}

// retainBegun keeps the log after a checkpoint until End is called for it, and no longer that after
// an earlier one whose copy of the log failed.
func (s *Server) retainBegun(begun *clusterpb.BackupBegun) {
	s.mu.Lock()
	defer s.mu.Unlock()
	indexes := indexesOf(begun)
	s.retainLogs(indexes, s.begun)
	s.begun = indexes
}

// retainLogs keeps the log after an index of each partition, instead of that after another one;
// each may be nil. If that is not possible, the next backup has files of the state.
func (s *Server) retainLogs(after, instead []uint64) {
	if after == nil && instead == nil {
		return
	}
	of := func(indexes []uint64, partition int) uint64 {
		if len(indexes) != len(s.partitions) {
			return 0
		}
		return indexes[partition]
	}
	for i, p := range s.partitions {
		if err := p.Journal.RetainLog(of(after, i), of(instead, i)); err != nil {
			s.logger.Warn("cannot keep the log for the next backup", "partition", i, "error", err)
		}
	}
}

// Close waits until Begin has returned, and removes the checkpoint, if there is one. Later calls of
// Begin return [ErrClosed]. Close must be called once.
func (s *Server) Close() error {
	s.cancel()
	s.making.Lock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.served == nil {
		return nil
	}
	return s.end()
}

func (s *Server) end() error {
	s.expiry.Stop()
	s.served = nil
	return s.removeFiles()
}

func (s *Server) removeFiles() error {
	var err error
	for _, p := range s.partitions {
		if p.Dir != "" {
			err = errors.Join(err, os.RemoveAll(filepath.Join(p.Dir, dirName)))
		}
	}
	return err
}
