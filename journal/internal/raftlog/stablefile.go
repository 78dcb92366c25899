package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
)

// StableFileName is the file with the term, the vote and the log's tail.
const StableFileName = "raft.stable"

// The file is two sectors, each written in place as a whole. A disk writes a sector completely or
// not at all, so a checksum mismatch is damage and never an interrupted write. Writing in place
// needs no room, so a running node can vote while its disk is full. It could not start then, since
// the state store needs room to open. Each sector ends with the CRC-32C of what is before it.
const (
	stableMagic = "tenuto 1"
	// logFormatBolt means that the log beside the stable file is a bbolt file.
	logFormatBolt = 1
	// candidateMax is the room after the magic, the format of the log, the two terms and the
	// length.
	candidateMax = diskfile.SectorContent - len(stableMagic) - 1 - 8 - 8 - 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The keys of the Raft library's state.
const (
	KeyTerm      = "CurrentTerm"
	keyVoteTerm  = "LastVoteTerm"
	keyCandidate = "LastVoteCand"
)

// logTail is the index and the checksum of the last entry of the log. The saved tail is never newer
// than the synced log. So entries missing up to it were lost, while entries missing after it may
// never have been synced, which is normal.
type logTail struct {
	index uint64
	sum   uint32
}

// StableFile is a raft.StableStore with the term and the vote. It also holds the log's tail and
// format.
type StableFile struct {
	path string
	file *os.File
	sync func(*os.File) error // syncData, unless intercepted
	// write is the WriteAt of file, unless intercepted.
	write func(b []byte, at int64) (int, error)

	mu               sync.Mutex
	term, voteTerm   uint64
	candidate        []byte
	tail             logTail
	voteBuf, tailBuf [diskfile.SectorSize]byte
}

// createStableFile creates the file of a new directory, completely or not at all.
func createStableFile(dir string) (*StableFile, error) {
	s := &StableFile{}
	if err := diskfile.WriteAtomic(dir, StableFileName, append(s.voteSector(), s.tailSector()...)); err != nil {
		return nil, fmt.Errorf("create %s: %w", StableFileName, err)
	}
	return openStableFile(dir)
}

// openStableFile opens and verifies the file. The error wraps os.ErrNotExist if there is none, is a
// *diskfile.FormatError if another version wrote it, and is a *diskfile.DamagedError if it is
// damaged.
func openStableFile(dir string) (*StableFile, error) {
	path := filepath.Join(dir, StableFileName)
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read term and vote: %w", err)
	}
	s := &StableFile{path: path, sync: syncData}
	if err := s.decode(content); err != nil {
		return nil, err
	}
	if s.file, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
		return nil, fmt.Errorf("open term and vote: %w", err)
	}
	s.write = s.file.WriteAt
	return s, nil
}

func (s *StableFile) decode(content []byte) error {
	damaged := func(reason string) error { return &diskfile.DamagedError{Path: s.path, Reason: reason} }
	if len(content) != 2*diskfile.SectorSize {
		return damaged(fmt.Sprintf("file of %d bytes instead of %d", len(content), 2*diskfile.SectorSize))
	}
	voteSector, tailSector := content[:diskfile.SectorSize], content[diskfile.SectorSize:]
	if !diskfile.IsValidSector(voteSector) {
		return damaged("checksum mismatch in the term and the vote")
	}
	if !diskfile.IsValidSector(tailSector) {
		return damaged("checksum mismatch in the tail of the log")
	}
	if magic := string(voteSector[:len(stableMagic)]); magic != stableMagic {
		return &diskfile.FormatError{Path: s.path, Want: stableMagic, Have: magic}
	}
	b := voteSector[len(stableMagic):]
	if b[0] != logFormatBolt {
		return &diskfile.FormatError{Path: s.path, Want: fmt.Sprint("log ", logFormatBolt), Have: fmt.Sprint("log ", b[0])}
	}
	s.term, s.voteTerm = binary.BigEndian.Uint64(b[1:]), binary.BigEndian.Uint64(b[9:])
	n := int(binary.BigEndian.Uint16(b[17:]))
	if n > candidateMax {
		return damaged(fmt.Sprintf("candidate of %d bytes is too long", n))
	}
	s.candidate = append([]byte(nil), b[19:19+n]...)
	s.tail = logTail{index: binary.BigEndian.Uint64(tailSector), sum: binary.BigEndian.Uint32(tailSector[8:])}
	return nil
}

