package cluster

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// An authority signs certificates for tests.
type authority struct {
	t           testing.TB
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{t: t, key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.certificate = signed(t, template, template, a.key, a.key)
	return a
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func signed(t testing.TB, template, parent *x509.Certificate, key, by *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	encoded, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(encoded)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

// issue returns a certificate with these identities, changed as a test wants it.
func (a *authority) issue(identities []string, changes ...func(*x509.Certificate)) *tls.Certificate {
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
	certificate := signed(a.t, template, a.certificate, key, a.key)
	return &tls.Certificate{Certificate: [][]byte{certificate.Raw}, PrivateKey: key, Leaf: certificate}
}

func (a *authority) node(id string) *tls.Certificate {
	a.t.Helper()
	return a.issue([]string{identityURI(clusterIDDefault, Principal{RoleNode, id})})
}

func (a *authority) client(name string) *tls.Certificate {
	a.t.Helper()
	return a.issue([]string{identityURI(clusterIDDefault, Principal{RoleClient, name})})
}

func (a *authority) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

// keys are a certificate, believing this authority.
func (a *authority) keys(certificate *tls.Certificate) *heldKeys {
	return &heldKeys{keys: &Keys{Certificate: certificate, Roots: a.roots()}}
}

// heldKeys is a source whose keys a test replaces.
type heldKeys struct {
	mu   sync.Mutex
	keys *Keys
}

func (h *heldKeys) Keys() (*Keys, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.keys, nil
}

func (h *heldKeys) replace(keys *Keys) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keys = keys
}

// write puts a certificate, its key and authorities into files.
func write(t testing.TB, dir string, certificate *tls.Certificate, authorities ...*authority) (paths [3]string) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	var roots []byte
	for _, a := range authorities {
		roots = append(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw})...)
	}
	content := [][]byte{
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		roots,
	}
	for i, name := range []string{"node.crt", "node.key", "roots.crt"} {
		paths[i] = filepath.Join(dir, name)
		if err := os.WriteFile(paths[i], content[i], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

// A logbook keeps what is logged.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logbook) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(line)
}

// all returns all that was logged.
func (b *logbook) all() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.text.Bytes())
}

func (b *logbook) logger() *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

// lines returns how many lines hold a text.
func (b *logbook) lines(text string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, line := range strings.Split(b.text.String(), "\n") {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// startSecured starts three nodes with certificates of an authority, and returns
// their logs as well.
func startSecured(t *testing.T, a *authority, change func(i int, config *Config)) ([]*Node, []*logbook) {
	t.Helper()
	peers := loopbackPeers(t, 3)
	var nodes []*Node
	var logs []*logbook
	for i := range peers {
		log := new(logbook)
		config := peerConfig(t, peers, i, definitions()...)
		config.TLS, config.Logger = a.keys(a.node(peers[i].NodeID)), log.logger()
		if change != nil {
			change(i, &config)
		}
		nodes, logs = append(nodes, startNode(t, config)), append(logs, log)
	}
	return nodes, logs
}

// tell is a call that any leader answers.
func tell(ctx context.Context, t *testing.T, node *Node, id string) {
	t.Helper()
	if got, err := Call(ctx, node.Client(), doubled, id, 21); err != nil || got != 42 {
		t.Fatalf("a call through %s: %d, %v", node.ID(), got, err)
	}
}

// left returns how many more lines are logged in this second.
func (r *refusals) left() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return refusalsPerSecond - r.logged
}
