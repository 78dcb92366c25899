package proof

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/cluster/internal/statement"
	"github.com/tenuto-dev/tenuto/internal/eventpb"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// ErrInvalid means that a proof is damaged, truncated, altered or forged, or signed with another
// key.
var ErrInvalid = errors.New("tenuto: the proof is not valid")

const magic = "tenuto proof 1\n"

// sizeMax bounds a proof that Check reads, in bytes.
const sizeMax = 1 << 30

// A Proof is what a valid proof shows.
type Proof struct {
	Cluster, Lineage string // Lineage is "" if the cluster was never restored
	Partition        int    // counted from 0
	Index            uint64 // of the journal of the partition
	Time             time.Time
	Key              ed25519.PublicKey // that signed it
	// So many replicas of so many voters agreed on all instances below the signed root.
	Replicas, Voters int
	// History is of one execution, up to the entry Index.
	History *history.History
}

// Key returns the public key with which the leaders of a cluster sign, and the cluster's ID. The
// caller needs the right [cluster.ActionHistory]. While a member does not speak protocol 4, the
// error is [cluster.ErrProtocol].
func Key(ctx context.Context, client *cluster.Client) (key ed25519.PublicKey, id string, err error) {
	internals, err := client.Internal(access.Key{})
	if err != nil {
		return nil, "", fmt.Errorf("signing key: %w", err)
	}
	response, err := internals.Call(ctx, &clusterpb.Request{Call: &clusterpb.Request_SigningKey{SigningKey: new(clusterpb.SigningKeyRequest)}})
	if err != nil {
		return nil, "", fmt.Errorf("signing key: %w", err)
	}
	return response.GetSigningKey().GetKey(), response.GetSigningKey().GetCluster(), nil
}

// Prove writes a proof of an execution of an instance, of the latest for 0. It has all events that
// were recorded before the call, and perhaps more. If no signed root covers them, the leader first
// compares a range of instances that begins with this one. The whole history is in memory
// meanwhile. The caller needs the right [cluster.ActionHistory]. Errors: those of
// [cluster.Client.History], [cluster.ErrProtocol], one that says why there is no root, for example
// because the cluster is in memory, and that of w.
func Prove(ctx context.Context, client *cluster.Client, instance string, execution uint64, w io.Writer) error {
	content, err := prove(ctx, client, instance, execution)
	if err == nil {
		_, err = io.Copy(w, bytes.NewReader(content)) // notices a writer that omits a part
	}
	if err != nil {
		return fmt.Errorf("prove %s: %w", instance, err)
	}
	return nil
}

func prove(ctx context.Context, client *cluster.Client, instance string, execution uint64) ([]byte, error) {
	internals, err := client.Internal(access.Key{})
	if err != nil {
		return nil, err
	}
	request := &clusterpb.Request{Instance: instance, Call: &clusterpb.Request_Prove{Prove: &clusterpb.ProveRequest{Execution: execution}}}
	if err := internals.Check(request); err != nil {
		return nil, err
	}
	response, err := internals.Call(ctx, request)
	if err != nil {
		return nil, err
	}
	signed := response.GetProve()
	b := statement.AppendBytes([]byte(magic), signed.GetStatement())
	b = statement.AppendBytes(statement.AppendBytes(b, signed.GetSignature()), signed.GetKey())
	b = statement.AppendBytes(b, []byte(instance))
	b = binary.BigEndian.AppendUint64(b, uint64(len(signed.GetExecutions())))
	count := uint64(0)
	if execution == 0 {
		execution = uint64(len(signed.GetExecutions()))
	}
	for _, x := range signed.GetExecutions() {
		b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, x.Number), x.LastEventId)
		b = append(b, x.Digest...)
		if x.Number == execution {
			count = x.LastEventId
		}
	}
	b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, signed.GetLeaf()), uint64(len(signed.GetPath())))
	for _, hash := range signed.GetPath() {
		b = append(b, hash...)
	}
	b = binary.BigEndian.AppendUint64(b, execution)
	if b, err = appendEvents(ctx, &internals, b, instance, execution, count); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(b)
	b = append(b, sum[:]...)
	if _, err := Check(bytes.NewReader(b), nil); err != nil {
		return nil, fmt.Errorf("what was read is not what was signed: %w", err)
	}
	return b, nil
}

