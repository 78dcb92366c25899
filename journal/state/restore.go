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

// Restore replaces the state of a machine that keeps everything in memory by that
// of a snapshot; one with a store has Install. Every checksum, the count
// of the instances, their order and every rule of their histories are verified
// before anything is replaced; after an error the machine is as it was. An
// error wraps ErrCorrupt if the snapshot is truncated or damaged. It must not
// be called while Apply runs; everybody who watches is woken.
func (m *Machine) Restore(r io.Reader) error {
	in := &snapshotReader{buffered: bufio.NewReaderSize(r, 256<<10), sum: crc32.New(castagnoli)}
	header, err := in.header()
	if err != nil {
		return fmt.Errorf("restore header: %w", err)
	}
	fresh := newContents()
	fresh.epoch, fresh.group = header.Epoch, groupOf(header.Group)
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
		fresh.move(instance, memberships{}, instance.memberships())
	}
	if err := in.chained(&fresh); err != nil {
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

// snapshotReader takes the frames apart and checks them.
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
	if header.Format != snapshotFormat && header.Format != snapshotFormatBefore {
		return nil, fmt.Errorf("unknown format %d: %w", header.Format, ErrCorrupt)
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
	ok := each(record, func(number protowire.Number, wire protowire.Type, value []byte) {
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
		return in, in.keepCondition(condition)
	}
	return in, nil
}

// chained reads every ChainedStart that there is.
func (r *snapshotReader) chained(into *contents) error {
	previous := ""
	for {
		if next, err := r.buffered.Peek(1); err != nil {
			return truncated(err)
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
		into.chained[c.target] = c
	}
}

// verify derives the index entry and holds every event against the rules.
func (in *instance) verify() error {
	for i := range in.executions {
		x := &in.executions[i]
		if i > 0 && x.number != in.executions[i-1].number+1 {
			return fmt.Errorf("instance %q: execution %d after %d: %w", in.id, x.number, in.executions[i-1].number, ErrCorrupt)
		}
		in.chain = chainEvents(chainExecution(in.chain, in.id, x.number), x.events)
		for n, encoded := range x.events {
			if reason := in.fold(x.number, uint64(n)+1, encoded); reason != "" {
				return fmt.Errorf("%w: %w", in.invalid(&segment{execution: x.number}, uint64(n)+1, reason), ErrCorrupt)
			}
		}
		last := i == len(in.executions)-1
		continued := in.status == journalpb.Status_STATUS_CONTINUED_AS_NEW
		if len(x.events) == 0 || !last && in.running() || last && continued {
			return fmt.Errorf("instance %q: execution %d is not whole: %w", in.id, x.number, ErrCorrupt)
		}
	}
	return nil
}

// record reads one frame and returns the record in it.
func (r *snapshotReader) record() ([]byte, error) {
	size, err := r.length()
	if err != nil {
		return nil, err
	}
	if size == 0 {
		return nil, fmt.Errorf("the end comes too early: %w", ErrCorrupt)
	}
	// Grown as the bytes arrive: a damaged length must not cost its worth of
	// memory.
	var sealed bytes.Buffer
	if _, err := io.CopyN(&sealed, r.buffered, int64(size)); err != nil {
		return nil, truncated(err)
	}
	r.sum.Write(sealed.Bytes())
	return Unseal(sealed.Bytes())
}

func (r *snapshotReader) length() (uint64, error) {
	size, err := binary.ReadUvarint(r.buffered)
	if err != nil {
		return 0, truncated(err)
	}
	if size > 1<<62 {
		return 0, fmt.Errorf("a record of %d bytes: %w", size, ErrCorrupt)
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
		return truncated(err)
	}
	if size != 0 || binary.LittleEndian.Uint32(sum[:]) != r.sum.Sum32() {
		return ErrCorrupt
	}
	if _, err := r.buffered.ReadByte(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("bytes after the end: %w", ErrCorrupt)
	}
	return nil
}

// truncated marks an early end as corruption and leaves errors of the reader as
// they are.
func truncated(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("truncated: %w", ErrCorrupt)
	}
	return err
}
