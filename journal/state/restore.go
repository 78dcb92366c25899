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

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

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
