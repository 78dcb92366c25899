package state

import (
	"bufio"
	"encoding/binary"
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
