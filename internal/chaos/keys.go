package main

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
	"sync"
	"time"
)

// keys are the certificates of a fleet's nodes, in files that nodes read again when
// they change, and the authorities that have issued them.
type keys struct {
	dir string

	mu      sync.Mutex
	serial  int64
	issuer  *authority
	holders []holder // of certificates
}

// A holder is a node or a client of the cluster, as its certificate says.
type holder struct{ role, id string }

// An authority issues certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// keyDays is for how long certificates are good, before now as after it.
const keyDays = 3 * 24 * time.Hour

func newKeys(dir string) (*keys, error) {
	k := &keys{dir: dir}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	var err error
	if k.issuer, err = k.newAuthority(); err != nil {
		return nil, err
	}
	return k, k.believe(k.issuer)
}

// files returns where a node finds its certificate, its key and the authorities.
func (k *keys) files(id string) [3]string {
	return [3]string{filepath.Join(k.dir, id+".pem"), filepath.Join(k.dir, id+".key"), filepath.Join(k.dir, "roots.pem")}
}

// issue makes a certificate for a node and returns the files.
func (k *keys) issue(id string) ([3]string, error) { return k.issueTo(holder{"node", id}) }

// issueClient makes a certificate for a client.
func (k *keys) issueClient(id string) ([3]string, error) { return k.issueTo(holder{"client", id}) }

func (k *keys) issueTo(h holder) ([3]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.holders = append(k.holders, h)
	return k.files(h.id), k.issueAgain(h)
}

// issueAgain makes a certificate; mu is held.
func (k *keys) issueAgain(h holder) error {
	template := &x509.Certificate{
		URIs:        []*url.URL{{Scheme: "tenuto", Host: "tenuto", Path: "/" + h.role + "/" + h.id}},
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

func (k *keys) newAuthority() (*authority, error) {
	return k.sign(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil)
}

// sign makes a key and a certificate for it, signed by itself if there is no issuer.
func (k *keys) sign(template *x509.Certificate, issuer *authority) (*authority, error) {
	k.serial++
	template.SerialNumber, template.Subject = big.NewInt(k.serial), pkix.Name{CommonName: fmt.Sprintf("chaos %d", k.serial)}
	template.NotBefore, template.NotAfter = time.Now().Add(-keyDays), time.Now().Add(keyDays)
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

// believe says whose certificates the nodes believe.
func (k *keys) believe(authorities ...*authority) error {
	var all []byte
	for _, a := range authorities {
		all = append(all, encodePEM("CERTIFICATE", a.certificate.Raw)...)
	}
	return replaceFile(k.files("")[2], all)
}

// rotate replaces the authority and all certificates, as it is done while nodes run:
// both are believed, everybody gets a new certificate, one is believed. step is called
// after each of these.
func (k *keys) rotate(step func() error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	next, err := k.newAuthority()
	if err != nil {
		return err
	}
	if err := k.believe(k.issuer, next); err != nil {
		return err
	}
	if err := step(); err != nil {
		return err
	}
	k.issuer = next
	for _, h := range k.holders {
		if err := k.issueAgain(h); err != nil {
			return err
		}
	}
	if err := step(); err != nil {
		return err
	}
	if err := k.believe(next); err != nil {
		return err
	}
	return step()
}

func encodePEM(kind string, content []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content})
}

// replaceFile writes a file at once: nobody reads half of it.
func replaceFile(name string, content []byte) error {
	if err := os.WriteFile(name+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}