// appendEvents appends the first events of an execution, as they are stored.
func appendEvents(ctx context.Context, internals *access.Internals, b []byte, instance string, execution, count uint64) ([]byte, error) {
	for next := uint64(1); next <= count; {
		response, err := internals.Call(ctx, &clusterpb.Request{Instance: instance, Call: &clusterpb.Request_History{History: &clusterpb.HistoryRequest{
			Execution: execution, FromEventId: next, Paged: true,
		}}})
		if err != nil {
			return nil, err
		}
		page := response.GetHistory().GetEvents()
		for _, event := range page[:min(uint64(len(page)), count+1-next)] {
			b = statement.AppendBytes(b, event)
		}
		if next += uint64(len(page)); len(page) == 0 {
			return nil, fmt.Errorf("event %d is missing: %w", next, ErrInvalid)
		}
	}
	return b, nil
}

// Check verifies a proof. It must be signed with key; with nil, with the key that it contains,
// which then shows only that it is unaltered: compare [Proof.Key] with a key that you trust. The
// error wraps [ErrInvalid] and says why, or is that of r.
func Check(r io.Reader, key ed25519.PublicKey) (*Proof, error) {
	content, err := io.ReadAll(io.LimitReader(r, sizeMax+1))
	if err != nil {
		return nil, fmt.Errorf("check proof: %w", err)
	}
	p, reason := check(content, key)
	if reason != "" {
		return nil, fmt.Errorf("check proof: %w: %s", ErrInvalid, reason)
	}
	return p, nil
}

func check(content []byte, key ed25519.PublicKey) (p *Proof, reason string) {
	end := len(content) - sha256.Size
	if len(content) > sizeMax || end < len(magic) || string(content[:len(magic)]) != magic {
		return nil, "it does not begin as a proof, or is too short or too long"
	}
	if sum := sha256.Sum256(content[:end]); !bytes.Equal(sum[:], content[end:]) {
		return nil, "its checksum is wrong: it is truncated or altered"
	}
	file := statement.Reader{Rest: content[len(magic):end]}
	signed, signature, signer := file.Bytes(), file.Bytes(), ed25519.PublicKey(file.Bytes())
	switch {
	case file.Short || len(signer) != ed25519.PublicKeySize:
		return nil, "it ends early"
	case key != nil && !signer.Equal(key):
		return nil, "it is signed with another key"
	case !ed25519.Verify(signer, signed, signature):
		return nil, "its signature is wrong"
	}
	s, err := statement.Decode(signed)
	if err != nil {
		return nil, "its statement does not decode"
	}
	instance, executions := file.Text(), readExecutions(&file)
	position, path := file.Uint(), readPath(&file)
	leaf := statement.Leaf(statement.HistoryDigest(instance, executions))
	if file.Short || instance < s.From || s.To != "" && instance >= s.To || !statement.VerifyPath(leaf, position, s.Instances, path, s.Root) {
		return nil, "the root that is signed does not cover its instance"
	}
	number := file.Uint()
	if number == 0 || number > uint64(len(executions)) {
		return nil, "it is of an execution that is not signed"
	}
	of := executions[number-1]
	digest := statement.NewExecutionDigest(instance, number)
	h := &history.History{Instance: instance, Execution: number}
	for range of.LastEventID {
		encoded := file.Bytes()
		if file.Short {
			break
		}
		event := new(journalpb.Event)
		if proto.Unmarshal(encoded, event) != nil {
			return nil, "an event does not decode"
		}
		digest.Add(encoded)
		h.Events = append(h.Events, eventpb.New(number, event))
	}
	if file.Short || len(file.Rest) > 0 || of.Number != number || digest.Sum() != of.Digest {
		return nil, "its events are not those that were signed"
	}
	return &Proof{
		Cluster: s.Cluster, Lineage: s.Lineage, Partition: int(s.Partition), Index: s.Index, Time: time.Unix(0, s.Time).UTC(),
		Replicas: int(s.Replicas), Voters: int(s.Voters), Key: signer, History: h,
	}, ""
}

func readExecutions(file *statement.Reader) (executions []statement.Execution) {
	for n := file.Uint(); n > 0 && !file.Short; n-- {
		x := statement.Execution{Number: file.Uint(), LastEventID: file.Uint()}
		copy(x.Digest[:], file.Take(sha256.Size))
		executions = append(executions, x)
	}
	return executions
}

func readPath(file *statement.Reader) (path []statement.Hash) {
	for n := file.Uint(); n > 0 && !file.Short; n-- {
		var hash statement.Hash
		copy(hash[:], file.Take(sha256.Size))
		path = append(path, hash)
	}
	return path
}
