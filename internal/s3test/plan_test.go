package s3test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/backup"
	"github.com/tenuto-dev/tenuto/cluster/backup/s3"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/replay"
)

const (
	accessKey, secretKey = "tester", "secret-of-the-tester"
	bucket               = "backups"
)

// A server is a process that serves a directory as S3. "make s3" builds it and names it in
// TENUTO_S3_SERVER.
type server struct {
	program, address, dir, metadata string
	sink                            s3.Sink

	mu      sync.Mutex
	process *exec.Cmd
}

func startServer(t *testing.T) *server {
	t.Helper()
	program := os.Getenv("TENUTO_S3_SERVER")
	if program == "" {
		t.Skip(`needs a server: run "make s3"`)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{program: program, dir: t.TempDir(), metadata: t.TempDir(), address: listener.Addr().String()}
	if err := errors.Join(listener.Close(), os.Mkdir(filepath.Join(s.dir, bucket), 0o700)); err != nil {
		t.Fatal(err)
	}
	client, err := minio.New(s.address, &minio.Options{Creds: credentials.NewStaticV4(accessKey, secretKey, ""), Region: "us-east-1", MaxRetries: 3})
	if err != nil {
		t.Fatal(err)
	}
	s.sink = s3.Sink{Client: client, Bucket: bucket, Prefix: "shop/", PartBytes: 5 << 20}
	t.Cleanup(s.kill)
	s.start(t)
	return s
}

func (s *server) start(t *testing.T) {
	t.Helper()
	var output bytes.Buffer
	process := exec.Command(s.program, "--port", s.address, "--access", accessKey, "--secret", secretKey, "posix", "--sidecar", s.metadata, s.dir)
	process.Stdout, process.Stderr = &output, &output
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.process = process
	s.mu.Unlock()
	eventually(t, "the server answers", func(ctx context.Context) bool {
		_, err := s.sink.List(ctx)
		return err == nil
	})
}

// kill ends the process as kill -9 does.
func (s *server) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		_ = s.process.Process.Kill()
		_ = s.process.Wait()
	}
	s.process = nil
}

// A killingSink kills its server, once it is armed, in the middle of an upload of several parts.
type killingSink struct {
	s3.Sink
	server *server
	armed  chan struct{} // has a value while the sink is armed
}

// Put implements backup.Sink.
func (s killingSink) Put(ctx context.Context, name string, content io.Reader) error {
	return s.Sink.Put(ctx, name, &killingReader{s, content, 0})
}

type killingReader struct {
	sink killingSink
	from io.Reader
	read int
}

// Read implements io.Reader.
func (r *killingReader) Read(b []byte) (int, error) {
	n, err := r.from.Read(b)
	if r.read += n; r.read > 6<<20 { // in the second part
		select {
		case <-r.sink.armed:
			r.sink.server.kill()
		default:
		}
	}
	return n, err
}

func eventually(t *testing.T, what string, holds func(ctx context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for !holds(ctx) {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("timeout: ", what)
		}
	}
}

var (
	goAhead = replay.Event[string]("go-ahead")
	waiter  = replay.Orchestration[string, string]("waiter")
)

// planTest is a cluster that makes backups in the bucket.
type planTest struct {
	*testing.T
	*clustertest.Cluster
	sink s3.Sink
}

func (p *planTest) begin(id string) {
	p.T.Helper()
	random := make([]byte, 1<<18)
	_, _ = rand.Read(random) // never fails
	if _, err := cluster.StartRun(p.Context(), p.Client(0), waiter, id, hex.EncodeToString(random)); err != nil {
		p.Fatal(err)
	}
}

func (p *planTest) list() []backup.Entry {
	p.T.Helper()
	entries, err := backup.List(p.Context(), p.sink)
	if err != nil {
		p.Fatal(err)
	}
	return entries
}

