package state

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// The values of SnapshotHeader.format: the one written, and the older one that can still be read.
// The older format has no attempts and no chained starts. A node that knows only the older format
// must reject a newer snapshot, because it would lose them.
const (
	snapshotFormat         = 2
	snapshotFormatPrevious = 1
)

// Snapshot is a consistent view of a machine's contents. It shares their bytes and does not change
// while the machine continues. Any number of goroutines may use it.
type Snapshot struct {
	epoch         uint64
	metadata      metadata
	instances     []capturedInstance
	attempts      map[string][]attempt // by instance, of those that have any
	conditions    map[string][]byte    // by instance
	chainedStarts []chainedStart
}

type capturedInstance struct {
	id         string
	executions []execution
}

// instanceEncoder encodes an instance.
type instanceEncoder struct {
	*capturedInstance
	attempts []attempt

	condition []byte // nil if it has none
}

// Snapshot returns a view of a machine without a store; a machine with a store has Checkpoint.
// Apply waits while the slice headers of the histories are copied, not their bytes. That takes a
// few allocations whatever the number of instances, and one for each instance with attempts.
func (m *Machine) Snapshot() *Snapshot {
	m.mu.RLock()
	defer m.mu.RUnlock()
	total := 0
	for _, in := range m.instances {
		total += len(in.executions)
	}
	s := &Snapshot{epoch: m.epoch, metadata: m.metadata, instances: make([]capturedInstance, 0, len(m.instances)), attempts: map[string][]attempt{}, conditions: map[string][]byte{}}
	all := make([]execution, 0, total)
	for _, in := range m.instances { // in any order: WriteTo sorts
		start := len(all)
		all = append(all, in.executions...)
		s.instances = append(s.instances, capturedInstance{in.id, all[start:len(all):len(all)]})
		if in.attempts != nil {
			s.attempts[in.id] = in.sortedAttempts()
		}
		if in.condition != nil {
			s.conditions[in.id] = in.condition
		}
	}
	for _, c := range m.chainedStarts { // in any order, too
		s.chainedStarts = append(s.chainedStarts, c)
	}
	return s
}

// WriteTo writes the snapshot in the format of the package comment and returns the number of bytes
// written. Replicas in the same state write the same bytes.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	out := &snapshotWriter{buffered: bufio.NewWriterSize(w, 256<<10), sum: crc32.New(castagnoli)}
	sorted, chained := s.sorted()
	header, err := proto.Marshal(&journalpb.SnapshotHeader{
		Format: snapshotFormat, Epoch: s.epoch, Instances: uint64(len(sorted)), Metadata: s.metadata.message(),
	})
	if err != nil {
		return 0, fmt.Errorf("encode snapshot header: %w", err)
	}
	out.record(len(header), func(b []byte) []byte { return append(b, header...) })
	for i := range sorted {
		in := instanceEncoder{&sorted[i], s.attempts[sorted[i].id], s.conditions[sorted[i].id]}
		out.record(in.size(), in.encode)
	}
	for i := range chained {
		out.record(chained[i].size(), chained[i].encode)
	}
	return out.finish()
}

// sorted returns the contents in order of the IDs.
func (s *Snapshot) sorted() ([]capturedInstance, []chainedStart) {
	return slices.SortedFunc(slices.Values(s.instances), func(a, b capturedInstance) int { return strings.Compare(a.id, b.id) }),
		slices.SortedFunc(slices.Values(s.chainedStarts), func(a, b chainedStart) int { return strings.Compare(a.target, b.target) })
}

// snapshotWriter frames records and keeps its first error.
type snapshotWriter struct {
	buffered *bufio.Writer
	sum      hash.Hash32
	scratch  []byte
	written  int64
	err      error
}

func (w *snapshotWriter) record(size int, fill func([]byte) []byte) {
	w.scratch = protowire.AppendVarint(w.scratch[:0], uint64(ChecksummedSize(size)))
	w.scratch = AppendChecksummed(w.scratch, size, fill)
	w.sum.Write(w.scratch)
	w.write(w.scratch)
}

// finish writes the trailer.
func (w *snapshotWriter) finish() (int64, error) {
	w.sum.Write([]byte{0})
	w.write(binary.LittleEndian.AppendUint32([]byte{0}, w.sum.Sum32()))
	if err := w.buffered.Flush(); w.err == nil {
		w.err = err
	}
	if w.err != nil {
		return w.written, fmt.Errorf("write snapshot: %w", w.err)
	}
	return w.written, nil
}

func (w *snapshotWriter) write(b []byte) {
	if w.err == nil {
		_, w.err = w.buffered.Write(b)
		w.written += int64(len(b))
	}
}

// The encoding of InstanceSnapshot{instance = 1, executions = 2, attempts = 3, condition = 4}, with
// Segment{execution = 1, first_event_id = 2, events = 3}. It is written by hand, because the events
// and the attempts are encoded already.

