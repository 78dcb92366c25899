package keytest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"testing"
	"time"
)

// ClusterID is the cluster that an Authority names in certificates, the default of an application.
const ClusterID = "tenuto"

// An Authority signs certificates.
type Authority struct {
	Certificate *x509.Certificate

	t   testing.TB
	key *ecdsa.PrivateKey
}

// NewAuthority returns an authority with a new key.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t, key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.Certificate = a.sign(template, template, a.key)
	return a
}

// Issue returns a certificate with these identities, modified by changes.
func (a *Authority) Issue(identities []string, changes ...func(*x509.Certificate)) *tls.Certificate {
	a.t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "n1"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	for _, identity := range identities {
		uri, err := url.Parse(identity)
		if err != nil {
			a.t.Fatal(err)
		}
		template.URIs = append(template.URIs, uri)
	}
	for _, change := range changes {
		change(template)
	}
	key := newKey(a.t)
	certificate := a.sign(template, a.Certificate, key)
	return &tls.Certificate{Certificate: [][]byte{certificate.Raw}, PrivateKey: key, Leaf: certificate}
}

// Node returns the certificate of a node.
func (a *Authority) Node(id string) *tls.Certificate {
	a.t.Helper()
	return a.Issue([]string{"tenuto://" + ClusterID + "/node/" + id})
}

// Client returns the certificate of a client.
func (a *Authority) Client(name string) *tls.Certificate {
	a.t.Helper()
	return a.Issue([]string{"tenuto://" + ClusterID + "/client/" + name})
}

// Roots returns a pool with this authority alone.
func (a *Authority) Roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.Certificate)
	return pool
}

// PEM returns the content of the authority's file.
func (a *Authority) PEM() []byte { return encodePEM("CERTIFICATE", a.Certificate.Raw) }

// PEM returns the content of the files of a certificate and its key.
func PEM(t testing.TB, of *tls.Certificate) (certificate, key []byte) {
	t.Helper()
	encoded, err := x509.MarshalPKCS8PrivateKey(of.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return encodePEM("CERTIFICATE", of.Certificate[0]), encodePEM("PRIVATE KEY", encoded)
}

func encodePEM(kind string, content []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content})
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// sign returns a certificate for key, signed by the authority's.
func (a *Authority) sign(template, parent *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	a.t.Helper()
	encoded, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(encoded)
	if err != nil {
		a.t.Fatal(err)
	}
	return certificate
}
