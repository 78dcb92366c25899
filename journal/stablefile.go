package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sync"

	"github.com/hashicorp/raft"
)

// stableFileName is the file with the term, the vote and the mark.
const stableFileName = "raft.stable"

// The file is two sectors, each written in place as a whole: a disk writes a
// sector or does not, so that one that does not check is damage and never a
// write that was cut off. In place also means that a full disk is no reason not
// to vote, while the node runs: the state store does not open without room.
// Each sector ends with the CRC-32C of what is before it.
const (
	sectorSize    = 512
	sectorContent = sectorSize - crc32.Size
	stableMagic   = "tenuto 1"
	// logFormatBolt says that the log beside the stable file is a bbolt file.
	logFormatBolt = 1
	// candidateMax is what fits behind the magic, the format of the log, the two
	// terms and the length.
	candidateMax = sectorContent - len(stableMagic) - 1 - 8 - 8 - 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The keys under which the Raft library keeps its state.
const (
	keyTerm      = "CurrentTerm"
	keyVoteTerm  = "LastVoteTerm"
	keyCandidate = "LastVoteCand"
)

// logMark says how far the log is known to be on disk: the last index and the
// sum of that entry. It is what tells a tail that was cut off before it was
// synced, which is normal, from one that got lost afterwards.
type logMark struct {
	index uint64
	sum   uint32
}

// stableFile is a raft.StableStore: the term, the vote, and beside them the mark
// and the format of the log that the directory has.
type stableFile struct {
	path string
	file *os.File
	sync func(*os.File) error // syncData, or what a test has put in its place
	// write is the WriteAt of file, or what a test has put in its place.
	write func(b []byte, at int64) (int, error)

	mu               sync.Mutex
	term, voteTerm   uint64
	candidate        []byte
	mark             logMark
	voteBuf, markBuf [sectorSize]byte
}

// createStableFile creates the file of a new directory, whole or not at all.
func createStableFile(dir string) (*stableFile, error) {
	s := &stableFile{}
	if err := writeSynced(dir, stableFileName, append(s.votes(), s.marks()...)); err != nil {
		return nil, fmt.Errorf("create %s: %w", stableFileName, err)
	}
	return openStableFile(dir)
}

// openStableFile opens the file and checks it. The error wraps os.ErrNotExist if
// there is none, is a *FormatError if another version has written it, and is a
// *DamagedError if anything is not as it was written.
func openStableFile(dir string) (*stableFile, error) {
	path := filepath.Join(dir, stableFileName)
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read term and vote: %w", err)
	}
	s := &stableFile{path: path, sync: syncData}
	if err := s.decode(content); err != nil {
		return nil, err
	}
	if s.file, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
		return nil, fmt.Errorf("open term and vote: %w", err)
	}
	s.write = s.file.WriteAt
	return s, nil
}

func (s *stableFile) decode(content []byte) error {
	damaged := func(reason string) error { return &DamagedError{Path: s.path, Reason: reason} }
	if len(content) != 2*sectorSize {
		return damaged(fmt.Sprintf("%d bytes where %d belong", len(content), 2*sectorSize))
	}
	votes, marks := content[:sectorSize], content[sectorSize:]
	if !sectorChecks(votes) {
		return damaged("the term and the vote do not check")
	}
	if !sectorChecks(marks) {
		return damaged("the mark of the log does not check")
	}
	if magic := string(votes[:len(stableMagic)]); magic != stableMagic {
		return &FormatError{Path: s.path, Want: stableMagic, Have: magic}
	}
	b := votes[len(stableMagic):]
	if b[0] != logFormatBolt {
		return &FormatError{Path: s.path, Want: fmt.Sprint("log ", logFormatBolt), Have: fmt.Sprint("log ", b[0])}
	}
	s.term, s.voteTerm = binary.BigEndian.Uint64(b[1:]), binary.BigEndian.Uint64(b[9:])
	n := int(binary.BigEndian.Uint16(b[17:]))
	if n > candidateMax {
		return damaged(fmt.Sprintf("a candidate of %d bytes", n))
	}
	s.candidate = append([]byte(nil), b[19:19+n]...)
	s.mark = logMark{index: binary.BigEndian.Uint64(marks), sum: binary.BigEndian.Uint32(marks[8:])}
	return nil
}

func sectorChecks(sector []byte) bool {
	return crc32.Checksum(sector[:sectorContent], castagnoli) == binary.BigEndian.Uint32(sector[sectorContent:])
}

func sealSector(sector []byte) []byte {
	binary.BigEndian.PutUint32(sector[sectorContent:], crc32.Checksum(sector[:sectorContent], castagnoli))
	return sector
}

// votes returns the first sector.
func (s *stableFile) votes() []byte {
	clear(s.voteBuf[:])
	b := s.voteBuf[copy(s.voteBuf[:], stableMagic):]
	b[0] = logFormatBolt
	binary.BigEndian.PutUint64(b[1:], s.term)
	binary.BigEndian.PutUint64(b[9:], s.voteTerm)
	binary.BigEndian.PutUint16(b[17:], uint16(len(s.candidate)))
	copy(b[19:], s.candidate)
	return sealSector(s.voteBuf[:])
}

// marks returns the second sector.
func (s *stableFile) marks() []byte {
	binary.BigEndian.PutUint64(s.markBuf[:], s.mark.index)
	binary.BigEndian.PutUint32(s.markBuf[8:], s.mark.sum)
	return sealSector(s.markBuf[:])
}

// Set implements raft.StableStore.
func (s *stableFile) Set(key, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if string(key) != keyCandidate {
		return fmt.Errorf("unknown key %q", key)
	}
	if len(value) > candidateMax {
		return fmt.Errorf("a candidate's address of %d bytes is over the limit of %d", len(value), candidateMax)
	}
	s.candidate = append([]byte(nil), value...)
	return s.saveVotes()
}

// SetUint64 implements raft.StableStore.
func (s *stableFile) SetUint64(key []byte, value uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch string(key) {
	case keyTerm:
		s.term = value
		return s.saveVotes()
	case keyVoteTerm:
		// Raft sets for whom it votes next, before it says so: one sync is enough for
		// both.
		s.voteTerm = value
		return s.writeVotes()
	}
	return fmt.Errorf("unknown key %q", key)
}

func (s *stableFile) saveVotes() error {
	if err := s.writeVotes(); err != nil {
		return err
	}
	return s.sync(s.file)
}

func (s *stableFile) writeVotes() error {
	_, err := s.write(s.votes(), 0)
	return err
}

// Get implements raft.StableStore.
func (s *stableFile) Get(key []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if string(key) != keyCandidate || len(s.candidate) == 0 {
		return nil, nil
	}
	return append([]byte(nil), s.candidate...), nil
}

// GetUint64 implements raft.StableStore.
func (s *stableFile) GetUint64(key []byte) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch string(key) {
	case keyTerm:
		return s.term, nil
	case keyVoteTerm:
		return s.voteTerm, nil
	}
	return 0, nil
}

// setMark notes how far the log is on disk. It is not synced unless told so:
// the mark on disk may be older than the log, never newer.
func (s *stableFile) setMark(m logMark, synced bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mark = m
	if _, err := s.write(s.marks(), sectorSize); err != nil {
		return err
	}
	if synced {
		return s.sync(s.file)
	}
	return nil
}

// marked returns the mark that was set last.
func (s *stableFile) marked() logMark {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mark
}

// close syncs the mark, so that after an orderly end nothing of the log can get
// lost unnoticed.
func (s *stableFile) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.file.Sync(), s.file.Close())
}

var _ raft.StableStore = (*stableFile)(nil)