// awaitBackup waits for a backup that was begun after now.
func (p *planTest) awaitBackup() {
	p.T.Helper()
	now := time.Now()
	eventually(p.T, "a backup", func(context.Context) bool {
		entries := p.list()
		return len(entries) > 0 && entries[len(entries)-1].Time.After(now)
	})
}

// Scheduled backups go to a bucket: full ones, incremental ones after them, and old ones are
// removed. The server is killed in the middle of an upload and started again: nothing of that
// upload is found, and the next backup is made. A cluster is restored from the bucket, to its end
// and to a time.
func TestPlan_Bucket(t *testing.T) {
	const keep, increments = 8, 2
	s := startServer(t)
	sink := killingSink{s.sink, s, make(chan struct{}, 1)}
	p := &planTest{t, clustertest.New(t, 3, clustertest.Configure(func(_ int, c *cluster.Config) {
		c.Partitions, c.Backups = 2, backup.Plan{To: sink, Every: time.Second, Keep: keep, Increments: increments}
	}), clustertest.Definitions(waiter.Bind(func(ctx *replay.Context, _ string) (string, error) { return goAhead.Wait(ctx) }))), s.sink}
	for i := range 24 {
		p.begin(fmt.Sprint("early-", i)) // 12 MB that cannot be compressed
	}
	p.awaitBackup()
	first := p.list()[0]
	eventually(t, "old backups are removed", func(context.Context) bool { return p.list()[0].Time.After(first.Time) })
	p.checkChains(keep, increments)
	sink.armed <- struct{}{}
	eventually(t, "a backup fails", func(context.Context) bool { return p.failures() > 0 })
	between := time.Now()
	p.begin("late")
	s.start(t)
	p.awaitBackup()
	eventually(t, "health shows the backup", func(context.Context) bool { return p.failures() == 0 })
	for i := range 3 {
		p.Kill(i)
	}
	p.checkChains(keep, increments)
	p.checkRestored(time.Time{}, 25)
	p.checkRestored(between, 24)
}

func (p *planTest) failures() (n uint64) {
	for i := range 3 {
		n = max(n, p.Node(i).Health().BackupFailures)
	}
	return n
}

// checkChains checks that there are full and incremental backups, no more than must be kept, and
// that each of them can be restored.
func (p *planTest) checkChains(keep, increments int) {
	p.T.Helper()
	entries, incremental := p.list(), 0
	for _, e := range entries {
		chain, err := backup.Chain(entries, e.Time)
		if err != nil || chain[len(chain)-1].ID != e.ID || len(chain) > increments+1 {
			p.Errorf("the chain of %s is %v, %v", e.Name, chain, err)
		}
		if e.Base != "" {
			incremental++
		}
	}
	// One may have been made since the last removal.
	if incremental == 0 || incremental == len(entries) || len(entries) > keep+increments+1 {
		p.Errorf("%d backups, %d of them incremental", len(entries), incremental)
	}
}

func (p *planTest) checkRestored(at time.Time, instances uint64) {
	p.T.Helper()
	to := backup.Target{Dir: filepath.Join(p.TempDir(), "restored"), NodeID: "r1"}
	info, err := backup.RestoreAt(p.Context(), to, p.sink, at)
	if err != nil {
		p.Fatal(err)
	}
	node, err := cluster.Start(p.Context(), cluster.Config{NodeID: "r1", Dir: to.Dir, Partitions: len(info.Partitions)})
	if err != nil {
		p.Fatal(err)
	}
	if n, err := node.Client().Count(p.Context(), cluster.Filter{Name: waiter.Name()}); err != nil || uint64(n) != instances {
		p.Errorf("restored to %v: %d instances, %v", info.Time, n, err)
	}
	if err := node.Close(); err != nil {
		p.Error(err)
	}
	if v, err := backup.VerifyAt(p.Context(), p.TempDir(), p.sink, at); err != nil || v.Instances != instances {
		p.Errorf("verified %+v, %v", v, err)
	}
}
