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

// snapshotFormat is the number in SnapshotHeader.format.
const snapshotFormat = 1

// Snapshot is a consistent view of a machine's histories. It shares their bytes
// and stays as it is while the machine goes on. It may be used by any number of
// goroutines.
type Snapshot struct {
	epoch     uint64
	instances []frozen
}

type frozen struct {
	id         string
	executions []execution
}

// Snapshot takes a view. Applies wait while the headers of the histories are
// copied, not their bytes: three allocations however many instances there are.
func (m *Machine) Snapshot() *Snapshot {
	m.mu.RLock()
	defer m.mu.RUnlock()
	total := 0
	for _, in := range m.instances {
		total += len(in.executions)
	}
	s := &Snapshot{epoch: m.epoch, instances: make([]frozen, 0, len(m.instances))}
	all := make([]execution, 0, total)
	for _, in := range m.instances { // in any order: WriteTo sorts
		start := len(all)
		all = append(all, in.executions...)
		s.instances = append(s.instances, frozen{in.id, all[start:len(all):len(all)]})
	}
	return s
}

// WriteTo writes the snapshot in the format of the package comment and returns
// the number of bytes written. Two replicas in the same state write the same
// bytes.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	out := &snapshotWriter{buffered: bufio.NewWriterSize(w, 256<<10), sum: crc32.New(castagnoli)}
	sorted := slices.SortedFunc(slices.Values(s.instances), func(a, b frozen) int { return strings.Compare(a.id, b.id) })
	header, err := proto.Marshal(&journalpb.SnapshotHeader{
		Format: snapshotFormat, Epoch: s.epoch, Instances: uint64(len(sorted)),
	})
	if err != nil {
		return 0, fmt.Errorf("encode snapshot header: %w", err)
	}
	out.record(len(header), func(b []byte) []byte { return append(b, header...) })
	for i := range sorted {
		out.record(sorted[i].size(), sorted[i].encode)
	}
	return out.finish()
}

// snapshotWriter frames records. Its first error stays.
type snapshotWriter struct {
	buffered *bufio.Writer
	sum      hash.Hash32
	scratch  []byte
	written  int64
	err      error
}

func (w *snapshotWriter) record(size int, fill func([]byte) []byte) {
	w.scratch = protowire.AppendVarint(w.scratch[:0], uint64(SealedSize(size)))
	w.scratch = AppendSealed(w.scratch, size, fill)
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

// The encoding of InstanceSnapshot{instance = 1, executions = 2}, with
// Segment{execution = 1, first_event_id = 2, events = 3}: by hand, since the
// events are encoded already.

func (f *frozen) size() int {
	n := 1 + protowire.SizeBytes(len(f.id))
	for i := range f.executions {
		n += 1 + protowire.SizeBytes(f.executions[i].size())
	}
	return n
}

func (f *frozen) encode(b []byte) []byte {
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	b = protowire.AppendString(b, f.id)
	for i := range f.executions {
		b = protowire.AppendTag(b, 2, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(f.executions[i].size()))
		b = f.executions[i].encode(b)
	}
	return b
}

func (x *execution) size() int {
	n := 1 + protowire.SizeVarint(x.number) + 1 + protowire.SizeVarint(1)
	for _, event := range x.events {
		n += 1 + protowire.SizeBytes(len(event))
	}
	return n
}

func (x *execution) encode(b []byte) []byte {
	b = protowire.AppendTag(b, 1, protowire.VarintType)
	b = protowire.AppendVarint(b, x.number)
	b = protowire.AppendTag(b, 2, protowire.VarintType)
	b = protowire.AppendVarint(b, 1)
	for _, event := range x.events {
		b = protowire.AppendTag(b, 3, protowire.BytesType)
		b = protowire.AppendBytes(b, event)
	}
	return b
}
