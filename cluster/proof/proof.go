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

// ErrInvalid means that a proof is damaged, truncated, altered or forged, or signed with another key.
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
	// History is of one execution, which has all its events if Complete.
	History *history.History
}

// Key returns the public key with which the leaders of a cluster sign, and the cluster's ID. The caller
// needs the right [cluster.ActionHistory]. While a member does not speak protocol 4, the error is
// [cluster.ErrProtocol].
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

// Prove writes a proof of an execution of an instance, of the latest for 0. It has the events that were
// recorded when the leader signed. The whole history is in memory meanwhile. The caller needs the right
// [cluster.ActionHistory]. Errors: those of [cluster.Client.History], [cluster.ErrProtocol], and that of
// w.
func Prove(ctx context.Context, client *cluster.Client, instance string, execution uint64, w io.Writer) error {
	internals, err := client.Internal(access.Key{})
	if err != nil {
		return fmt.Errorf("prove: %w", err)
	}
	request := &clusterpb.Request{Instance: instance, Call: &clusterpb.Request_Prove{Prove: new(clusterpb.ProveRequest)}}
	if err := internals.Check(request); err != nil {
		return fmt.Errorf("prove: %w", err)
	}
	response, err := internals.Call(ctx, request)
	if err != nil {
		return fmt.Errorf("prove %s: %w", instance, err)
	}
	signed := response.GetProve()
	s, err := statement.Decode(signed.GetStatement())
	if err != nil {
		return fmt.Errorf("prove %s: %w", instance, err)
	}
	if execution == 0 {
		execution = uint64(len(s.Executions))
	}
	if execution == 0 || execution > uint64(len(s.Executions)) {
		return fmt.Errorf("prove %s: execution %d: %w", instance, execution, cluster.ErrNotFound)
	}
	count := s.Executions[execution-1].LastEventID
	b := statement.AppendBytes([]byte(magic), signed.Statement)
	b = statement.AppendBytes(statement.AppendBytes(b, signed.Signature), signed.Key)
	b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, execution), count)
	written := uint64(0)
	_, err = internals.Events(ctx, instance, execution, func(event *journalpb.Event) error {
		if event.EventId > count {
			return nil
		}
		encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(event)
		b, written = statement.AppendBytes(b, encoded), written+1
		return err
	})
	if err != nil {
		return fmt.Errorf("prove %s: %w", instance, err)
	}
	sum := sha256.Sum256(b)
	b = append(b, sum[:]...)
	if _, err := Check(bytes.NewReader(b), nil); err != nil || written != count {
		return fmt.Errorf("prove %s: what was read is not what was signed: %w", instance, errors.Join(err, ErrInvalid))
	}
	if _, err := w.Write(b); err != nil {
		return fmt.Errorf("prove %s: %w", instance, err)
	}
	return nil
}

// Check verifies a proof. It must be signed with key; with nil, with the key that it contains, which then
// shows only that it is unaltered: compare [Proof.Key] with a key that you trust. The error wraps
// [ErrInvalid] and says why, or is that of r.
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
	number, count := file.Uint(), file.Uint()
	switch {
	case file.Short || len(signer) != ed25519.PublicKeySize:
		return nil, "it ends early"
	case key != nil && !signer.Equal(key):
		return nil, "it is signed with another key"
	case !ed25519.Verify(signer, signed, signature):
		return nil, "its signature is wrong"
	}
	s, err := statement.Decode(signed)
	if err != nil || s.Instance == "" || number == 0 || number > uint64(len(s.Executions)) {
		return nil, "its statement is not of this execution"
	}
	of := s.Executions[number-1]
	digest := statement.NewExecutionDigest(s.Instance, number)
	h := &history.History{Instance: s.Instance, Execution: number}
	for range count {
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
	if file.Short || len(file.Rest) > 0 || of.Number != number || of.LastEventID != count || digest.Sum() != of.Digest {
		return nil, "its events are not those that were signed"
	}
	return &Proof{
		Cluster: s.Cluster, Lineage: s.Lineage, Partition: int(s.Partition), Index: s.Index, Time: time.Unix(0, s.Time).UTC(), Key: signer, History: h,
	}, ""
}
