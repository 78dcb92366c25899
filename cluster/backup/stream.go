package backup

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
	"github.com/tenuto-dev/tenuto/internal/frame"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/replay"
)

// A stream is
//
//	"tenuto-backup-1\n" frame(JSON of Info) (frame(part of a file)* for each file) trailer
//
// with the frames of package frame, and the files of all partitions in the order of Info, those of
// the state before those of the log, without those that an earlier backup has. The last part of a
// file is shorter than partBytes, or empty and then without a frame.
const (
	magic = "tenuto-backup-1\n"
	// formatFiles has no partition with a log, formatLog has.
	formatFiles = 1
	formatLog   = 2
	// partBytes is the size of a part, and of one read from the node.
	partBytes = 1 << 20
	// infoBytesMax bounds the Info of a stream: a million files.
	infoBytesMax = 256 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Info describes a backup. Its JSON begins the stream.
type Info struct {
	Format int `json:"format"`
	// ID is random. Base is the ID of the backup that this one continues, "" for a full one.
	ID   string `json:"id"`
	Base string `json:"base,omitempty"`
	// Cluster is the cluster's ID, and Lineage that of its latest lineage, "" if it was never
	// restored.
	Cluster string `json:"cluster"`
	Lineage string `json:"lineage,omitempty"`
	// Cut is the latest cut in the state. Each backup that is begun, and each point that a [Plan]
	// records, has a higher one.
	Cut uint64 `json:"cut"`
	// Time is when the last entry was appended, by the wall clock of its leader: the backup has
	// nothing that was recorded later.
	Time time.Time `json:"time"`
	// Node is the ID of the node whose files were copied, and Version its build.
	Node    string `json:"node"`
	Version string `json:"version,omitempty"`
	// Protocol is that of the cluster.
	Protocol   uint32      `json:"protocol"`
	Partitions []Partition `json:"partitions"`
}

// A Partition is the state of a partition in a backup.
type Partition struct {
	// Index and Term are those of the last entry in the state.
	Index uint64 `json:"index"`
	Term  uint64 `json:"term"`
	// Database names the database of the node: immutable files of one name in one database are
	// equal.
	Database string `json:"database"`
	Files    []File `json:"files"`
	// Log has the entries of the log between the state in Files, which then ends at the entry
	// StateIndex of StateTerm, and Index, oldest first. If it is empty, Files has the state at
	// Index.
	Log        []File `json:"log,omitempty"`
	StateIndex uint64 `json:"state_index,omitempty"`
	StateTerm  uint64 `json:"state_term,omitempty"`
}

// state returns the index and the term of the last entry in Files.
func (p *Partition) state() (index, term uint64) {
	if len(p.Log) == 0 {
		return p.Index, p.Term
	}
	return p.StateIndex, p.StateTerm
}

// all yields the files of the state and of the log.
func (p *Partition) all() iter.Seq[*File] {
	return func(yield func(*File) bool) {
		for _, files := range [][]File{p.Files, p.Log} {
			for i := range files {
				if !yield(&files[i]) {
					return
				}
			}
		}
	}
}

// HasPoints reports whether the backup has the entries of all partitions since the one that it
// continues, so that [Restore] can go to points between them.
func (i *Info) HasPoints() bool {
	return i.Base != "" && !slices.ContainsFunc(i.Partitions, func(p Partition) bool {
		return len(p.Log) == 0 || p.Log[len(p.Log)-1].In != ""
	})
}

// A File is a part of the state of a partition.
type File struct {
	Name      string `json:"name"`
	Size      int64  `json:"size"`
	CRC32C    uint32 `json:"crc32c"`
	Immutable bool   `json:"immutable,omitempty"`
	// In is the ID of the earlier backup whose stream has the file, "" if this one has it.
	In string `json:"in,omitempty"`
}

// Bytes returns the bytes of the files in the stream, and those of all files that Restore needs.
func (i *Info) Bytes() (stream, state int64) {
	for n := range i.Partitions {
		for f := range i.Partitions[n].all() {
			if state += f.Size; f.In == "" {
				stream += f.Size
			}
		}
	}
	return stream, state
}

// check returns an error for what no build writes.
func (i *Info) check() error {
	if i.Format != formatFiles && i.Format != formatLog {
		return invalid("format", fmt.Sprintf("is %d: this build reads %d and %d", i.Format, formatFiles, formatLog))
	}
	if !isID(i.ID) || i.Base != "" && !isID(i.Base) {
		return invalid("ID", fmt.Sprintf("is %.100q, of the base %.100q: 32 hexadecimal digits are required", i.ID, i.Base))
	}
	if !transport.IsName(i.Cluster) {
		return invalid("cluster", fmt.Sprintf("is %.100q: %s", i.Cluster, transport.NameRule))
	}
	if len(i.Partitions) == 0 || len(i.Partitions) > partitionsMax {
		return invalid("description", fmt.Sprintf("has %d partitions: 1 to %d are allowed", len(i.Partitions), partitionsMax))
	}
	total := int64(0)
	for n := range i.Partitions {
		if err := i.Partitions[n].check(&total); err != nil {
			return err
		}
	}
	return nil
}

// check returns an error for what no build writes. It adds the bytes of the files to total.
func (p *Partition) check(total *int64) error {
	if state, _ := p.state(); state > p.Index {
		return invalid("log", fmt.Sprintf("is of the entries from %d to %d", state, p.Index))
	}
	type place struct{ in, name string }
	names, places := make(map[string]bool), make(map[place]bool)
	for f := range p.all() {
		at := place{f.In, f.Name}
		if !f.isValid() || places[at] || f.Size > math.MaxInt64-*total {
			return invalid("file", fmt.Sprintf("is %.100q of %d bytes, in %.100q", f.Name, f.Size, f.In))
		}
		places[at], *total = true, *total+f.Size
	}
	for _, f := range p.Files {
		if names[f.Name] {
			return invalid("file", fmt.Sprintf("%.100q exists twice", f.Name))
		}
		names[f.Name] = true
	}
	return nil
}

// checkProtocol returns an error if this build, on a node, could not use the state.
func (i *Info) checkProtocol(node string) error {
	const newest = journal.NewestProtocol
	if i.Protocol <= newest {
		return nil
	}
	return fmt.Errorf("backup %s, written by version %.100q: %w", i.ID, i.Version, &cluster.VersionError{Node: node, Oldest: newest - 1, Newest: newest, Required: i.Protocol})
}

// isAfter reports whether the state can be a later one of the same cluster.
func (i *Info) isAfter(before *Info) bool {
	if i.Cluster != before.Cluster || i.Lineage != before.Lineage || len(i.Partitions) != len(before.Partitions) || i.Cut <= before.Cut || i.Protocol < before.Protocol {
		return false
	}
	for n := range i.Partitions {
		if i.Partitions[n].Index < before.Partitions[n].Index {
			return false
		}
	}
	return true
}

const (
	// partitionsMax is that of a cluster.
	partitionsMax = 64
	// fileNameMax bounds the name of a file, in bytes, as file systems do.
	fileNameMax = 255
)

// isValid reports whether a file can be written to a directory.
func (f *File) isValid() bool {
	isName := f.Name != "" && f.Name != "." && f.Name != ".." && len(f.Name) <= fileNameMax &&
		!strings.ContainsAny(f.Name, `/\`) && !strings.ContainsFunc(f.Name, unicode.IsControl)
	return isName && f.Size >= 0 && (f.In == "" || isID(f.In))
}

// isID reports whether a text is the ID of a backup, which becomes the name of a directory.
func isID(text string) bool {
	b, err := hex.DecodeString(text)
	return err == nil && len(b) == 16
}

func invalid(field, reason string) error {
	return &replay.InvalidError{Field: "backup: " + field, Reason: reason}
}

// ReadInfo reads the beginning of a stream.
func ReadInfo(from io.Reader) (*Info, error) {
	return readInfo(newReader(from))
}

func readInfo(from *frame.Reader) (*Info, error) {
	begin := make([]byte, len(magic))
	if err := from.Bytes(begin); err != nil {
		return nil, damaged(err)
	}
	if string(begin) != magic {
		return nil, invalid("beginning", fmt.Sprintf("is %.20q: it is no backup, or one of another version", begin))
	}
	encoded, err := from.Frame(infoBytesMax)
	if err != nil {
		return nil, damaged(err)
	}
	info := new(Info)
	if err := json.Unmarshal(encoded, info); err != nil {
		return nil, damaged(err)
	}
	return info, info.check()
}

// ErrDamaged means that a backup is incomplete, or differs from its checksums.
var ErrDamaged = errors.New("tenuto: the backup is damaged")

// damaged returns the error of a backup that is damaged, or that could not be read.
func damaged(reason error) error {
	if _, ok := errors.AsType[*readError](reason); ok {
		return fmt.Errorf("read backup: %w", reason)
	}
	return fmt.Errorf("%w: %w", ErrDamaged, reason)
}

// A readError is one of a reader that says nothing of what it would have read.
type readError struct{ error }

// Unwrap returns the reader's error.
func (e *readError) Unwrap() error { return e.error }

// A backupReader marks such errors.
type backupReader struct{ from io.Reader }

// Read implements io.Reader.
func (r *backupReader) Read(b []byte) (int, error) {
	n, err := r.from.Read(b)
	if err != nil && err != io.EOF && !errors.Is(err, io.ErrUnexpectedEOF) {
		err = &readError{err}
	}
	return n, err
}

func newReader(from io.Reader) *frame.Reader { return frame.NewReader(&backupReader{from}) }

// readStream reads a whole stream and verifies it. create returns where the content of a file goes,
// nil to drop it; it is closed.
func readStream(from io.Reader, accept func(*Info) error, create func(partition int, f *File) (io.WriteCloser, error)) (*Info, error) {
	r := newReader(from)
	info, err := readInfo(r)
	if err == nil {
		err = accept(info)
	}
	if err != nil {
		return nil, err
	}
	for i := range info.Partitions {
		for f := range info.Partitions[i].all() {
			if f.In != "" {
				continue
			}
			to, err := create(i, f)
			if err != nil {
				return nil, err
			}
			if err := errors.Join(readFile(r, f, to), to.Close()); err != nil {
				return nil, fmt.Errorf("file %s of partition %d: %w", f.Name, i, err)
			}
		}
	}
	if err = r.Trailer(); err == nil {
		err = r.End()
	}
	if err != nil {
		return nil, damaged(err)
	}
	return info, nil
}

func readFile(r *frame.Reader, f *File, to io.Writer) error {
	sum, size := uint32(0), int64(0)
	for size < f.Size {
		part, err := r.Frame(partBytes)
		if err != nil {
			return damaged(err)
		}
		sum = crc32.Update(sum, castagnoli, part)
		size += int64(len(part))
		if _, err := to.Write(part); err != nil {
			return err
		}
	}
	if size != f.Size || sum != f.CRC32C {
		return damaged(errors.New("its size or checksum differs from the description"))
	}
	return nil
}
