package journal

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tenuto-dev/tenuto/internal/frame"
	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
	"github.com/tenuto-dev/tenuto/journal/internal/raftlog"
	"github.com/tenuto-dev/tenuto/journal/internal/raftlog/raftlogtest"
	"github.com/tenuto-dev/tenuto/journal/internal/snapshot"
	"github.com/tenuto-dev/tenuto/journal/state/pebblestore"
	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// rewriteStateFormat gives the state the format 2. Its meta record has the key "m"; the format is
// field 1, and the value ends with the CRC-32C of the key and of what precedes the checksum.
func rewriteStateFormat(t *testing.T, dir string) {
	s, err := pebblestore.Open(pebblestore.Options{FS: vfs.Default, Dir: filepath.Join(dir, stateDir), Logger: testConfig(Config{}).Logger, CacheBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	key, value := []byte("m"), []byte{1 << 3, 2}
	sum := crc32.Checksum(append(key, value...), crc32.MakeTable(crc32.Castagnoli))
	value = binary.LittleEndian.AppendUint32(value, sum)
	written := s.Write("write", 0, func(b store.Batch) error { return b.Set(key, value) })
	if err := errors.Join(written, s.Sync(), s.Close()); err != nil {
		t.Fatal(err)
	}
}

// Files of a later version are well formed and are rejected as such. Nothing is quarantined,
// discarded or repaired, so that the later version finds them unchanged.
func TestOpen_LaterFormatRejectedUnchanged(t *testing.T) {
	rewriteManifests := func(t *testing.T, dir string) {
		snapshots, err := snapshot.Open(vfs.Default, dir, "n1", "", testConfig(Config{}).Logger)
		if err != nil {
			t.Fatal(err)
		}
		all, err := snapshots.Manifests()
		if err != nil || len(all) == 0 {
			t.Fatalf("%d snapshots, error %v", len(all), err)
		}
		for _, m := range all {
			m.Format = 2
			content, err := m.Encode()
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, snapshot.DirName, m.ID, snapshot.ManifestFile), content, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	rewriteVotes := func(change func(sector []byte)) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, raftlog.StableFileName)
			content, err := os.ReadFile(path)
			if err == nil {
				change(content[:diskfile.SectorSize])
				diskfile.SetSectorChecksum(content[:diskfile.SectorSize])
				err = os.WriteFile(path, content, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		rewrite    func(t *testing.T, dir string)
		want, have string
	}{
		"directory": {func(t *testing.T, dir string) {
			path := filepath.Join(dir, ownerFile)
			if err := os.WriteFile(path, []byte("tenuto journal 3\nnode n1\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, directoryFormat, "tenuto journal 3"},
		"snapshot": {rewriteManifests, "1", "2"},
		"vote":     {rewriteVotes(func(b []byte) { copy(b, "tenuto 2") }), "tenuto 1", "tenuto 2"},
		"log":      {rewriteVotes(func(b []byte) { b[len("tenuto 1")] = 2 }), "log 1", "log 2"},
		"state":    {rewriteStateFormat, "state 1", "state 2"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			j := openJournal(t, Config{Dir: dir})
			mustAppend(t, j, newStartAppend(awaitLeadership(t, j), "a"))
			if err := j.raft.Snapshot().Error(); err != nil {
				t.Fatal(err)
			}
			closeJournal(t, j)
			c.rewrite(t, dir)
			before := raftlogtest.ReadDirImage(t, dir)
			_, err := Open(t.Context(), testConfig(Config{Dir: dir}))
			var format *FormatError
			if !errors.As(err, &format) || format.Want != c.want || format.Have != c.have || !strings.HasPrefix(format.Path, dir) {
				t.Fatalf("opened: %v", err)
			}
			if text := err.Error(); !strings.Contains(text, c.want) || !strings.Contains(text, c.have) {
				t.Errorf("the text names one version: %s", text)
			}
			after := raftlogtest.ReadDirImage(t, dir)
			for name, content := range before {
				// Opening bolt writes to it, and the start is counted first.
				if !strings.HasPrefix(name, stateDir) && name != raftlog.FileName && name != directoryIDFile && string(after[name]) != string(content) {
					t.Errorf("%s has changed", name)
				}
			}
		})
	}
}

// Nodes of adjacent builds read each other's JSON, so its keys are those of earlier builds,
// whatever the fields are called.
func TestJSON_KeepsKeysOfEarlierBuilds(t *testing.T) {
	for name, value := range map[string]any{
		`{"node":"n","identity":"","starts":0,"session":"","refusal":"r","other":true,"recorded":"i","copied":true}`: handshakeReply{
			Node: "n", Rejection: "r", OtherDirectory: true, RecordedIdentity: "i", Copied: true,
		},
		`{"refusal":"r"}`: snapshot.Reply{Rejection: "r"},
	} {
		if encoded, err := json.Marshal(value); err != nil || string(encoded) != name {
			t.Errorf("%s, %v; want %s", encoded, err, name)
		}
	}
}

func TestCheckLineageEnded_LaterFormatRejected(t *testing.T) {
	for _, format := range []int{0, endedLineageFormat, endedLineageFormat + 1} {
		dir := t.TempDir()
		var content bytes.Buffer
		err := frame.WriteJSON(&content, "", &endedLineage{Format: format, Own: "a", Latest: "b", Node: "n2"})
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, endedLineageFile), content.Bytes(), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		err = checkLineageEnded(dir)
		var other *FormatError
		if known := format == endedLineageFormat; errors.As(err, &other) == known || errors.Is(err, ErrOtherLineage) != known {
			t.Errorf("format %d: %v", format, err)
		}
	}
}

// lockProbe is the output of a logger, which reports whether a lock is free while it is written to.
type lockProbe struct {
	mu   *sync.Mutex
	free bool
}

func (p *lockProbe) Write(text []byte) (int, error) {
	if p.free = p.mu.TryLock(); p.free {
		p.mu.Unlock()
	}
	return len(text), nil
}

// The end of a lineage is recorded once, and without a lock: calls in the meantime do not wait.
func TestLineageEnd_RecordsWithoutLock(t *testing.T) {
	l := &lineages{config: &Config{Dir: filepath.Join(t.TempDir(), "missing")}}
	probe := &lockProbe{mu: &l.mu}
	l.config.Logger = slog.New(slog.NewTextHandler(probe, nil))
	first, failed := &LineageError{Own: "a", Latest: "b"}, 0
	l.fail = func(err error) error {
		failed++
		if again := l.end(&LineageError{Own: "a", Latest: "c"}); again != error(first) || err != error(first) {
			t.Errorf("the node fails with %v, then %v", err, again)
		}
		return err
	}
	if err := l.end(first); err != error(first) || failed != 1 || !first.Ended || first.Path == "" {
		t.Errorf("%d failures, error %+v", failed, err)
	}
	if !probe.free {
		t.Error("the lock was held while the file was written")
	}
}