func (e instanceEncoder) size() int {
	n := 1 + protowire.SizeBytes(len(e.id))
	for i := range e.executions {
		n += 1 + protowire.SizeBytes(e.executions[i].size())
	}
	for i := range e.attempts {
		n += 1 + protowire.SizeBytes(len(e.attempts[i].encoded))
	}
	if e.condition != nil {
		n += 1 + protowire.SizeBytes(len(e.condition))
	}
	return n
}

func (e instanceEncoder) encode(b []byte) []byte {
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	b = protowire.AppendString(b, e.id)
	for i := range e.executions {
		b = protowire.AppendTag(b, 2, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(e.executions[i].size()))
		b = e.executions[i].encode(b)
	}
	for i := range e.attempts {
		b = protowire.AppendTag(b, 3, protowire.BytesType)
		b = protowire.AppendBytes(b, e.attempts[i].encoded)
	}
	if e.condition != nil {
		b = protowire.AppendTag(b, 4, protowire.BytesType)
		b = protowire.AppendBytes(b, e.condition)
	}
	return b
}

func (e *execution) size() int {
	n := 1 + protowire.SizeVarint(e.number) + 1 + protowire.SizeVarint(1)
	for _, event := range e.events {
		n += 1 + protowire.SizeBytes(len(event))
	}
	return n
}

func (e *execution) encode(b []byte) []byte {
	b = protowire.AppendTag(b, 1, protowire.VarintType)
	b = protowire.AppendVarint(b, e.number)
	b = protowire.AppendTag(b, 2, protowire.VarintType)
	b = protowire.AppendVarint(b, 1)
	for _, event := range e.events {
		b = protowire.AppendTag(b, 3, protowire.BytesType)
		b = protowire.AppendBytes(b, event)
	}
	return b
}

// Restore replaces the state of a machine without a store by that of a snapshot; a machine with a
// store has Install. It verifies every checksum, the number and order of the instances and every
// rule of their histories before it replaces anything. After an error the machine is unchanged. The
// error wraps ErrCorrupt if the snapshot is truncated or damaged, and is a *FormatError if another
// version wrote it. Restore must not be called while Apply runs. It wakes all watchers.
func (m *Machine) Restore(r io.Reader) error {
	in := &snapshotReader{buffered: bufio.NewReaderSize(r, 256<<10), sum: crc32.New(castagnoli)}
	header, err := in.header()
	if err != nil {
		return fmt.Errorf("restore header: %w", err)
	}
	fresh := newContents()
	fresh.epoch, fresh.metadata = header.Epoch, metadataOf(header.Metadata)
	previous := ""
	for i := range header.Instances {
		instance, err := in.instance()
		if err != nil {
			return fmt.Errorf("restore instance %d of %d: %w", i+1, header.Instances, err)
		}
		if i > 0 && instance.id <= previous {
			return fmt.Errorf("restore instance %q after %q: %w", instance.id, previous, ErrCorrupt)
		}
		previous = instance.id
		fresh.instances[instance.id] = instance
		fresh.updateSets(instance, memberships{}, instance.memberships())
		fresh.facets.count(instance)
	}
	if err := in.chainedStarts(&fresh); err != nil {
		return fmt.Errorf("restore chained starts: %w", err)
	}
	if err := in.trailer(); err != nil {
		return fmt.Errorf("restore trailer: %w", err)
	}
	m.mu.Lock()
	m.contents = fresh
	m.mu.Unlock()
	m.watchers.notifyAll()
	return nil
}

// snapshotReader reads and verifies frames.
type snapshotReader struct {
	buffered *bufio.Reader
	sum      hash.Hash32
}

func (r *snapshotReader) header() (*journalpb.SnapshotHeader, error) {
	record, err := r.record()
	if err != nil {
		return nil, err
	}
	header := &journalpb.SnapshotHeader{}
	if err := proto.Unmarshal(record, header); err != nil {
		return nil, errors.Join(ErrCorrupt, err)
	}
	if header.Format != snapshotFormat && header.Format != snapshotFormatPrevious {
		return nil, &FormatError{Kind: "snapshot", Format: uint64(header.Format), Want: snapshotFormat}
	}
	return header, nil
}

// instance reads an InstanceSnapshot and derives its index entry.
func (r *snapshotReader) instance() (*instance, error) {
	record, err := r.record()
	if err != nil {
		return nil, err
	}
	return decodeInstance(record)
}

