package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// Keys are what a node or a client shows to others, and whom it believes.
type Keys struct {
	// The certificate and its private key. It names its owner by a URI among its
	// alternative names, tenuto://CLUSTER-ID/node/NODE-ID or
	// tenuto://CLUSTER-ID/client/NAME, and that of a node is good for servers
	// and clients alike.
	Certificate *tls.Certificate
	// The authorities whose certificates are believed: of this cluster and its
	// clients alone. While one is replaced by another, both.
	Roots *x509.CertPool
}

// A KeySource has keys. It is asked before every handshake, by any number of
// goroutines, so that keys are replaced without a restart. What it returns is
// not changed afterwards.
type KeySource interface {
	Keys() (*Keys, error)
}

// KeyFiles returns a source that has its keys in files in PEM: the certificate,
// with those between it and the authority behind it; its private key; and the
// authorities, of which there may be several. A file that has changed is read
// again at the next handshake. While the files do not go together, because one
// of them is replaced before the other, the keys of before are used.
func KeyFiles(certificate, key, roots string) KeySource {
	return &keyFiles{paths: [3]string{certificate, key, roots}}
}

type keyFiles struct {
	paths [3]string

	mu    sync.Mutex
	keys  *Keys
	stamp [3]fileStamp // of the files from which the keys are
}

// A fileStamp tells whether a file has changed.
type fileStamp struct {
	modified time.Time
	size     int64
}

// Keys implements KeySource.
func (f *keyFiles) Keys() (*Keys, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var stamp [3]fileStamp
	for i, path := range f.paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("read keys: %w", err)
		}
		stamp[i] = fileStamp{info.ModTime(), info.Size()}
	}
	if f.keys != nil && stamp == f.stamp {
		return f.keys, nil
	}
	keys, err := readKeys(f.paths)
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	f.keys, f.stamp = keys, stamp
	return keys, nil
}

func readKeys(paths [3]string) (*Keys, error) {
	certificate, err := tls.LoadX509KeyPair(paths[0], paths[1])
	if err != nil {
		return nil, err
	}
	encoded, err := os.ReadFile(paths[2])
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(encoded) {
		return nil, fmt.Errorf("%s holds no certificate", paths[2])
	}
	return &Keys{Certificate: &certificate, Roots: roots}, nil
}

// A keyring makes handshakes in the name of a node or a client.
type keyring struct {
	source  KeySource
	cluster string
	logger  *slog.Logger
	check   func(Principal) error // of whom the keys are

	mu      sync.Mutex
	keys    *Keys  // the last that were good
	refused string // why newer ones are not; said once
}

// newKeyring returns a keyring whose keys are good now. owner refuses keys that
// are somebody else's.
func newKeyring(source KeySource, cluster string, owner func(Principal) error, logger *slog.Logger) (*keyring, error) {
	r := &keyring{source: source, cluster: cluster, check: owner, logger: logger}
	if _, err := r.current(); err != nil {
		return nil, err
	}
	return r, nil
}

// current returns the keys of the source, or the last good ones.
func (r *keyring) current() (*Keys, error) {
	keys, refused, err := r.adopt(r.source.Keys())
	if refused != nil {
		r.logger.Error("keys cannot be used, those of before are", "error", refused)
	}
	return keys, err
}

// adopt takes what the source has said, and returns the keys to be used. refused is why
// those of the source are not, if that is news.
func (r *keyring) adopt(said *Keys, unread error) (keys *Keys, refused, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if unread == nil && (said == nil || said != r.keys) {
		unread = r.verify(said)
	}
	switch {
	case unread == nil:
		r.keys, r.refused = said, ""
		return said, nil, nil
	case r.keys == nil:
		return nil, nil, unread
	}
	if reason := unread.Error(); reason != r.refused {
		r.refused, refused = reason, unread
	}
	return r.keys, refused, nil
}

