package main

import (
	"crypto/x509"
	"path/filepath"
	"testing"

	"github.com/tenuto-dev/tenuto/cluster"
)

// believed tells whether a node's certificate is one that nodes believe, now.
func believed(t *testing.T, files [3]string) (serial string, ok bool) {
	t.Helper()
	keys, err := cluster.KeyFiles(files[0], files[1], files[2]).Keys()
	if err != nil {
		t.Fatal(err)
	}
	leaf := keys.Certificate.Leaf
	_, err = leaf.Verify(x509.VerifyOptions{Roots: keys.Roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return leaf.SerialNumber.String(), err == nil
}

func TestKeysAreGoodAtEveryStepOfTheirRotation(t *testing.T) {
	k, err := newKeys(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	var files [2][3]string
	for i, id := range []string{"n1", "n2"} {
		if files[i], err = k.issue(id); err != nil {
			t.Fatal(err)
		}
	}
	first, ok := believed(t, files[0])
	if !ok {
		t.Fatal("a certificate that was just issued is not believed")
	}
	before, steps := *k.issuer, 0
	if err := k.rotate(func() error {
		steps++
		for i := range files {
			if _, ok := believed(t, files[i]); !ok {
				t.Errorf("at step %d certificate %d is not believed", steps, i+1)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	last, _ := believed(t, files[0])
	if steps != 3 || last == first {
		t.Errorf("%d steps, and certificate %s became %s", steps, first, last)
	}
	keys, err := cluster.KeyFiles(files[0][0], files[0][1], files[0][2]).Keys()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := before.certificate.Verify(x509.VerifyOptions{Roots: keys.Roots}); err == nil {
		t.Error("the authority of before is believed still")
	}
}
