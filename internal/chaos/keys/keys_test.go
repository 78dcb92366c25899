package keys

import (
	"crypto/x509"
	"path/filepath"
	"testing"

	"github.com/tenuto-dev/tenuto/cluster"
)

// isTrusted reports whether the nodes trust a node's current certificate.
func isTrusted(t *testing.T, files [3]string) (serial string, ok bool) {
	t.Helper()
	keys, err := cluster.KeyFiles(files[0], files[1], files[2]).Keys()
	if err != nil {
		t.Fatal(err)
	}
	leaf := keys.Certificate.Leaf
	_, err = leaf.Verify(x509.VerifyOptions{Roots: keys.Roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return leaf.SerialNumber.String(), err == nil
}

func TestKeys_TrustedDuringRotation(t *testing.T) {
	k, err := New(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	var files [2][3]string
	for i, id := range []string{"n1", "n2"} {
		if files[i], err = k.Issue(id); err != nil {
			t.Fatal(err)
		}
	}
	first, ok := isTrusted(t, files[0])
	if !ok {
		t.Fatal("a certificate that was just issued is not trusted")
	}
	before, steps := *k.issuer, 0
	if err := k.Rotate(func() error {
		steps++
		for i := range files {
			if _, ok := isTrusted(t, files[i]); !ok {
				t.Errorf("at step %d certificate %d is not trusted", steps, i+1)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	last, _ := isTrusted(t, files[0])
	if steps != 3 || last == first {
		t.Errorf("%d steps, and certificate %s became %s", steps, first, last)
	}
	keys, err := cluster.KeyFiles(files[0][0], files[0][1], files[0][2]).Keys()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := before.certificate.Verify(x509.VerifyOptions{Roots: keys.Roots}); err == nil {
		t.Error("the old authority is still trusted")
	}
}
