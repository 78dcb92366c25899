package proof_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/statement"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/cluster/proof"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

var doubled = replay.Orchestration[int, int]("doubled")

func prove(t testing.TB) (written []byte, key ed25519.PublicKey) {
	t.Helper()
	node, err := cluster.Start(context.Background(), cluster.Config{Dir: t.TempDir(), Partitions: 1, Definitions: []replay.Definition{
		doubled.Bind(func(_ *replay.Context, n int) (int, error) { return 2 * n, nil }),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Close() })
	if _, err := cluster.Call(context.Background(), node.Client(), doubled, "d", 4); err != nil {
		t.Fatal(err)
	}
	var to bytes.Buffer
	if err := proof.Prove(context.Background(), node.Client(), "d", 0, &to); err != nil {
		t.Fatal(err)
	}
	if key, _, err = proof.Key(context.Background(), node.Client()); err != nil {
		t.Fatal(err)
	}
	if err := proof.Prove(context.Background(), node.Client(), "d", 2, &to); !errors.Is(err, cluster.ErrNotFound) {
		t.Errorf("another execution: %v", err)
	}
	return to.Bytes(), key
}

// A proof is checked without the cluster; any other bytes and any other key are refused, also with
// a right checksum.
func TestCheck_AcceptsOnlyWhatWasSigned(t *testing.T) {
	written, key := prove(t)
	p, err := proof.Check(bytes.NewReader(written), key)
	if err != nil {
		t.Fatal(err)
	}
	if p.History.Instance != "d" || len(p.History.Events) != 2 || p.Index == 0 || p.Time.IsZero() || !p.Key.Equal(key) {
		t.Errorf("%+v", p)
	}
	other, _, _ := ed25519.GenerateKey(nil)
	if _, err := proof.Check(bytes.NewReader(written), other); !errors.Is(err, proof.ErrInvalid) {
		t.Errorf("another key: %v", err)
	}
	for at := range written {
		altered := bytes.Clone(written)
		altered[at] ^= 1
		for _, b := range [][]byte{altered, withChecksum(altered), written[:at], withChecksum(written[:at])} {
			if _, err := proof.Check(bytes.NewReader(b), key); !errors.Is(err, proof.ErrInvalid) && !bytes.Equal(b, written) {
				t.Fatalf("byte %d altered or missing: %v", at, err)
			}
		}
	}
	if _, err := proof.Check(bytes.NewReader(forge(t, written)), key); !errors.Is(err, proof.ErrInvalid) || !strings.Contains(err.Error(), "root") {
		t.Errorf("another history below the signed root: %v", err)
	}
}

// forge alters an event of a proof of one execution, and everything that follows from it but what
// is signed.
func forge(t *testing.T, written []byte) []byte {
	t.Helper()
	const magic = "tenuto proof 1\n"
	file := statement.Reader{Rest: written[len(magic) : len(written)-sha256.Size]}
	forged := []byte(magic)
	for range 3 { // the statement, the signature, the key
		forged = statement.AppendBytes(forged, file.Bytes())
	}
	instance, executions := file.Text(), file.Uint()
	number, last := file.Uint(), file.Uint()
	file.Take(sha256.Size)
	position, path, proved := file.Uint(), file.Uint(), file.Uint()
	if file.Short || executions != 1 || number != 1 || path != 0 || proved != 1 {
		t.Fatalf("not the proof of one execution: %d executions, path of %d", executions, path)
	}
	digest, events := statement.NewExecutionDigest(instance, number), []byte(nil)
	for id := range last {
		event, encoded := new(journalpb.Event), file.Bytes()
		if err := proto.Unmarshal(encoded, event); err != nil {
			t.Fatal(err)
		}
		if id == last-1 {
			event.Timestamp++
		}
		encoded, err := proto.Marshal(event)
		if err != nil {
			t.Fatal(err)
		}
		digest.Add(encoded)
		events = statement.AppendBytes(events, encoded)
	}
	sum := digest.Sum()
	forged = statement.AppendBytes(forged, []byte(instance))
	for _, of := range []uint64{executions, number, last} {
		forged = binary.BigEndian.AppendUint64(forged, of)
	}
	forged = append(forged, sum[:]...)
	for _, of := range []uint64{position, path, proved} {
		forged = binary.BigEndian.AppendUint64(forged, of)
	}
	return withChecksum(append(append(forged, events...), make([]byte, sha256.Size)...))
}

var counted = replay.Orchestration[int, int]("counted")

// startCounting starts a node whose counted runs have three executions.
func startCounting(t *testing.T) *cluster.Client {
	t.Helper()
	node, err := cluster.Start(t.Context(), cluster.Config{Dir: t.TempDir(), Partitions: 1, Definitions: []replay.Definition{
		counted.Bind(func(ctx *replay.Context, n int) (int, error) {
			if n < 3 {
				return 0, counted.ContinueAsNew(ctx, n+1)
			}
			return n, nil
		}),
		doubled.Bind(func(_ *replay.Context, n int) (int, error) { return 2 * n, nil }),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Close() })
	return node.Client()
}

// statementOf returns the signed statement in a proof.
func statementOf(written []byte) []byte {
	at := len("tenuto proof 1\n")
	size := binary.BigEndian.Uint64(written[at:])
	return written[at+8:][:size]
}

func proveOf(t *testing.T, client *cluster.Client, id string, execution uint64) ([]byte, *proof.Proof) {
	t.Helper()
	var to bytes.Buffer
	if err := proof.Prove(t.Context(), client, id, execution, &to); err != nil {
		t.Fatal(err)
	}
	p, err := proof.Check(bytes.NewReader(to.Bytes()), nil)
	if err != nil {
		t.Fatal(err)
	}
	return to.Bytes(), p
}

// The proofs of instances that a round has compared are of the root that was signed in that round.
// What is newer gets a later one.
func TestProve_UsesPeriodicRoots(t *testing.T) {
	client := startCounting(t)
	for i := range 20 {
		tags := map[string]string{"a": "1", "b": "2", "c": "3", "d": "4", "e": "5"}
		if _, err := cluster.Call(t.Context(), client, counted, fmt.Sprint("c", i), 1, cluster.Tags(tags)); err != nil {
			t.Fatal(err)
		}
	}
	verified, err := operate.Verify(t.Context(), client, nil)
	if err != nil || len(verified) != 1 || len(verified[0].Roots) == 0 {
		t.Fatalf("%v, error %v", verified, err)
	}
	for i := range 20 {
		for execution, events := range []int{2, 2, 2, 2} { // 0 is the latest
			written, p := proveOf(t, client, fmt.Sprint("c", i), uint64(execution))
			if !slices.ContainsFunc(verified[0].Roots, func(d operate.SignedRoot) bool { return bytes.Equal(d.Statement, statementOf(written)) }) {
				t.Fatalf("c%d/%d: the root at index %d is not of the round", i, execution, p.Index)
			}
			if len(p.History.Events) != events || p.Replicas != 1 || p.Voters != 1 {
				t.Errorf("c%d/%d: %d events, %d of %d replicas", i, execution, len(p.History.Events), p.Replicas, p.Voters)
			}
		}
	}
	_, before := proveOf(t, client, "c5", 0)
	if _, err := cluster.Call(t.Context(), client, doubled, "new", 4); err != nil {
		t.Fatal(err)
	}
	if _, p := proveOf(t, client, "new", 0); p.Index <= before.Index || p.History.Events[0].Name != "doubled" {
		t.Errorf("a new instance: index %d, after %d", p.Index, before.Index)
	}
	// Another run under an ID that the root covers.
	if _, err := client.Purge(t.Context(), "c5"); err != nil {
		t.Fatal(err)
	}
	if err := proof.Prove(t.Context(), client, "c5", 0, io.Discard); !errors.Is(err, cluster.ErrNotFound) {
		t.Errorf("a purged instance: %v", err)
	}
	if _, err := cluster.Call(t.Context(), client, counted, "c5", 1); err != nil {
		t.Fatal(err)
	}
	if _, p := proveOf(t, client, "c5", 0); p.Index <= before.Index || len(p.History.Events) != 2 {
		t.Errorf("another run: index %d, after %d", p.Index, before.Index)
	}
	// Many at once.
	var calls sync.WaitGroup
	for i := range 10 {
		calls.Go(func() {
			if err := proof.Prove(t.Context(), client, fmt.Sprint("c", i), 1, io.Discard); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
}

// withChecksum gives altered bytes the right checksum.
func withChecksum(b []byte) []byte {
	if len(b) < sha256.Size {
		return b
	}
	content := bytes.Clone(b[:len(b)-sha256.Size])
	sum := sha256.Sum256(content)
	return append(content, sum[:]...)
}

func FuzzCheck(f *testing.F) {
	written, key := prove(f)
	f.Add(written)
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := proof.Check(bytes.NewReader(withChecksum(b)), key); err == nil && !bytes.Equal(withChecksum(b), written) {
			t.Errorf("accepted: %+v", p)
		}
	})
}
