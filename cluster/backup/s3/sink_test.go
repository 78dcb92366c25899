package s3_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/tenuto-dev/tenuto/cluster/backup/s3"
)

const (
	accessKey = "tester"
	secretKey = "secret-of-the-tester"
	bucket    = "backups"
)

// A server is a process that serves a directory as S3. "make s3" builds it and names it in
// TENUTO_S3_SERVER.
type server struct {
	program, address string
	dir, metadata    string // of objects, and of what the server knows of them
	process          *exec.Cmd
	sink             s3.Sink
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
	s.start(t)
	t.Cleanup(func() { s.kill() })
	return s
}

func (s *server) start(t *testing.T) {
	t.Helper()
	var output bytes.Buffer
	s.process = exec.Command(s.program, "--port", s.address, "--access", accessKey, "--secret", secretKey, "posix", "--sidecar", s.metadata, s.dir)
	s.process.Stdout, s.process.Stderr = &output, &output
	if err := s.process.Start(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		if _, err := s.sink.List(t.Context()); err == nil {
			return
		} else if time.Now().After(deadline) {
			s.kill()
			t.Fatal(err, output.String())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (s *server) kill() {
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
}

// incomplete returns how many uploads are incomplete.
func (s *server) incomplete(t *testing.T) (uploads int) {
	t.Helper()
	for upload := range s.sink.Client.ListIncompleteUploads(t.Context(), bucket, "", true) {
		if upload.Err != nil {
			t.Fatal(upload.Err)
		}
		uploads++
	}
	return uploads
}

// randomBytes returns bytes that no server can compress, and their sum.
func randomBytes(size int) ([]byte, [32]byte) {
	content := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(content) // never fails
	return content, sha256.Sum256(content)
}

func read(ctx context.Context, s s3.Sink, name string) ([]byte, error) {
	from, err := s.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(from)
	return content, errors.Join(err, from.Close())
}

// Backups of no byte, of one part and of several come back as they were stored. They are listed
// with their sizes, and can be removed.
func TestSink_RoundTrip(t *testing.T) {
	s := startServer(t)
	want := make(map[string]int64)
	for _, size := range []int{0, 1, 5 << 20, 17<<20 + 5} {
		name := fmt.Sprint("tenuto-", size, ".backup")
		content, sum := randomBytes(size)
		if err := s.sink.Put(t.Context(), name, bytes.NewReader(content)); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		got, err := read(t.Context(), s.sink, name)
		if err != nil || sha256.Sum256(got) != sum {
			t.Errorf("%d bytes: read %d, %v", size, len(got), err)
		}
		want[name] = int64(size)
	}
	other := s.sink
	other.Prefix = "other/"
	if err := other.Put(t.Context(), "x.backup", strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	if got, err := s.sink.List(t.Context()); err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for name := range want {
		for range 2 {
			if err := s.sink.Remove(t.Context(), name); err != nil {
				t.Errorf("remove %s: %v", name, err)
			}
		}
		if content, err := read(t.Context(), s.sink, name); err == nil {
			t.Errorf("%s has %d bytes after its removal", name, len(content))
		}
	}
	if got, err := s.sink.List(t.Context()); err != nil || len(got) > 0 {
		t.Errorf("after the removals: %v, %v", got, err)
	}
}

// A failingReader returns a content and then an error.
type failingReader struct {
	io.Reader
	err error
}

func (r *failingReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if errors.Is(err, io.EOF) {
		err = r.err
	}
	return n, err
}

// An upload whose content or context ends leaves nothing: no object and no parts.
func TestSink_FailedUploads(t *testing.T) {
	s := startServer(t)
	broken := errors.New("broken")
	for _, size := range []int{0, 1, 12 << 20} {
		content, _ := randomBytes(size)
		err := s.sink.Put(t.Context(), "a.backup", &failingReader{bytes.NewReader(content), broken})
		if !errors.Is(err, broken) {
			t.Errorf("%d bytes: %v", size, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		err = s.sink.Put(ctx, "b.backup", io.MultiReader(bytes.NewReader(content), readerFunc(func([]byte) (int, error) {
			cancel()
			return 0, io.EOF
		})))
		cancel()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%d bytes, context ended: %v", size, err)
		}
	}
	if got, err := s.sink.List(t.Context()); err != nil || len(got) > 0 || s.incomplete(t) > 0 {
		t.Errorf("left: %v and %d uploads, %v", got, s.incomplete(t), err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// The server is killed in the middle of an upload: Put fails, and after a restart nothing is found.
// The next upload succeeds.
func TestSink_ServerKilled(t *testing.T) {
	s := startServer(t)
	content, sum := randomBytes(12 << 20)
	err := s.sink.Put(t.Context(), "a.backup", io.MultiReader(bytes.NewReader(content), readerFunc(func([]byte) (int, error) {
		s.kill()
		return 0, io.EOF
	})))
	if err == nil {
		t.Error("an upload to a server that is gone succeeded")
	}
	s.start(t)
	if got, err := s.sink.List(t.Context()); err != nil || len(got) > 0 {
		t.Errorf("left: %v, %v", got, err)
	}
	if err := s.sink.Put(t.Context(), "a.backup", bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	if got, err := read(t.Context(), s.sink, "a.backup"); err != nil || sha256.Sum256(got) != sum {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
}

func TestSink_InvalidFields(t *testing.T) {
	for name, sink := range map[string]s3.Sink{
		"no client":   {Bucket: "b"},
		"no bucket":   {Client: new(minio.Client)},
		"small parts": {Client: new(minio.Client), Bucket: "b", PartBytes: 1},
	} {
		_, listErr := sink.List(t.Context())
		for _, err := range []error{sink.Put(t.Context(), "x", strings.NewReader("")), sink.Remove(t.Context(), "x"), listErr} {
			if err == nil || !strings.HasPrefix(err.Error(), "s3: Sink.") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
