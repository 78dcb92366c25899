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

// stableFileName is the file with the term, the vote and the log's tail.
const stableFileName = "raft.stable"

// The file is two sectors, each written in place as a whole. A disk writes a sector completely or
// not at all, so a checksum mismatch is damage and never an interrupted write. Writing in place
// needs no room, so a running node can vote while its disk is full. It could not start then, since
// the state store needs room to open. Each sector ends with the CRC-32C of what is before it.
const (
	sectorSize    = 512
	sectorContent = sectorSize - crc32.Size
	stableMagic   = "tenuto 1"
	// logFormatBolt means that the log beside the stable file is a bbolt file.
	logFormatBolt = 1
	// candidateMax is the room after the magic, the format of the log, the two terms and the
	// length.
	candidateMax = sectorContent - len(stableMagic) - 1 - 8 - 8 - 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The keys of the Raft library's state.
const (
	keyTerm      = "CurrentTerm"
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

// stableFile is a raft.StableStore with the term and the vote. It also holds the log's tail and
// format.
type stableFile struct {
	path string
	file *os.File
	sync func(*os.File) error // syncData, or a test's replacement
	// write is the WriteAt of file, or a test's replacement.
	write func(b []byte, at int64) (int, error)

	mu               sync.Mutex
	term, voteTerm   uint64
	candidate        []byte
	tail             logTail
	voteBuf, tailBuf [sectorSize]byte
}

// createStableFile creates the file of a new directory, completely or not at all.
func createStableFile(dir string) (*stableFile, error) {
	s := &stableFile{}
	if err := writeFileAtomic(dir, stableFileName, append(s.voteSector(), s.tailSector()...)); err != nil {
		return nil, fmt.Errorf("create %s: %w", stableFileName, err)
	}
	return openStableFile(dir)
}

// openStableFile opens and verifies the file. The error wraps os.ErrNotExist if there is none, is a
// *FormatError if another version wrote it, and is a *DamagedError if it is damaged.
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
		return damaged(fmt.Sprintf("file of %d bytes instead of %d", len(content), 2*sectorSize))
	}
	voteSector, tailSector := content[:sectorSize], content[sectorSize:]
	if !isValidSector(voteSector) {
		return damaged("checksum mismatch in the term and the vote")
	}
	if !isValidSector(tailSector) {
		return damaged("checksum mismatch in the tail of the log")
	}
	if magic := string(voteSector[:len(stableMagic)]); magic != stableMagic {
		return &FormatError{Path: s.path, Want: stableMagic, Have: magic}
	}
	b := voteSector[len(stableMagic):]
	if b[0] != logFormatBolt {
		return &FormatError{Path: s.path, Want: fmt.Sprint("log ", logFormatBolt), Have: fmt.Sprint("log ", b[0])}
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

func isValidSector(sector []byte) bool {
	return crc32.Checksum(sector[:sectorContent], castagnoli) == binary.BigEndian.Uint32(sector[sectorContent:])
}

func setSectorChecksum(sector []byte) []byte {
	binary.BigEndian.PutUint32(sector[sectorContent:], crc32.Checksum(sector[:sectorContent], castagnoli))
	return sector
}

// voteSector returns the first sector.
func (s *stableFile) voteSector() []byte {
	clear(s.voteBuf[:])
	b := s.voteBuf[copy(s.voteBuf[:], stableMagic):]
	b[0] = logFormatBolt
	binary.BigEndian.PutUint64(b[1:], s.term)
	binary.BigEndian.PutUint64(b[9:], s.voteTerm)
	binary.BigEndian.PutUint16(b[17:], uint16(len(s.candidate)))
	copy(b[19:], s.candidate)
	return setSectorChecksum(s.voteBuf[:])
}

// tailSector returns the second sector.
func (s *stableFile) tailSector() []byte {
	binary.BigEndian.PutUint64(s.tailBuf[:], s.tail.index)
	binary.BigEndian.PutUint32(s.tailBuf[8:], s.tail.sum)
	return setSectorChecksum(s.tailBuf[:])
}

// Set implements raft.StableStore.
func (s *stableFile) Set(key, value []byte) error {
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
func (s *stableFile) SetUint64(key []byte, value uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch string(key) {
	case keyTerm:
		s.term = value
		return s.saveVotes()
	case keyVoteTerm:
		// Raft sets the candidate next, before it answers: one sync is enough for both.
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
	_, err := s.write(s.voteSector(), 0)
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

// setTail saves the log's tail. It syncs only if synced is set: the tail on disk may be older than
// the log, never newer.
func (s *stableFile) setTail(m logTail, synced bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tail = m
	if _, err := s.write(s.tailSector(), sectorSize); err != nil {
		return err
	}
	if synced {
		return s.sync(s.file)
	}
	return nil
}

// savedTail returns the tail that was set last.
func (s *stableFile) savedTail() logTail {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tail
}

// close syncs the tail, so that no loss of entries goes unnoticed after an orderly shutdown.
func (s *stableFile) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.file.Sync(), s.file.Close())
}

var _ raft.StableStore = (*stableFile)(nil)