// verify refuses keys with which nobody would talk to their owner.
func (r *keyring) verify(keys *Keys) error {
	if keys == nil || keys.Certificate == nil || len(keys.Certificate.Certificate) == 0 || keys.Roots == nil {
		return errors.New("the keys lack a certificate or authorities")
	}
	var chain []*x509.Certificate
	for _, encoded := range keys.Certificate.Certificate {
		certificate, err := x509.ParseCertificate(encoded)
		if err != nil {
			return fmt.Errorf("parse certificate: %w", err)
		}
		chain = append(chain, certificate)
	}
	owner, err := r.believe(chain, keys.Roots, x509.ExtKeyUsageClientAuth)
	if err == nil && owner.Role == RoleNode {
		_, err = r.believe(chain, keys.Roots, x509.ExtKeyUsageServerAuth)
	}
	if err != nil {
		return err
	}
	return r.check(owner)
}

// believe returns whose certificate is the first of a chain, if it ends at an
// authority and is of this cluster.
func (r *keyring) believe(chain []*x509.Certificate, roots *x509.CertPool, usage x509.ExtKeyUsage) (Principal, error) {
	if len(chain) == 0 {
		return Principal{}, errors.New("there is no certificate")
	}
	between := x509.NewCertPool()
	for _, certificate := range chain[1:] {
		between.AddCert(certificate)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{usage}})
	if err != nil {
		return Principal{}, err
	}
	return principalOf(chain[0], r.cluster)
}

// A purpose is what a connection is for.
type purpose byte

const (
	forRaft  purpose = 'r'
	forCalls purpose = 'c'
)

// protocols are the purposes' names in a handshake.
var protocols = map[purpose]string{forRaft: "tenuto-raft/1", forCalls: "tenuto-calls/1"}

func purposeOf(protocol string) (purpose, error) {
	for p, name := range protocols {
		if name == protocol {
			return p, nil
		}
	}
	return 0, fmt.Errorf("unknown protocol %.100q", protocol)
}

// A meeting is what a handshake has shown of the other side.
type meeting struct {
	purpose purpose
	peer    Principal
	expires time.Time // of the peer's certificate
}

// accepting returns the configuration for connections that others open. It refuses
// certificates alone: whom a node lets in it says after the handshake, because the library
// calls everything that is refused within it a bad certificate.
func (r *keyring) accepting() *tls.Config {
	config := &tls.Config{
		MinVersion: tls.VersionTLS13,
		ClientAuth: tls.RequireAndVerifyClientCert,
		NextProtos: []string{protocols[forRaft], protocols[forCalls]},
		// Each connection proves anew that its certificate is good.
		SessionTicketsDisabled: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := r.meet(state)
			return err
		},
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			keys, err := r.current()
			if err != nil {
				return nil, err
			}
			now := config.Clone()
			now.Certificates, now.ClientCAs = []tls.Certificate{*keys.Certificate}, keys.Roots
			return now, nil
		},
	}
}

// meet says what a handshake has shown, when the chain has been verified.
func (r *keyring) meet(state tls.ConnectionState) (*meeting, error) {
	wanted, err := purposeOf(state.NegotiatedProtocol)
	if err != nil {
		return nil, err
	}
	peer, err := principalOf(state.PeerCertificates[0], r.cluster)
	if err != nil {
		return nil, err
	}
	return &meeting{wanted, peer, state.PeerCertificates[0].NotAfter}, nil
}

// opening returns the configuration for a connection to a node: to that one, if
// its ID is known, and to no client in any case.
func (r *keyring) opening(wanted purpose, nodeID string) (*tls.Config, error) {
	keys, err := r.current()
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{protocols[wanted]},
		SessionTicketsDisabled: true,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return keys.Certificate, nil
		},
		// Certificates name nodes, not hosts: what the library would compare is
		// of no use. VerifyConnection verifies all the rest.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			peer, err := r.believe(state.PeerCertificates, keys.Roots, x509.ExtKeyUsageServerAuth)
			switch {
			case err != nil:
				return err
			case peer.Role != RoleNode:
				return fmt.Errorf("%s answers in place of a node", peer)
			case nodeID != "" && peer.Name != nodeID:
				return fmt.Errorf("%s answers in place of node %s", peer, nodeID)
			}
			return nil
		},
	}, nil
}
