package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
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
// keys can be replaced without a restart. The returned Keys must not be changed afterwards. If Keys
// fails, or takes longer than 10 s, the previous keys are used; at the start, that is an error.
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

// newTLSSource returns a TLS source with the keys of a key source, or an error if they are not
// valid now. checkOwner rejects keys of another owner.
func newTLSSource(source KeySource, cluster string, checkOwner func(Principal) error, logger *slog.Logger) (*transport.TLSSource, error) {
	keys := func() (*transport.Keys, error) {
		keys, err := source.Keys()
		return (*transport.Keys)(keys), err
	}
	return transport.NewTLSSource(keys, cluster, func(owner transport.Principal) error { return checkOwner(newPrincipal(owner)) }, logger)
}
