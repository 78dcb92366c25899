package certificate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// A Request says which certificates to make.
type Request struct {
	Dir            string
	Cluster        string   // name of the cluster
	Nodes, Clients []string // their names
	ValidFor       time.Duration
}

// A File is a file that was written.
type File struct {
	Path    string    `json:"path"`
	Kind    string    `json:"kind"` // authority, node or client
	Name    string    `json:"name,omitempty"`
	Secret  bool      `json:"secret,omitempty"` // a private key
	Expires time.Time `json:"expires"`
}

// The names of the files of the authority.
const (
	authorityCertificate = "ca.crt"
	authorityKey         = "ca.key"
)

// namePattern is the syntax of names of clusters, nodes and clients.
var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// An owner is a node or a client.
type owner struct{ kind, name string }

func (o owner) fileName() string { return o.kind + "-" + o.name }

func (o owner) uri(cluster string) *url.URL {
	return &url.URL{Scheme: "tenuto", Host: cluster, Path: "/" + o.kind + "/" + o.name}
}

func (r Request) owners() (owners []owner) {
	for _, name := range r.Nodes {
		owners = append(owners, owner{"node", name})
	}
	for _, name := range r.Clients {
		owners = append(owners, owner{"client", name})
	}
	return owners
}

// Validate returns an error if a name or the validity cannot be used.
func (r Request) Validate() error {
	for _, name := range append([]string{r.Cluster}, append(r.Nodes, r.Clients...)...) {
		if !namePattern.MatchString(name) {
			return fmt.Errorf("the name %q must have 1 to 64 characters of A-Z a-z 0-9 . _ -, the first a letter or digit", name)
		}
	}
	if r.ValidFor < time.Hour {
		return fmt.Errorf("certificates must be valid for an hour at least, not %s", r.ValidFor)
	}
	return nil
}

// Make writes the certificates and keys, and the authority if the directory has none. It writes
// nothing if one of the files exists.
func Make(r Request) ([]File, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	for _, o := range r.owners() {
		for _, suffix := range []string{".crt", ".key"} {
			path := filepath.Join(r.Dir, o.fileName()+suffix)
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				return nil, errors.Join(fmt.Errorf("%s exists already: nothing was written", path), err)
			}
		}
	}
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		return nil, err
	}
	a, files, err := openAuthority(r)
	if err != nil {
		return nil, err
	}
	for _, o := range r.owners() {
		made, err := a.issue(r, o)
		files = append(files, made...)
		if err != nil {
			return files, err
		}
	}
	return files, nil
}

// An authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         any
}

// openAuthority reads the authority of a directory, or makes it and returns its files.
func openAuthority(r Request) (*authority, []File, error) {
	certificatePath, keyPath := filepath.Join(r.Dir, authorityCertificate), filepath.Join(r.Dir, authorityKey)
	_, err1 := os.Lstat(certificatePath)
	_, err2 := os.Lstat(keyPath)
	switch noCertificate, noKey := errors.Is(err1, fs.ErrNotExist), errors.Is(err2, fs.ErrNotExist); {
	case noCertificate && noKey:
		return makeAuthority(r, certificatePath, keyPath)
	case noCertificate != noKey:
		return nil, nil, fmt.Errorf("%s needs both %s and %s, or none of them", r.Dir, authorityCertificate, authorityKey)
	}
	certificateDER, err := readPEM(certificatePath)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := readPEM(keyPath)
	if err != nil {
		return nil, nil, err
	}
	a := new(authority)
	if a.certificate, err = x509.ParseCertificate(certificateDER); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", certificatePath, err)
	}
	if a.key, err = x509.ParsePKCS8PrivateKey(keyDER); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", keyPath, err)
	}
	if time.Now().After(a.certificate.NotAfter) {
		return nil, nil, fmt.Errorf("%s has expired", certificatePath)
	}
	return a, nil, nil
}

func makeAuthority(r Request, certificatePath, keyPath string) (*authority, []File, error) {
	template, err := newTemplate("tenuto authority of "+r.Cluster, r.ValidFor)
	if err != nil {
		return nil, nil, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	a := &authority{certificate: template}
	files, err := a.write(template, certificatePath, keyPath, File{Kind: "authority"})
	return a, files, err
}

// issue makes the certificate and the key of an owner.
func (a *authority) issue(r Request, o owner) ([]File, error) {
	template, err := newTemplate(o.name, min(r.ValidFor, time.Until(a.certificate.NotAfter)))
	if err != nil {
		return nil, err
	}
	template.URIs = []*url.URL{o.uri(r.Cluster)}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if o.kind == "node" {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	path := filepath.Join(r.Dir, o.fileName())
	return a.write(template, path+".crt", path+".key", File{Kind: o.kind, Name: o.name})
}

func newTemplate(name string, validFor time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-5 * time.Minute), // clocks of machines differ
		NotAfter:  now.Add(validFor),
	}, nil
}

// write makes a key, signs its certificate and writes both. An authority without a key signs its
// own certificate and gets the key.
func (a *authority) write(template *x509.Certificate, certificatePath, keyPath string, file File) ([]File, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if a.key == nil {
		a.key = key
	}
	certificateDER, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	file.Expires = template.NotAfter.UTC().Truncate(time.Second)
	if err := writePEM(keyPath, "PRIVATE KEY", keyDER, 0o600); err != nil {
		return nil, err
	}
	secret := file
	secret.Path, secret.Secret = keyPath, true
	if err := writePEM(certificatePath, "CERTIFICATE", certificateDER, 0o644); err != nil {
		return []File{secret}, err
	}
	file.Path = certificatePath
	if a.certificate == template {
		a.certificate, err = x509.ParseCertificate(certificateDER)
	}
	return []File{file, secret}, err
}

// writePEM writes a new file.
func writePEM(path, kind string, der []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	return errors.Join(pem.Encode(f, &pem.Block{Type: kind, Bytes: der}), f.Close())
}

func readPEM(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s is not PEM", path)
	}
	return block.Bytes, nil
}
