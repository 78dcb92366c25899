package transport

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Keys are the certificate of a node or a client, and the authorities that it trusts.
type Keys struct {
	Certificate *tls.Certificate
	Roots       *x509.CertPool
}

// A TLSSource makes TLS configurations for a node or a client.
type TLSSource struct {
	source     func() (*Keys, error)
	cluster    string
	logger     *slog.Logger
	checkOwner func(Principal) error // rejects keys of another owner

	mu             sync.Mutex
	keys           *Keys     // the last valid ones
	expires        time.Time // when their certificate expires
	rejectedReason string    // why newer keys are not valid; each reason is logged once
	overdue        *keyCall  // the latest call of the source that has taken too long; nil if none has

	closeOnce sync.Once
	closed    chan struct{}
}

// KeysTimeout bounds how long a call waits for the source of the keys.
const KeysTimeout = 10 * time.Second

var (
	errKeysOverdue  = fmt.Errorf("the source of the TLS keys has not answered within %v", KeysTimeout)
	errSourceClosed = errors.New("the node or the client is closed")
)

// A keyCall is a call of the source.
type keyCall struct {
	done chan struct{} // closed after the other fields are set
	keys *Keys
	err  error
}

// NewTLSSource returns a TLS source, or an error if its keys are not valid now. owner returns an
// error for keys that belong to another principal.
func NewTLSSource(source func() (*Keys, error), cluster string, owner func(Principal) error, logger *slog.Logger) (*TLSSource, error) {
	r := &TLSSource{source: source, cluster: cluster, checkOwner: owner, logger: logger, closed: make(chan struct{})}
	if _, err := r.Current(); err != nil {
		return nil, err
	}
	return r, nil
}

// Current returns the keys of the source, or the last valid ones. It waits for at most
// [KeysTimeout], and not at all after Close, or while an earlier call of the source has taken
// longer.
func (t *TLSSource) Current() (*Keys, error) {
	keys, replaced, rejected, err := t.refresh(t.ask())
	switch {
	case rejected != nil:
		t.logger.Warn("new TLS keys rejected, keeping the old ones", "error", rejected, "expires", t.Expires())
	case replaced:
		t.logger.Info("new TLS keys in use", "expires", t.Expires())
	}
	return keys, err
}

// Close ends calls of Current that wait for the source. It may be called twice.
func (t *TLSSource) Close() { t.closeOnce.Do(func() { close(t.closed) }) }

// ask returns the keys of the source.
func (t *TLSSource) ask() (*Keys, error) {
	if t.isOverdue() {
		return nil, errKeysOverdue
	}
	call := &keyCall{done: make(chan struct{})}
	go call.run(t.source)
	timeout := time.NewTimer(KeysTimeout)
	defer timeout.Stop()
	select {
	case <-call.done:
		return call.keys, call.err
	case <-timeout.C:
		t.mu.Lock()
		defer t.mu.Unlock()
		t.overdue = call
		return nil, errKeysOverdue
	case <-t.closed:
		return nil, errSourceClosed
	}
}

// isOverdue reports whether a call of the source that has taken too long has not returned yet.
func (t *TLSSource) isOverdue() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.overdue == nil {
		return false
	}
	select {
	case <-t.overdue.done:
		t.overdue = nil
	default:
	}
	return t.overdue != nil
}

// run calls the source. A panic of the source is an error: it would end the process.
func (c *keyCall) run(source func() (*Keys, error)) {
	defer close(c.done)
	defer func() {
		if value := recover(); value != nil {
			c.keys, c.err = nil, fmt.Errorf("the source of the TLS keys panicked: %v", value)
		}
	}()
	c.keys, c.err = source()
}

// Expires returns when the certificate in use expires. It does not ask the source.
func (t *TLSSource) Expires() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.expires
}

// refresh returns the keys to use: the source's, or the last valid ones if the source's are not
// valid. replaced means that they replace others. rejected is why the source's keys are not used,
// unless that was returned before.
func (t *TLSSource) refresh(value *Keys, sourceErr error) (keys *Keys, replaced bool, rejected, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	expires := t.expires
	if sourceErr == nil && (value == nil || value != t.keys) {
		expires, sourceErr = t.verify(value)
	}
	switch {
	case sourceErr == nil:
		replaced = t.keys != nil && !t.keys.equal(value)
		t.keys, t.expires, t.rejectedReason = value, expires, ""
		return value, replaced, nil, nil
	case t.keys == nil:
		return nil, false, nil, sourceErr
	case sourceErr == errSourceClosed: // connections are about to be closed: that is no failure to log
		return t.keys, false, nil, nil
	}
	if reason := sourceErr.Error(); reason != t.rejectedReason {
		t.rejectedReason, rejected = reason, sourceErr
	}
	return t.keys, false, rejected, nil
}

