package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/internal/frame"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// describe returns the description of a backup with one file.
func describe(id, base, content string) *Info {
	return &Info{Format: formatFiles, ID: id, Base: base, Cluster: "c", Partitions: []Partition{{Files: []File{
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
			described := describe(id(i+1), base, "content")
			described.Cut = uint64(i + 1)
			if err := sourceOf(described, "content").write(t.Context(), &stream, nil); err != nil {
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

// The error names the backup that is damaged.
func TestRestore_NamesTheDamagedOne(t *testing.T) {
	var full, next bytes.Buffer
	id := strings.Repeat("0", 31)
	for n, to := range []*bytes.Buffer{&full, &next} {
		described := describe(id+fmt.Sprint(n+1), "", "content")
		described.Cut = uint64(n + 1)
		if err := sourceOf(described, "content").write(t.Context(), to, nil); err != nil {
			t.Fatal(err)
		}
	}
	next.Truncate(next.Len() - 1)
	to := Target{Dir: filepath.Join(t.TempDir(), "restored"), NodeID: "n1"}
	_, err := Restore(t.Context(), to, &full, &next)
	if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "backup 2 of 2") {
		t.Error(err)
	}
}

// What continues a backup cannot have an earlier state.
func TestRestore_StateOfTheOneBefore(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*Info)
		ok     bool
	}{
		"later":             {func(*Info) {}, true},
		"a clock set back":  {func(i *Info) { i.Time = i.Time.Add(-time.Hour) }, true},
		"an earlier cut":    {func(i *Info) { i.Cut = 4 }, false},
		"the same cut":      {func(i *Info) { i.Cut = 5 }, false},
		"an earlier entry":  {func(i *Info) { i.Partitions[0].Index = 6 }, false},
		"another cluster":   {func(i *Info) { i.Cluster = "other" }, false},
		"another lineage":   {func(i *Info) { i.Lineage = testID }, false},
		"more partitions":   {func(i *Info) { i.Partitions = append(i.Partitions, Partition{}) }, false},
		"an older protocol": {func(i *Info) { i.Protocol = 3 }, false},
	} {
		before, after := describe(testID, "", ""), describe(strings.Repeat("a", 32), testID, "")
		before.Cut, before.Protocol, before.Partitions[0].Index, after.Cut, after.Protocol, after.Partitions[0].Index = 5, 4, 7, 6, 4, 7
		c.change(after)
		pool := &filePool{dir: t.TempDir()}
		if _, err := pool.add(bytes.NewReader(streamOf(before)), nil); err != nil {
			t.Fatal(err)
		}
		_, err := pool.add(bytes.NewReader(streamOf(after)), before)
		if _, invalid := errors.AsType[*replay.InvalidError](err); invalid == c.ok || (err == nil) != c.ok {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A build that does not speak the protocol of the cluster refuses its backups at once, wherever
// they are in the chain.
func TestRestore_NewerProtocol(t *testing.T) {
	full, newer := describe(testID, "", ""), describe(strings.Repeat("a", 32), testID, "")
	full.Cut, full.Protocol, newer.Cut, newer.Protocol, newer.Version = 1, journal.NewestProtocol, 2, journal.NewestProtocol+1, "v9.1.0"
	first := *newer
	first.Base = ""
	for name, backups := range map[string][]*Info{"the first": {&first}, "a later one": {full, newer}} {
		to := Target{Dir: filepath.Join(t.TempDir(), "node"), NodeID: "n1"}
		var readers []io.Reader
		for _, b := range backups {
			readers = append(readers, bytes.NewReader(streamOf(b)))
		}
		_, err := Restore(t.Context(), to, readers...)
		mismatch, ok := errors.AsType[*cluster.VersionError](err)
		if !ok || mismatch.Node != "n1" || mismatch.Newest != journal.NewestProtocol || mismatch.Required != journal.NewestProtocol+1 || !strings.Contains(err.Error(), "v9.1.0") {
			t.Errorf("%s: %v", name, err)
		}
		if left, err := filepath.Glob(to.Dir + "*"); err != nil || len(left) > 0 {
			t.Errorf("%s: %v is left, %v", name, left, err)
		}
	}
}

// Of the files of the state and the entries of the log, an incremental backup has what is smaller,
// for each partition; with points, it has the entries if there are those of all partitions.
func TestContinueFrom_FilesOrEntries(t *testing.T) {
	base := describe(testID, "", "x")
	base.Partitions = append(base.Partitions, base.Partitions[0])
	for _, p := range []struct {
		entries []*File
		points  bool
		want    [2]int64 // bytes of entries
	}{
		{[]*File{nil, nil}, false, [2]int64{}},
		{[]*File{{Name: "entries", Size: 5}, {Name: "entries", Size: 50}}, false, [2]int64{5, 0}},
		{[]*File{{Name: "entries", Size: 5}, {Name: "entries", Size: 50}}, true, [2]int64{5, 50}},
		{[]*File{{Name: "entries", Size: 50}, nil}, true, [2]int64{}},
	} {
		next := describe("aa112233445566778899aabbccddeeff", "", "0123456789")
		next.Partitions = append(next.Partitions, next.Partitions[0])
		next.Partitions[1].Files = slices.Clone(next.Partitions[0].Files)
		if err := next.continueFrom(base, p.entries, p.points); err != nil {
			t.Fatal(err)
		}
		for i, want := range p.want {
			of := &next.Partitions[i]
			got := int64(0)
			for _, f := range of.Log {
				got += f.Size
			}
			if got != want || want > 0 && (len(of.Files) != 1 || of.Files[0].In != testID) || next.check() != nil {
				t.Errorf("%+v: partition %d: %+v, %v", p, i, of, next.check())
			}
		}
		if next.HasPoints() != (p.want[0] > 0 && p.want[1] > 0) || (next.Format == formatLog) != (p.want != [2]int64{}) {
			t.Errorf("%+v: points %t, format %d", p, next.HasPoints(), next.Format)
		}
		again := describe("ff112233445566778899aabbccddeeff", "", "z")
		again.Partitions = append(again.Partitions, again.Partitions[0])
		if err := again.continueFrom(next, []*File{{Name: "entries", Size: 1}, {Name: "entries", Size: 1}}, true); err != nil || again.check() != nil || !again.HasPoints() {
			t.Errorf("%+v: continued again: %v, %v", p, err, again.check())
		}
	}
}

// The points of several partitions are cuts: after the entry in which a partition records the cut,
// or a later one if it has not recorded that.
func TestEndsAt(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	logs := [][]logEntry{
		{{10, 1, at(0), 1}, {20, 1, at(2), 2}, {30, 1, at(4), 3}, {40, 1, at(6), 5}},
		{{7, 1, at(0), 1}, {8, 1, at(3), 3}, {9, 1, at(7), 5}},
	}
	for _, test := range []struct {
		until Point
		want  []uint64
	}{
		{Point{Time: at(1)}, []uint64{10, 7}},
		{Point{Time: at(2)}, []uint64{10, 7}}, // the second partition is at cut 2 after its third second
		{Point{Time: at(3)}, []uint64{20, 8}},
		{Point{Time: at(5)}, []uint64{30, 8}},
		{Point{Time: at(6)}, []uint64{30, 8}},
		{Point{Time: at(7)}, []uint64{40, 9}},
		{Point{Index: 15}, []uint64{10, 7}},
		{Point{Index: 20}, []uint64{20, 8}},
		{Point{Index: 39}, []uint64{30, 8}},
		{Point{Index: 40}, []uint64{40, 9}},
	} {
		var got []uint64
		for _, e := range endsAt(logs, test.until) {
			got = append(got, e.index)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%+v: %d, want %d", test.until, got, test.want)
		}
	}
}

// A time between two backups selects the second one too if it has points.
func TestChain_Points(t *testing.T) {
	begin := time.Unix(1_700_000_000, 0)
	entries := []Entry{
		{Name: "full", ID: "1", Cut: 1, Time: begin, origin: "o"},
		{Name: "points", ID: "2", Base: "1", Cut: 2, Time: begin.Add(time.Hour), Points: true, origin: "o"},
		{Name: "files", ID: "3", Base: "2", Cut: 3, Time: begin.Add(2 * time.Hour), origin: "o"},
	}
	for minutes, want := range map[int]int{0: 2, 30: 2, 60: 2, 90: 2, 120: 3, 150: 3} {
		chain, err := Chain(entries, begin.Add(time.Duration(minutes)*time.Minute))
		if err != nil || len(chain) != want {
			t.Errorf("after %d minutes: %v, %v", minutes, chain, err)
		}
	}
}

// Entries reach a time after a backup that they do not continue, such as a full one made meanwhile.
func TestChain_PointsAcrossAnotherBackup(t *testing.T) {
	begin := time.Unix(1_700_000_000, 0)
	entries := []Entry{
		{Name: "full", ID: "1", Cut: 1, Time: begin, origin: "o"},
		{Name: "other full", ID: "2", Cut: 2, Time: begin.Add(time.Hour), origin: "o"},
		{Name: "points", ID: "3", Base: "1", Cut: 3, Time: begin.Add(2 * time.Hour), Points: true, origin: "o"},
		{Name: "lost base", ID: "5", Base: "4", Cut: 5, Time: begin.Add(4 * time.Hour), Points: true, origin: "o"},
		{Name: "other lineage", ID: "6", Cut: 2, Time: begin.Add(5 * time.Hour), origin: "p"},
	}
	for minutes, want := range map[int]string{
		0: "full points", 30: "full points", 60: "full points", 90: "full points", 120: "full points", 180: "full points", 300: "other lineage",
	} {
		chain, err := Chain(entries, begin.Add(time.Duration(minutes)*time.Minute))
		var names []string
		for _, e := range chain {
			names = append(names, e.Name)
		}
		if got := strings.Join(names, " "); err != nil || got != want {
			t.Errorf("after %d minutes: %q, %v; want %q", minutes, got, err, want)
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
		err := describe(testID, "", "x").continueFrom(base, make([]*File, 1), false)
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
