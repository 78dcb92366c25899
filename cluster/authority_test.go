package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tenuto-dev/tenuto/internal/keytest"
	"github.com/tenuto-dev/tenuto/internal/logqueue"
)

// An authority signs certificates for tests.
type authority struct{ *keytest.Authority }

func newAuthority(t testing.TB) authority {
	t.Helper()
	return authority{keytest.NewAuthority(t)}
}

// keys returns a source with a certificate that trusts this authority.
func (a authority) keys(certificate *tls.Certificate) *replaceableKeys {
	return &replaceableKeys{keys: &Keys{Certificate: certificate, Roots: a.Roots()}}
}

// replaceableKeys is a source whose keys a test replaces.
type replaceableKeys struct {
	mu   sync.Mutex
	keys *Keys
}

func (r *replaceableKeys) Keys() (*Keys, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.keys, nil
}

func (r *replaceableKeys) replace(keys *Keys) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys = keys
}

// writeKeyFiles writes a certificate, its key and authorities to files.
func writeKeyFiles(t testing.TB, dir string, certificate *tls.Certificate, authorities ...authority) (paths [3]string) {
	t.Helper()
	var content [3][]byte
	content[0], content[1] = keytest.PEM(t, certificate)
	for _, a := range authorities {
		content[2] = append(content[2], a.PEM()...)
	}
	for i, name := range []string{"node.crt", "node.key", "roots.crt"} {
		paths[i] = filepath.Join(dir, name)
		if err := os.WriteFile(paths[i], content[i], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

// A logRecorder keeps what is logged. A node does not wait for a handler that gets no processor for
// a few milliseconds, so the recorder waits for what was logged before it is read.
type logRecorder struct {
	mu      sync.Mutex
	text    bytes.Buffer
	loggers []*slog.Logger
}

func (l *logRecorder) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

// flush waits until all that was logged is written.
func (l *logRecorder) flush() {
	l.mu.Lock()
	loggers := l.loggers[:len(l.loggers):len(l.loggers)]
	l.mu.Unlock()
	for _, logger := range loggers {
		logqueue.Flush(logger, testTimeout)
	}
}

// all returns everything that was logged.
func (l *logRecorder) all() []byte {
	l.flush()
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.text.Bytes())
}

// logger returns a logger whose records of LevelInfo and above are kept.
func (l *logRecorder) logger() *slog.Logger { return l.loggerAt(slog.LevelInfo) }

func (l *logRecorder) loggerAt(level slog.Level) *slog.Logger {
	// A node uses the queue of its logger if it has one.
	logger := logqueue.New(slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: level})))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loggers = append(l.loggers, logger)
	return logger
}

// countLines returns the number of lines that contain text.
func (l *logRecorder) countLines(text string) int {
	l.flush()
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, line := range strings.Split(l.text.String(), "\n") {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// startWithTLS starts three nodes with certificates of an authority, and returns them and their
// logs.
func startWithTLS(t *testing.T, a authority, change func(i int, config *Config)) ([]*Node, []*logRecorder) {
	t.Helper()
	peers := loopbackPeers(t, 3)
	var nodes []*Node
	var logs []*logRecorder
	for i := range peers {
		log := new(logRecorder)
		config := peerConfig(t, peers, i, definitions()...)
		config.TLS, config.Logger = a.keys(a.Node(peers[i].NodeID)), log.logger()
		if change != nil {
			change(i, &config)
		}
		nodes, logs = append(nodes, startNode(t, config)), append(logs, log)
	}
	return nodes, logs
}

// callThrough makes a call through a node.
func callThrough(ctx context.Context, t *testing.T, node *Node, id string) {
	t.Helper()
	if got, err := Call(ctx, node.Client(), doubled, id, 21); err != nil || got != 42 {
		t.Fatalf("a call through %s: %d, %v", node.ID(), got, err)
	}
}
