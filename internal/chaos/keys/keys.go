package keys

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Keys holds the certificates of a fleet's nodes, in files that nodes reread when they change, and
// the authorities that issued them.
type Keys struct {
	dir string

	mu       sync.Mutex
	serial   int64
	issuer   *authority
	subjects []subject // of certificates
}

// A subject is the node or client that a certificate names.
type subject struct{ kind, id string }

// An authority issues certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// keyValidity is how long a certificate is valid, both before and after it is issued.
const keyValidity = 3 * 24 * time.Hour

// New creates an authority in a new directory.
func New(dir string) (*Keys, error) {
	k := &Keys{dir: dir}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	var err error
	if k.issuer, err = k.newAuthority(); err != nil {
		return nil, err
	}
	return k, k.trust(k.issuer)
}

// files returns the file names of a node's certificate, key and authorities.
func (k *Keys) files(id string) [3]string {
	return [3]string{filepath.Join(k.dir, id+".pem"), filepath.Join(k.dir, id+".key"), filepath.Join(k.dir, "roots.pem")}
}

// Issue creates a certificate for a node and returns its files.
func (k *Keys) Issue(id string) ([3]string, error) { return k.issueTo(subject{"node", id}) }

// IssueClient creates a certificate for a client.
func (k *Keys) IssueClient(id string) ([3]string, error) { return k.issueTo(subject{"client", id}) }

func (k *Keys) issueTo(h subject) ([3]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !slices.Contains(k.subjects, h) {
		k.subjects = append(k.subjects, h)
	}
	return k.files(h.id), k.reissue(h)
}

// reissue creates a certificate. The caller holds mu.
func (k *Keys) reissue(h subject) error {
	template := &x509.Certificate{
		URIs:        []*url.URL{{Scheme: "tenuto", Host: "tenuto", Path: "/" + h.kind + "/" + h.id}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	issued, err := k.sign(template, k.issuer)
	if err != nil {
		return err
	}
	key, err := x509.MarshalPKCS8PrivateKey(issued.key)
	if err != nil {
		return err
	}
	files := k.files(h.id)
	return errors.Join(
		replaceFile(files[1], encodePEM("PRIVATE KEY", key)),
		replaceFile(files[0], encodePEM("CERTIFICATE", issued.certificate.Raw)),
	)
}

func (k *Keys) newAuthority() (*authority, error) {
	return k.sign(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil)
}

// sign creates a key and a certificate, which is self-signed if issuer is nil.
func (k *Keys) sign(template *x509.Certificate, issuer *authority) (*authority, error) {
	k.serial++
	template.SerialNumber, template.Subject = big.NewInt(k.serial), pkix.Name{CommonName: fmt.Sprintf("chaos %d", k.serial)}
	template.NotBefore, template.NotAfter = time.Now().Add(-keyValidity), time.Now().Add(keyValidity)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if issuer == nil {
		issuer = &authority{template, key}
	}
	encoded, err := x509.CreateCertificate(rand.Reader, template, issuer.certificate, &key.PublicKey, issuer.key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(encoded)
	if err != nil {
		return nil, err
	}
	return &authority{certificate, key}, nil
}

// trust sets the authorities that the nodes trust.
func (k *Keys) trust(authorities ...*authority) error {
	var all []byte
	for _, a := range authorities {
		all = append(all, encodePEM("CERTIFICATE", a.certificate.Raw)...)
	}
	return replaceFile(k.files("")[2], all)
}

// Rotate replaces the authority and all certificates while nodes run, and calls step after each of
// three steps: nodes trust both authorities, all get new certificates, nodes trust only the new
// authority.
func (k *Keys) Rotate(step func() error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	next, err := k.newAuthority()
	if err != nil {
		return err
	}
	if err := k.trust(k.issuer, next); err != nil {
		return err
	}
	if err := step(); err != nil {
		return err
	}
	k.issuer = next
	for _, h := range k.subjects {
		if err := k.reissue(h); err != nil {
			return err
		}
	}
	if err := step(); err != nil {
		return err
	}
	if err := k.trust(next); err != nil {
		return err
	}
	return step()
}

func encodePEM(kind string, content []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content})
}

// replaceFile replaces a file atomically.
func replaceFile(name string, content []byte) error {
	if err := os.WriteFile(name+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}