// voteSector returns the first sector.
func (s *StableFile) voteSector() []byte {
	clear(s.voteBuf[:])
	b := s.voteBuf[copy(s.voteBuf[:], stableMagic):]
	b[0] = logFormatBolt
	binary.BigEndian.PutUint64(b[1:], s.term)
	binary.BigEndian.PutUint64(b[9:], s.voteTerm)
	binary.BigEndian.PutUint16(b[17:], uint16(len(s.candidate)))
	copy(b[19:], s.candidate)
	return diskfile.SetSectorChecksum(s.voteBuf[:])
}

// tailSector returns the second sector.
func (s *StableFile) tailSector() []byte {
	binary.BigEndian.PutUint64(s.tailBuf[:], s.tail.index)
	binary.BigEndian.PutUint32(s.tailBuf[8:], s.tail.sum)
	return diskfile.SetSectorChecksum(s.tailBuf[:])
}

// Set implements raft.StableStore.
func (s *StableFile) Set(key, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if string(key) != keyCandidate {
		return fmt.Errorf("unknown key %q", key)
	}
	if len(value) > candidateMax {
		return fmt.Errorf("candidate address of %d bytes exceeds the limit of %d", len(value), candidateMax)
	}
	s.candidate = append([]byte(nil), value...)
	return s.saveVotes()
}

// SetUint64 implements raft.StableStore.
func (s *StableFile) SetUint64(key []byte, value uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch string(key) {
	case KeyTerm:
		s.term = value
		return s.saveVotes()
	case keyVoteTerm:
		// Raft sets the candidate next, before it answers: one sync is enough for both.
		s.voteTerm = value
		return s.writeVotes()
	}
	return fmt.Errorf("unknown key %q", key)
}

func (s *StableFile) saveVotes() error {
	if err := s.writeVotes(); err != nil {
		return err
	}
	return s.sync(s.file)
}

func (s *StableFile) writeVotes() error {
	_, err := s.write(s.voteSector(), 0)
	return err
}

// Get implements raft.StableStore.
func (s *StableFile) Get(key []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if string(key) != keyCandidate || len(s.candidate) == 0 {
		return nil, nil
	}
	return append([]byte(nil), s.candidate...), nil
}

// GetUint64 implements raft.StableStore.
func (s *StableFile) GetUint64(key []byte) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch string(key) {
	case KeyTerm:
		return s.term, nil
	case keyVoteTerm:
		return s.voteTerm, nil
	}
	return 0, nil
}

// Intercept lets hook make each write and each sync from now on. It is for tests of faults.
func (s *StableFile) Intercept(hook func(do func() error) error) {
	write, sync := s.write, s.sync
	s.write = func(b []byte, at int64) (n int, err error) {
		err = hook(func() error { n, err = write(b, at); return err })
		return n, err
	}
	s.sync = func(f *os.File) error { return hook(func() error { return sync(f) }) }
}

// setTail saves the log's tail. It syncs only if synced is set: the tail on disk may be older than
// the log, never newer.
func (s *StableFile) setTail(m logTail, synced bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tail = m
	if _, err := s.write(s.tailSector(), diskfile.SectorSize); err != nil {
		return err
	}
	if synced {
		return s.sync(s.file)
	}
	return nil
}

// savedTail returns the tail that was set last.
func (s *StableFile) savedTail() logTail {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tail
}

// Close syncs the tail, so that no loss of entries goes unnoticed after an orderly shutdown.
func (s *StableFile) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.file.Sync(), s.file.Close())
}

var _ raft.StableStore = (*StableFile)(nil)

// UndoPartialBootstrap undoes an interrupted bootstrap. Raft sets the term to 1 before it writes
// the first entry; without that entry the node would never belong to a partition. A node that has
// taken part in an election is in a later term.
func UndoPartialBootstrap(logs raft.LogStore, stable raft.StableStore) error {
	term, err := stable.GetUint64([]byte(KeyTerm))
	if err != nil || term != 1 {
		return ignoreNotFound(err)
	}
	if last, err := logs.LastIndex(); err != nil || last > 0 {
		return err
	}
	return stable.SetUint64([]byte(KeyTerm), 0)
}

// CurrentTerm returns the term in a stable store; 0, the term of no leader, on an error.
func CurrentTerm(stable raft.StableStore) uint64 {
	term, _ := stable.GetUint64([]byte(KeyTerm))
	return term
}

// ignoreNotFound drops the error for a missing key of a stable store, such as Raft's in-memory one.
func ignoreNotFound(err error) error {
	if err != nil && err.Error() == "not found" {
		return nil
	}
	return err
}
