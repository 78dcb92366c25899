package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/internal/frame"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// describe returns the description of a backup with one file.
func describe(id, base, content string) *Info {
	return &Info{Format: format, ID: id, Base: base, Cluster: "c", Partitions: []Partition{{Files: []File{
		{Name: "file", Size: int64(len(content)), CRC32C: crc32.Checksum([]byte(content), castagnoli)},
	}}}}
}

// sourceOf returns a source whose node serves a content as each file.
func sourceOf(info *Info, content string) *source {
	return &source{info: info, internals: access.Internals{
		AskNode: func(_ context.Context, _, _ string, request *clusterpb.Request) (*clusterpb.Response, error) {
			read := request.GetReadBackup()
			data := content[min(read.Offset, int64(len(content))):]
			data = data[:min(len(data), int(read.Size))]
			return &clusterpb.Response{Result: &clusterpb.Response_ReadBackup{ReadBackup: &clusterpb.BackupBytes{Data: []byte(data)}}}, nil
		},
	}}
}

// contents are of one part, of several, and of none.
var contents = []string{"", "x", strings.Repeat("abc", 1<<20), strings.Repeat("y", 2*partBytes)}

// A file that the node has damaged since it computed the checksum, or that has become shorter, ends
// a backup.
func TestWrite_FileDiffersFromItsDescription(t *testing.T) {
	for _, content := range contents {
		info := describe(testID, "", content)
		var stream bytes.Buffer
		if err := sourceOf(info, content).write(t.Context(), &stream, nil); err != nil {
			t.Fatal(err)
		}
		got := &strings.Builder{}
		if _, err := readStream(&stream, func(*Info) error { return nil }, func(int, *File) (io.WriteCloser, error) { return nopCloser{got}, nil }); err != nil || got.String() != content {
			t.Errorf("%d bytes: read %d, %v", len(content), got.Len(), err)
		}
		if content == "" {
			continue
		}
		for what, damaged := range map[string]string{"flipped": content[:len(content)-1] + "z", "short": content[:len(content)-1]} {
			if err := sourceOf(info, damaged).write(t.Context(), io.Discard, nil); !errors.Is(err, ErrDamaged) {
				t.Errorf("%d bytes, %s: %v", len(content), what, err)
			}
		}
	}
}

type nopCloser struct{ io.Writer }

// Close implements io.Closer.
func (nopCloser) Close() error { return nil }

// A stream whose frames are intact, but whose file differs from the description, is damaged.
func TestReadStream_FileDiffersFromItsDescription(t *testing.T) {
	encoded, err := json.Marshal(describe(testID, "", "good"))
	if err != nil {
		t.Fatal(err)
	}
	for content, isDamaged := range map[string]bool{"good": false, "evil": true, "longer": true} {
		var stream bytes.Buffer
		w := frame.NewWriter(&stream)
		w.Bytes([]byte(magic))
		w.Frame(encoded)
		w.Frame([]byte(content))
		w.Trailer()
		_, err := readStream(&stream, func(*Info) error { return nil }, func(int, *File) (io.WriteCloser, error) { return nopCloser{io.Discard}, nil })
		if errors.Is(err, ErrDamaged) != isDamaged || (err != nil) != isDamaged {
			t.Errorf("%s: %v", content, err)
		}
	}
}

// Backups are restored only in the order in which they continue each other, even if no file is
// missing.
func TestRestore_OrderOfBackups(t *testing.T) {
	id := func(n int) string { return fmt.Sprintf("%032x", n) }
	for what, c := range map[string]struct {
		bases []string // of backup 1, 2, …
		ok    bool
	}{
		"in order":              {[]string{"", id(1), id(2)}, true},
		"one is omitted":        {[]string{"", id(7)}, false},
		"of the one before":     {[]string{"", id(1), id(1)}, false},
		"no full one":           {[]string{id(7)}, false},
		"a full one in between": {[]string{"", id(1), ""}, true},
	} {
		pool := &filePool{dir: t.TempDir()}
		var info *Info
		var err error
		for i, base := range c.bases {
			var stream bytes.Buffer
			if err := sourceOf(describe(id(i+1), base, "content"), "content").write(t.Context(), &stream, nil); err != nil {
				t.Fatal(err)
			}
			if info, err = pool.add(&stream, info); err != nil {
				break
			}
		}
		if _, invalid := errors.AsType[*replay.InvalidError](err); invalid == c.ok || (err == nil) != c.ok {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// An incremental backup continues only one of the same cluster, lineage and partitions.
func TestWrite_BaseOfAnother(t *testing.T) {
	for what, change := range map[string]func(*Info){
		"cluster":    func(i *Info) { i.Cluster = "other" },
		"lineage":    func(i *Info) { i.Lineage = "other" },
		"partitions": func(i *Info) { i.Partitions = append(i.Partitions, i.Partitions[0]) },
	} {
		base := describe(testID, "", "x")
		change(base)
		err := describe(testID, "", "x").continueFrom(base)
		if _, ok := errors.AsType[*replay.InvalidError](err); !ok {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// While a backup is written, nothing is found under its name.
func TestDirectory_HasNothingUntilItIsWhole(t *testing.T) {
	d := Directory(t.TempDir())
	looked := 0
	look := readerFunc(func([]byte) (int, error) {
		looked++
		_, openErr := d.Open(t.Context(), "a.backup")
		if sizes, err := d.List(t.Context()); err != nil || len(sizes) > 0 || openErr == nil {
			t.Errorf("found while it is written: %v, %v, %v", sizes, err, openErr)
		}
		return 0, io.EOF
	})
	large := strings.NewReader(strings.Repeat("x", 3*writeBytes))
	if err := d.Put(t.Context(), "a.backup", io.MultiReader(look, large, look)); err != nil || looked < 2 {
		t.Errorf("looked %d times, %v", looked, err)
	}
}

type readerFunc func([]byte) (int, error)

// Read implements io.Reader.
func (f readerFunc) Read(b []byte) (int, error) { return f(b) }
