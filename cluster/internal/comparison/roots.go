package comparison

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"

	"github.com/cespare/xxhash/v2"

	"github.com/tenuto-dev/tenuto/cluster/internal/statement"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A RootPath is a signed root, with the path to it from one instance.
type RootPath struct {
	Statement, Signature []byte
	// The latest execution of the instance that is covered, and the last event in it.
	Execution, LastEventID uint64
	Position               uint64
	Leaf                   statement.Hash
	Path                   []statement.Hash
}

// Errors of Prove.
var (
	errBusy          = fmt.Errorf("%d proofs wait in this partition already: try again", proofsMax)
	errReplicas      = errors.New("no proof: the replicas of the instance differ")
	errNoMajority    = errors.New("no majority of the voters has a view to compare")
	errLeavesDamaged = errors.New("the file of leaves is damaged")
)

// A leaf is what the leader keeps of an instance below a signed root.
type leaf struct {
	id                     uint64 // XXH64 of the ID
	execution, lastEventID uint64
	hash                   statement.Hash
}

const leafBytes = 3*8 + len(statement.Hash{})

func newLeaf(d *clusterpb.InstanceDigest) leaf {
	return leaf{xxhash.Sum64String(d.Instance), d.LastExecution, d.LastEventId, statement.Leaf(statement.Hash(d.History))}
}

func (l *leaf) appendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, l.id)
	b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, l.execution), l.lastEventID)
	return append(b, l.hash[:]...)
}

func (l *leaf) parse(b []byte) {
	l.id, l.execution, l.lastEventID = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])
	copy(l.hash[:], b[24:])
}

// A batch is the instances between two IDs at one comparison.
type batch struct {
	statement          *statement.Statement
	encoded, signature []byte
	offset             int64 // of its leaves
}

// A signedRound has the signed batches of a round. Their leaves are in a file.
type signedRound struct {
	file    *os.File
	size    int64 // of the leaves of the signed batches
	batches []*batch
}

// signedRounds keeps the signed roots of the current and the previous round. It is used by Run
// only. The files are of use only to the leadership that wrote them.
type signedRounds struct {
	dir      string
	current  signedRound
	previous signedRound
}

