package proof_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"testing"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/proof"
	"github.com/tenuto-dev/tenuto/replay"
)

var doubled = replay.Orchestration[int, int]("doubled")

func prove(t testing.TB) (written []byte, key ed25519.PublicKey) {
	t.Helper()
	node, err := cluster.Start(context.Background(), cluster.Config{InMemory: true, Definitions: []replay.Definition{
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

// A proof is checked without the cluster; any other bytes and any other key are refused, also with a
// right checksum.
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
