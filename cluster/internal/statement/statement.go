package statement

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"math"
)

// A Statement is what a leader says of the instances in a range of IDs, after an entry of its
// partition.
type Statement struct {
	Cluster   string
	Lineage   string // the latest, "" if there is none
	Partition uint64 // counted from 0
	Index     uint64 // of the last entry in it
	Time      int64  // cluster time, Unix nanoseconds

	// The bounds of the range: From is included and To excluded ("": up to the last).
	From, To string
	// So many instances are the leaves of the tree with this root.
	Instances uint64
	Root      Hash
	// Replicas of Voters have the same.
	Replicas, Voters uint64
}

// A Hash is a SHA-256.
type Hash = [sha256.Size]byte

// An Execution is what the digest of an instance covers of the history of an execution.
type Execution struct {
	Number, LastEventID uint64
	Digest              Hash
}

// prefix begins what is signed, so that no signature of something else fits.
const prefix = "tenuto statement 1\x00"

// Encode returns the only encoding of a statement.
func (s *Statement) Encode() []byte {
	b := appendText(appendText([]byte(prefix), s.Cluster), s.Lineage)
	b = appendUint(appendUint(appendUint(b, s.Partition), s.Index), uint64(s.Time))
	b = appendUint(appendText(appendText(b, s.From), s.To), s.Instances)
	return appendUint(appendUint(append(b, s.Root[:]...), s.Replicas), s.Voters)
}

// ErrMalformed means that bytes are not the encoding of a statement.
var ErrMalformed = errors.New("malformed statement")

// Decode decodes a statement. It accepts only what Encode returns.
func Decode(encoded []byte) (*Statement, error) {
	r := Reader{Rest: encoded}
	if string(r.Take(len(prefix))) != prefix {
		return nil, ErrMalformed
	}
	s := new(Statement)
	s.Cluster, s.Lineage = r.Text(), r.Text()
	s.Partition, s.Index, s.Time = r.Uint(), r.Uint(), int64(r.Uint())
	s.From, s.To, s.Instances = r.Text(), r.Text(), r.Uint()
	copy(s.Root[:], r.Take(sha256.Size))
	s.Replicas, s.Voters = r.Uint(), r.Uint()
	if r.Short || len(r.Rest) > 0 || !bytes.Equal(s.Encode(), encoded) {
		return nil, ErrMalformed
	}
	return s, nil
}

// SigningKey derives the key with which the leaders of a cluster sign from its completion key.
func SigningKey(completionKey []byte, cluster string) ed25519.PrivateKey {
	mac := hmac.New(sha256.New, completionKey)
	mac.Write([]byte("tenuto signing key 1\x00" + cluster)) // a hash never fails
	return ed25519.NewKeyFromSeed(mac.Sum(nil))
}

// ExecutionDigest computes the digest of the history of an execution: the SHA-256 of
// "tenuto execution 1", 0x00, the ID of the instance, the number of the execution, each encoded
// event, and the number of events. Integers, and the lengths before texts and events, take eight
// bytes, big-endian.
type ExecutionDigest struct {
	hash  hash.Hash
	count uint64
}

// NewExecutionDigest returns that of an execution without events.
func NewExecutionDigest(instance string, number uint64) *ExecutionDigest {
	h := sha256.New()
	h.Write(appendUint(appendText([]byte("tenuto execution 1\x00"), instance), number))
	return &ExecutionDigest{hash: h}
}

// Add adds the next encoded event.
func (d *ExecutionDigest) Add(event []byte) {
	d.hash.Write(appendUint(nil, uint64(len(event))))
	d.hash.Write(event)
	d.count++
}

// Sum returns the digest. Nothing may be added afterwards.
func (d *ExecutionDigest) Sum() (sum [sha256.Size]byte) {
	d.hash.Write(appendUint(nil, d.count))
	d.hash.Sum(sum[:0])
	return sum
}

// HistoryDigest returns the digest of an instance with all its executions: the SHA-256 of
// "tenuto history 1", 0x00, its ID, how many executions it has, and of each its number, its last
// event_id and its digest.
func HistoryDigest(instance string, executions []Execution) Hash {
	b := appendUint(appendText([]byte("tenuto history 1\x00"), instance), uint64(len(executions)))
	for i := range executions {
		x := &executions[i]
		b = append(appendUint(appendUint(b, x.Number), x.LastEventID), x.Digest[:]...)
	}
	return sha256.Sum256(b)
}

func appendUint(b []byte, v uint64) []byte { return binary.BigEndian.AppendUint64(b, v) }

func appendText(b []byte, s string) []byte { return append(appendUint(b, uint64(len(s))), s...) }

// AppendBytes appends bytes preceded by their length.
func AppendBytes(b, content []byte) []byte {
	return append(appendUint(b, uint64(len(content))), content...)
}

// A Reader reads what the functions of this package have appended. After the end it returns zero
// values, and Short is set.
type Reader struct {
	Rest  []byte
	Short bool
}

// Take returns the next n bytes, which it shares.
func (r *Reader) Take(n int) []byte {
	if n > len(r.Rest) {
		r.Short, r.Rest = true, nil
		return nil
	}
	taken := r.Rest[:n:n]
	r.Rest = r.Rest[n:]
	return taken
}

// Uint returns an integer.
func (r *Reader) Uint() uint64 {
	b := r.Take(8)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// Bytes returns bytes that are preceded by their length, and shares them.
func (r *Reader) Bytes() []byte {
	n := r.Uint()
	if n > math.MaxInt32 {
		r.Short, r.Rest = true, nil
		return nil
	}
	return r.Take(int(n))
}

// Text is Bytes for texts.
func (r *Reader) Text() string { return string(r.Bytes()) }