// begin begins a round, and forgets the one before the previous. It does nothing if the current
// round has no batch: a round that fails at its beginning is begun again.
func (s *signedRounds) begin() error {
	if s.current.file != nil && len(s.current.batches) == 0 {
		return nil
	}
	s.previous.file, s.current.file = s.current.file, s.previous.file
	s.previous.size, s.previous.batches = s.current.size, s.current.batches
	s.current.size, s.current.batches = 0, nil
	if s.current.file != nil {
		return s.current.file.Truncate(0)
	}
	name := "proofs-0"
	if s.previous.file != nil {
		name = "proofs-1"
	}
	file, err := os.OpenFile(filepath.Join(s.dir, name), os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err == nil {
		s.current.file = file
	}
	return err
}

// close removes the files.
func (s *signedRounds) close() error {
	var errs []error
	for _, file := range []*os.File{s.current.file, s.previous.file} {
		if file != nil {
			errs = append(errs, file.Close(), os.Remove(file.Name()))
		}
	}
	s.current, s.previous = signedRound{}, signedRound{}
	return errors.Join(errs...)
}

// A leafWriter appends the leaves of a batch, and computes the root. If they cannot be written, the
// batch is signed, but proves nothing later.
type leafWriter struct {
	tree statement.Tree
	to   *bufio.Writer // nil without a file
	err  error
}

func (s *signedRounds) newLeaves() *leafWriter {
	w := new(leafWriter)
	if s.current.file != nil {
		_, w.err = s.current.file.Seek(s.current.size, io.SeekStart)
		w.to = bufio.NewWriterSize(s.current.file, 1<<16)
	}
	return w
}

func (w *leafWriter) add(own *clusterpb.RangeDigest) {
	var encoded []byte
	for _, d := range own.Each {
		l := newLeaf(d)
		w.tree.Add(l.hash)
		if w.to != nil && w.err == nil {
			encoded = l.appendTo(encoded[:0])
			_, w.err = w.to.Write(encoded)
		}
	}
}

// keep adds a signed batch.
func (s *signedRounds) keep(b *batch, w *leafWriter) error {
	if w.to == nil {
		return nil
	}
	if err := errors.Join(w.err, w.to.Flush()); err != nil {
		return err
	}
	b.offset = s.current.size
	s.current.size += int64(w.tree.Count()) * int64(leafBytes)
	s.current.batches = append(s.current.batches, b)
	return nil
}

// find returns the latest signed root that covers an instance, nil if there is none.
func (s *signedRounds) find(instance string) (*RootPath, error) {
	for _, round := range []*signedRound{&s.current, &s.previous} {
		for _, b := range round.batches {
			if instance < b.statement.From || b.statement.To != "" && instance >= b.statement.To {
				continue
			}
			return round.read(b, instance)
		}
	}
	return nil, nil
}

func (r *signedRound) read(b *batch, instance string) (*RootPath, error) {
	content := make([]byte, int64(b.statement.Instances)*int64(leafBytes))
	if _, err := r.file.ReadAt(content, b.offset); err != nil {
		return nil, err
	}
	leaves := make([]leaf, b.statement.Instances)
	for i := range leaves {
		leaves[i].parse(content[i*leafBytes:])
	}
	return b.prove(leaves, instance)
}

// prove returns the root with the path from an instance, nil if it is not among the leaves.
func (b *batch) prove(leaves []leaf, instance string) (*RootPath, error) {
	hashes, id, at := make([]statement.Hash, len(leaves)), xxhash.Sum64String(instance), -1
	for i := range leaves {
		hashes[i] = leaves[i].hash
		if leaves[i].id == id {
			at = i
		}
	}
	if at < 0 {
		return nil, nil
	}
	path := statement.Path(hashes, at)
	if !statement.VerifyPath(hashes[at], uint64(at), uint64(len(hashes)), path, b.statement.Root) {
		return nil, errLeavesDamaged
	}
	return &RootPath{b.encoded, b.signature, leaves[at].execution, leaves[at].lastEventID, uint64(at), hashes[at], path}, nil
}

// A proofRequest asks for a signed root that covers an execution up to an event.
type proofRequest struct {
	instance               string
	execution, lastEventID uint64
	canceled               <-chan struct{}    // of the caller's context
	answer                 chan<- proofAnswer // has room for one
}

type proofAnswer struct {
	root *RootPath
	err  error
}

// proofsMax bounds the requests for proofs that wait.
const proofsMax = 64

// Prove returns the latest signed root that covers an execution of an instance up to an event. If
// there is none, a range that begins with the instance is compared and signed.
func (l *Leader) Prove(ctx context.Context, instance string, execution, lastEventID uint64) (*RootPath, error) {
	answer := make(chan proofAnswer, 1)
	select {
	case l.proofs <- &proofRequest{instance, execution, lastEventID, ctx.Done(), answer}:
	default:
		return nil, errBusy
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
	select {
	case a := <-answer:
		return a.root, a.err
	case <-l.ended:
		return nil, journal.ErrNotLeader
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// answerProofs answers the requests that wait, except for those whose callers have gone.
func (l *Leader) answerProofs(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case r := <-l.proofs:
			select {
			case <-r.canceled:
				continue
			default:
			}
			root, err := l.prove(ctx, r)
			r.answer <- proofAnswer{root, err}
		default:
			return
		}
	}
}

func (l *Leader) prove(ctx context.Context, r *proofRequest) (*RootPath, error) {
	if l.config.Journal.Protocol() < journal.ComparisonProtocol {
		return nil, journal.ErrProtocol
	}
	root, err := l.signed.find(r.instance)
	if err != nil {
		l.config.Logger.Warn("signed roots cannot be read, comparing again", "partition", l.config.Partition, "error", err)
		root = nil
	}
	if root != nil && (root.Execution > r.execution || root.Execution == r.execution && root.LastEventID >= r.lastEventID) {
		return root, nil
	}
	from := l.position()
	for range 3 { // a view can be missed
		err = l.withViews(ctx, from, "", func(set *comparedSet) (err error) {
			root, err = l.signRange(ctx, set, r.instance)
			return err
		})
		if !errors.Is(err, errNoMajority) {
			break
		}
	}
	if err == nil && root == nil {
		err = fmt.Errorf("the instance was purged meanwhile: %w", state.ErrNotFound)
	}
	return root, err
}

// signRange compares a range that begins with an instance, and signs it if the replicas agree. If
// they do not, it does so with the instance alone.
func (l *Leader) signRange(ctx context.Context, set *comparedSet, instance string) (*RootPath, error) {
	for _, instances := range []uint32{rangeInstancesMax, 1} {
		digests, err := l.compare(ctx, set, &clusterpb.CompareRequest{From: instance, InstancesMax: instances, BytesMax: rangeBytesMax}, true)
		if err != nil {
			return nil, err
		}
		if differ(digests) {
			continue
		}
		own := digests[l.config.Node]
		w := new(leafWriter)
		w.add(own)
		b, err := l.sign(ctx, set, &statement.Statement{Index: own.Index, From: instance, To: own.To}, w)
		if err != nil {
			return nil, err
		}
		leaves := make([]leaf, len(own.Each))
		for i, d := range own.Each {
			leaves[i] = newLeaf(d)
		}
		return b.prove(leaves, instance)
	}
	return nil, errReplicas
}

// sign signs the root of the leaves of a batch, on which all that were compared agree.
func (l *Leader) sign(ctx context.Context, set *comparedSet, s *statement.Statement, w *leafWriter) (*batch, error) {
	if 2*set.votersAnswered() <= set.voters {
		return nil, errNoMajority
	}
	s.Instances, s.Root, s.Time = w.tree.Count(), w.tree.Root(), l.config.Journal.Now().UnixNano()
	s.Replicas, s.Voters = uint64(set.votersAnswered()), uint64(set.voters)
	signed, err := l.config.Sign(ctx, s)
	if err != nil {
		return nil, err
	}
	return &batch{statement: s, encoded: signed.Statement, signature: signed.Signature}, nil
}

// signBatch signs a batch of a round and keeps it.
func (l *Leader) signBatch(ctx context.Context, set *comparedSet, s *statement.Statement, w *leafWriter, requested bool) {
	if s.Instances = w.tree.Count(); s.Instances > math.MaxInt32 {
		return // unreachable: a batch takes 30 s
	}
	b, err := l.sign(ctx, set, s, w)
	if err == nil {
		err = l.signed.keep(b, w)
	}
	if err != nil {
		l.config.Logger.Warn("root not signed or kept; a proof compares again", "partition", l.config.Partition, "error", err)
	}
	if b == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if requested && l.requested && len(l.round.Roots) < keptMax {
		l.round.Roots = append(l.round.Roots, &clusterpb.SignedRoot{Statement: b.encoded, Signature: b.signature})
	}
}
