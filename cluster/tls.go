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

// Keys are the certificate of a node or a client, and the authorities that it trusts.
type Keys struct {
	// Certificate holds the certificate and its private key. A URI among its alternative names
	// names its owner: tenuto://CLUSTER-ID/node/NODE-ID or tenuto://CLUSTER-ID/client/NAME. A
	// node's certificate must be valid for server and client authentication.
	Certificate *tls.Certificate
	// Roots are the trusted authorities: only those of this cluster and its clients. While one
	// authority replaces another, Roots holds both.
	Roots *x509.CertPool
}

// A KeySource provides keys. It is called before every handshake, by any number of goroutines, so
// keys can be replaced without a restart. The returned Keys must not be changed afterwards.
type KeySource interface {
	Keys() (*Keys, error)
}

// KeyFiles returns a source that reads PEM files: the certificate followed by its intermediates,
// its private key, and the authorities. A changed file is read again at the next handshake. While
// the files do not match, because only some of them have been replaced, the previous keys are used.
func KeyFiles(certificate, key, roots string) KeySource {
	return &keyFiles{paths: [3]string{certificate, key, roots}}
}

type keyFiles struct {
	paths [3]string

	mu    sync.Mutex
	keys  *Keys
	stamp [3]fileStamp // of the files that keys was read from
}

// A fileStamp shows whether a file has changed.
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
		return nil, fmt.Errorf("%s contains no certificate", paths[2])
	}
	return &Keys{Certificate: &certificate, Roots: roots}, nil
}

// A tlsSource makes TLS configurations for a node or a client.
type tlsSource struct {
	keySource  KeySource
	cluster    string
	logger     *slog.Logger
	checkOwner func(Principal) error // rejects keys of another owner

	mu             sync.Mutex
	keys           *Keys  // the last valid ones
	rejectedReason string // why newer keys are not; each reason is logged once
}

// newTLSSource returns a TLS source, or an error if its keys are not valid now. owner rejects keys
// that belong to another principal.
func newTLSSource(source KeySource, cluster string, owner func(Principal) error, logger *slog.Logger) (*tlsSource, error) {
	r := &tlsSource{keySource: source, cluster: cluster, checkOwner: owner, logger: logger}
	if _, err := r.current(); err != nil {
		return nil, err
	}
	return r, nil
}

// current returns the keys of the source, or the last valid ones.
func (r *tlsSource) current() (*Keys, error) {
	keys, refused, err := r.refresh(r.keySource.Keys())
	if refused != nil {
		r.logger.Error("new TLS keys rejected, keeping the old ones", "error", refused)
	}
	return keys, err
}

// refresh returns the keys to use: the source's, or the last valid ones if the source's are not
// valid. refused is why the source's keys are not used, unless that was returned before.
func (r *tlsSource) refresh(value *Keys, sourceErr error) (keys *Keys, refused, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if sourceErr == nil && (value == nil || value != r.keys) {
		sourceErr = r.verify(value)
	}
	switch {
	case sourceErr == nil:
		r.keys, r.rejectedReason = value, ""
		return value, nil, nil
	case r.keys == nil:
		return nil, nil, sourceErr
	}
	if reason := sourceErr.Error(); reason != r.rejectedReason {
		r.rejectedReason, refused = reason, sourceErr
	}
	return r.keys, refused, nil
}

// verify returns an error for keys that peers would reject.
func (r *tlsSource) verify(keys *Keys) error {
	if keys == nil || keys.Certificate == nil || len(keys.Certificate.Certificate) == 0 || keys.Roots == nil {
		return errors.New("no certificate or no authorities")
	}
	var chain []*x509.Certificate
	for _, encoded := range keys.Certificate.Certificate {
		certificate, err := x509.ParseCertificate(encoded)
		if err != nil {
			return fmt.Errorf("parse certificate: %w", err)
		}
		chain = append(chain, certificate)
	}
	owner, err := r.verifyChain(chain, keys.Roots, x509.ExtKeyUsageClientAuth)
	if err == nil && owner.Kind == PrincipalNode {
		_, err = r.verifyChain(chain, keys.Roots, x509.ExtKeyUsageServerAuth)
	}
	if err != nil {
		return err
	}
	return r.checkOwner(owner)
}

// verifyChain returns the owner of the first certificate of a chain, if the chain ends at an
// authority and the certificate is for this cluster.
func (r *tlsSource) verifyChain(chain []*x509.Certificate, roots *x509.CertPool, usage x509.ExtKeyUsage) (Principal, error) {
	if len(chain) == 0 {
		return Principal{}, errors.New("no certificate")
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
	purposeRaft  purpose = 'r'
	purposeCalls purpose = 'c'
)

// alpnNames are the ALPN names of the purposes.
var alpnNames = map[purpose]string{purposeRaft: "tenuto-raft/1", purposeCalls: "tenuto-calls/1"}

func purposeOf(protocol string) (purpose, error) {
	for p, name := range alpnNames {
		if name == protocol {
			return p, nil
		}
	}
	return 0, fmt.Errorf("unknown protocol %.100q", protocol)
}

// A handshake is what is known of the other side after the handshake.
type handshakeResult struct {
	purpose purpose
	peer    Principal
	expires time.Time // of the peer's certificate
}

// serverConfig returns the configuration for accepted connections. That configuration rejects only
// invalid certificates. Authorization comes after the handshake, because the TLS library reports
// every rejection within it as a bad certificate.
func (r *tlsSource) serverConfig() *tls.Config {
	config := &tls.Config{
		MinVersion: tls.VersionTLS13,
		ClientAuth: tls.RequireAndVerifyClientCert,
		NextProtos: []string{alpnNames[purposeRaft], alpnNames[purposeCalls]},
		// Each connection must prove again that its certificate is valid.
		SessionTicketsDisabled: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := r.handshakeOf(state)
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

// handshakeOf returns the result of a handshake whose chain has been verified.
func (r *tlsSource) handshakeOf(state tls.ConnectionState) (*handshakeResult, error) {
	required, err := purposeOf(state.NegotiatedProtocol)
	if err != nil {
		return nil, err
	}
	peer, err := principalOf(state.PeerCertificates[0], r.cluster)
	if err != nil {
		return nil, err
	}
	return &handshakeResult{required, peer, state.PeerCertificates[0].NotAfter}, nil
}

// clientConfig returns the configuration for a connection to a node. It accepts only nodes, and
// only the node with that ID unless nodeID is "".
func (r *tlsSource) clientConfig(required purpose, nodeID string) (*tls.Config, error) {
	keys, err := r.current()
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{alpnNames[required]},
		SessionTicketsDisabled: true,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return keys.Certificate, nil
		},
		// Certificates name nodes, not hosts, so the library's host check does not apply.
		// VerifyConnection verifies everything else.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			peer, err := r.verifyChain(state.PeerCertificates, keys.Roots, x509.ExtKeyUsageServerAuth)
			switch {
			case err != nil:
				return err
			case peer.Kind != PrincipalNode:
				return fmt.Errorf("%s answered instead of a node", peer)
			case nodeID != "" && peer.Name != nodeID:
				return fmt.Errorf("%s answered instead of node %s", peer, nodeID)
			}
			return nil
		},
	}, nil
}