// decodeInstance decodes an InstanceSnapshot and derives its index entry. The instance keeps parts
// of record.
func decodeInstance(record []byte) (_ *instance, err error) {
	in, attempts, condition, wellFormed := &instance{}, [][]byte(nil), []byte(nil), true
	ok := eachField(record, func(number protowire.Number, wire protowire.Type, value []byte) {
		switch {
		case number == 1 && wire == protowire.BytesType:
			id, _ := protowire.ConsumeBytes(value)
			in.id = string(id)
		case number == 2 && wire == protowire.BytesType:
			body, _ := protowire.ConsumeBytes(value)
			var s segment
			wellFormed = s.parse(body) && s.first == 1 && wellFormed
			in.executions = append(in.executions, execution{s.execution, 1, s.events})
		case number == 3 && wire == protowire.BytesType:
			encoded, _ := protowire.ConsumeBytes(value)
			attempts = append(attempts, encoded)
		case number == 4 && wire == protowire.BytesType:
			condition, _ = protowire.ConsumeBytes(value)
		}
	})
	if !ok || !wellFormed || len(in.executions) == 0 {
		return nil, ErrCorrupt
	}
	if err := in.verify(); err != nil {
		return nil, err
	}
	event := uint64(0)
	for _, encoded := range attempts {
		if event, err = in.restoreAttempt(encoded, event); err != nil {
			return nil, err
		}
	}
	if condition != nil {
		return in, in.restoreCondition(condition)
	}
	return in, nil
}

// chainedStarts reads all chained starts.
func (r *snapshotReader) chainedStarts(into *contents) error {
	previous := ""
	for {
		if next, err := r.buffered.Peek(1); err != nil {
			return wrapTruncated(err)
		} else if next[0] == 0 {
			return nil // the trailer
		}
		record, err := r.record()
		if err != nil {
			return err
		}
		var c chainedStart
		if err := c.parse(record); err != nil {
			return err
		}
		if _, exists := into.instances[c.target]; exists || c.target <= previous {
			return fmt.Errorf("instance %q after %q: %w", c.target, previous, ErrCorrupt)
		}
		previous = c.target
		into.chainedStarts[c.target] = c
	}
}

// verify derives the index entry and checks every event against the rules.
func (in *instance) verify() error {
	for i := range in.executions {
		x := &in.executions[i]
		if i > 0 && x.number != in.executions[i-1].number+1 {
			return fmt.Errorf("instance %q: execution %d after %d: %w", in.id, x.number, in.executions[i-1].number, ErrCorrupt)
		}
		in.chainHash = hashEvents(hashExecution(in.chainHash, in.id, x.number), x.events)
		for n, encoded := range x.events {
			if reason := in.fold(x.number, uint64(n)+1, encoded); reason != "" {
				return fmt.Errorf("%w: %w", in.invalid(&segment{execution: x.number}, uint64(n)+1, reason), ErrCorrupt)
			}
		}
		last := i == len(in.executions)-1
		continued := in.status == journalpb.Status_STATUS_CONTINUED_AS_NEW
		if len(x.events) == 0 || !last && in.isRunning() || last && continued {
			return fmt.Errorf("instance %q: execution %d is incomplete: %w", in.id, x.number, ErrCorrupt)
		}
	}
	return nil
}

// record reads one frame and returns its record.
func (r *snapshotReader) record() ([]byte, error) {
	size, err := r.length()
	if err != nil {
		return nil, err
	}
	if size == 0 {
		return nil, fmt.Errorf("trailer before the last record: %w", ErrCorrupt)
	}
	// The buffer grows as bytes arrive, so that a damaged length does not allocate that much
	// memory.
	var checksummed bytes.Buffer
	if _, err := io.CopyN(&checksummed, r.buffered, int64(size)); err != nil {
		return nil, wrapTruncated(err)
	}
	r.sum.Write(checksummed.Bytes())
	return ParseChecksummed(checksummed.Bytes())
}

func (r *snapshotReader) length() (uint64, error) {
	size, err := binary.ReadUvarint(r.buffered)
	if err != nil {
		return 0, wrapTruncated(err)
	}
	if size > 1<<62 {
		return 0, fmt.Errorf("invalid record length of %d bytes: %w", size, ErrCorrupt)
	}
	r.sum.Write(protowire.AppendVarint(nil, size))
	return size, nil
}

func (r *snapshotReader) trailer() error {
	size, err := r.length()
	if err != nil {
		return err
	}
	var sum [4]byte
	if _, err := io.ReadFull(r.buffered, sum[:]); err != nil {
		return wrapTruncated(err)
	}
	if size != 0 || binary.LittleEndian.Uint32(sum[:]) != r.sum.Sum32() {
		return ErrCorrupt
	}
	if _, err := r.buffered.ReadByte(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("bytes after the trailer: %w", ErrCorrupt)
	}
	return nil
}

// wrapTruncated turns an early end into ErrCorrupt and returns other errors unchanged.
func wrapTruncated(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("truncated: %w", ErrCorrupt)
	}
	return err
}