// equal reports whether two values hold the same certificate and authorities. A source may return
// another value each time.
func (k *Keys) equal(to *Keys) bool {
	return k == to || bytes.Equal(k.Certificate.Certificate[0], to.Certificate.Certificate[0]) && k.Roots.Equal(to.Roots)
}

// verify returns when the certificate of keys expires, or an error for keys that peers would
// reject.
func (t *TLSSource) verify(keys *Keys) (expires time.Time, err error) {
	if keys == nil || keys.Certificate == nil || len(keys.Certificate.Certificate) == 0 || keys.Roots == nil {
		return time.Time{}, errors.New("no certificate or no authorities")
	}
	var chain []*x509.Certificate
	for _, encoded := range keys.Certificate.Certificate {
		certificate, err := x509.ParseCertificate(encoded)
		if err != nil {
			return time.Time{}, fmt.Errorf("parse certificate: %w", err)
		}
		chain = append(chain, certificate)
	}
	if !isKeyOf(chain[0], keys.Certificate.PrivateKey) {
		return time.Time{}, errors.New("the private key is missing, or is not that of the certificate")
	}
	owner, err := t.verifyChain(chain, keys.Roots, x509.ExtKeyUsageClientAuth)
	if err == nil && owner.Kind == KindNode {
		_, err = t.verifyChain(chain, keys.Roots, x509.ExtKeyUsageServerAuth)
	}
	if err != nil {
		return time.Time{}, err
	}
	return chain[0].NotAfter, t.checkOwner(owner)
}

// isKeyOf reports whether a private key is that of a certificate.
func isKeyOf(certificate *x509.Certificate, private crypto.PrivateKey) bool {
	signer, ok := private.(crypto.Signer)
	public, comparable := certificate.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	return ok && comparable && public.Equal(signer.Public())
}

// verifyChain returns the owner of the first certificate of a chain, if the chain ends at an
// authority and the certificate is for this cluster.
func (t *TLSSource) verifyChain(chain []*x509.Certificate, roots *x509.CertPool, usage x509.ExtKeyUsage) (Principal, error) {
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
	return principalOf(chain[0], t.cluster)
}

// A Purpose is what a connection is for.
type Purpose byte

// The purposes: messages of the Raft library, and calls over gRPC.
const (
	Raft  Purpose = 'r'
	Calls Purpose = 'c'
)

// alpnNames are the ALPN names of the purposes.
var alpnNames = map[Purpose]string{Raft: "tenuto-raft/1", Calls: "tenuto-calls/1"}

// ALPN returns the name of the purpose in a TLS handshake.
func (p Purpose) ALPN() string { return alpnNames[p] }

func purposeOf(protocol string) (Purpose, error) {
	for p, name := range alpnNames {
		if name == protocol {
			return p, nil
		}
	}
	return 0, fmt.Errorf("unknown protocol %.100q", protocol)
}

// A handshakeResult describes the other side of a connection after the handshake.
type handshakeResult struct {
	purpose Purpose
	peer    Principal
	expires time.Time // of the peer's certificate
}

// serverConfig returns the configuration for accepted connections. That configuration rejects only
// invalid certificates. Authorization comes after the handshake, because the TLS library reports
// every rejection within it as a bad certificate.
func (t *TLSSource) serverConfig() *tls.Config {
	config := &tls.Config{
		MinVersion: tls.VersionTLS13,
		ClientAuth: tls.RequireAndVerifyClientCert,
		NextProtos: []string{alpnNames[Raft], alpnNames[Calls]},
		// Each connection must prove again that its certificate is valid.
		SessionTicketsDisabled: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := t.handshakeOf(state)
			return err
		},
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			keys, err := t.Current()
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
func (t *TLSSource) handshakeOf(state tls.ConnectionState) (*handshakeResult, error) {
	required, err := purposeOf(state.NegotiatedProtocol)
	if err != nil {
		return nil, err
	}
	peer, err := principalOf(state.PeerCertificates[0], t.cluster)
	if err != nil {
		return nil, err
	}
	return &handshakeResult{required, peer, state.PeerCertificates[0].NotAfter}, nil
}

// clientConfig returns the configuration for a connection to a node. It accepts only nodes, and
// only the node with that ID unless nodeID is "".
func (t *TLSSource) clientConfig(required Purpose, nodeID string) (*tls.Config, error) {
	keys, err := t.Current()
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
			peer, err := t.verifyChain(state.PeerCertificates, keys.Roots, x509.ExtKeyUsageServerAuth)
			switch {
			case err != nil:
				return err
			case peer.Kind != KindNode:
				return fmt.Errorf("%s answered instead of a node", peer)
			case nodeID != "" && peer.Name != nodeID:
				return fmt.Errorf("%s answered instead of node %s", peer, nodeID)
			}
			return nil
		},
	}, nil
}
