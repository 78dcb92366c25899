package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/backup"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
)

// A damaged backup in a directory is named, not passed over for an older one.
func TestBackupFiles_Damaged(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"newest.backup", "README"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("text"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var b backupFiles
	if err := b.read([]string{dir}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	_, _, openErr := b.open(streams{})
	namedErr := new(backupFiles).read([]string{filepath.Join(dir, "newest.backup")})
	for what, err := range map[string]error{"named": namedErr, "open": openErr, "show": b.show(streams{out: &out}, output.Table)} {
		if err == nil || !strings.Contains(err.Error(), "newest.backup") || strings.Contains(err.Error(), "README") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if !strings.HasPrefix(out.String(), "TIME ") {
		t.Errorf("list on the standard output: %q", out.String())
	}
}

// endingAt describes a backup whose partitions end at these entries.
func endingAt(indexes ...uint64) *backup.Info {
	info := new(backup.Info)
	for _, index := range indexes {
		info.Partitions = append(info.Partitions, backup.Partition{Index: index})
	}
	return info
}

// The backups that have an entry or a time are found among those that continue others, and one that
// is missing is named.
func TestBackupFiles_Chain(t *testing.T) {
	begin := time.Unix(1_700_000_000, 0)
	b := backupFiles{infos: map[string]*backup.Info{}}
	for i, e := range []backup.Entry{
		{ID: "1"}, {ID: "2", Base: "1", Points: true}, {ID: "3"}, {ID: "4", Base: "2", Points: true}, {ID: "5", Base: "4"}, {ID: "6"},
		{ID: "8", Base: "7"}, {ID: "9", Base: "8"},
	} {
		e.Name, e.Time = e.ID+".backup", begin.Add(time.Duration(i)*time.Hour)
		b.entries, b.infos[e.ID] = append(b.entries, e), endingAt(uint64(10*(i+1)))
	}
	for _, c := range []struct {
		index uint64
		at    time.Duration
		want  string
	}{
		{index: 10, want: "1"}, {index: 15, want: "1 2"}, {index: 25, want: "1 2 4"}, {index: 30, want: "1 2 4"}, {index: 40, want: "1 2 4"},
		{index: 50, want: "1 2 4 5"}, {index: 60, want: "6"}, {at: 150 * time.Minute, want: "1 2 4"}, {at: 5 * time.Hour, want: "6"},
	} {
		b.index, b.at = c.index, begin.Add(c.at)
		chain, err := b.chain()
		var ids []string
		for _, e := range chain {
			ids = append(ids, e.ID)
		}
		if got := strings.Join(ids, " "); got != c.want || err != nil {
			t.Errorf("entry %d, after %v: %q, %v; want %q", c.index, c.at, got, err, c.want)
		}
	}
	b.index, b.at = 0, time.Time{}
	if _, _, err := b.open(streams{}); err == nil || !strings.Contains(err.Error(), "8.backup continues the backup 7") {
		t.Errorf("the newest is incomplete: %v", err)
	}
}

// A list says which points there are since the backup before, and where each one ends.
func TestBackupFiles_ShowPoints(t *testing.T) {
	b := backupFiles{
		entries: []backup.Entry{{ID: "a"}, {ID: "b", Base: "a", Points: true}, {ID: "c", Points: true}},
		infos:   map[string]*backup.Info{"a": endingAt(7), "b": endingAt(8), "c": endingAt(9, 1)},
	}
	var out bytes.Buffer
	if err := b.show(streams{out: &out}, output.Table); err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(strings.TrimSpace(out.String()), "\n")[1:] {
		fields := strings.Fields(line)
		if got, want := fields[1]+" "+fields[4], []string{"7 end", "8 any", "9 cuts"}[i]; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	out.Reset()
	if err := b.show(streams{out: &out}, output.JSON); err != nil || !strings.Contains(out.String(), `"entry":8,`) {
		t.Errorf("%s, %v", &out, err)
	}
}

// A file that is written, or whose writer fails, is not found under its name, and nothing is
// replaced.
func TestWriteWhole(t *testing.T) {
	dir := t.TempDir()
	path, failure := filepath.Join(dir, "backup"), errors.New("connection lost")
	for _, want := range []error{failure, nil} {
		err := writeWhole(path, func(to io.Writer) error {
			_, err := io.WriteString(to, "content")
			if _, statErr := os.Lstat(path); !errors.Is(statErr, os.ErrNotExist) {
				t.Errorf("found while it is written: %v", statErr)
			}
			return errors.Join(err, want)
		})
		entries, readErr := os.ReadDir(dir)
		if !errors.Is(err, want) || readErr != nil || (len(entries) == 1) != (want == nil) {
			t.Errorf("%v, want %v; %v is left, %v", err, want, entries, readErr)
		}
	}
	if err := writeWhole(path, func(io.Writer) error { return nil }); err == nil {
		t.Error("a file was replaced")
	}
	if content, err := os.ReadFile(path); string(content) != "content" {
		t.Errorf("%q, %v", content, err)
	}
}

// A command that takes long prints a line every two seconds, one that ends sooner none.
func TestProgressLog_Pauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out, stderr bytes.Buffer
		began, log := time.Now(), newProgressLog(streams{out: &out, err: &stderr})
		for log.addBytes(0, 90, "copied"); time.Since(began) < 9*time.Second; {
			time.Sleep(100 * time.Millisecond)
			log.addBytes(int64(time.Since(began)/(100*time.Millisecond)), 90, "copied")
		}
		want := "tenuto: 20 of 90 bytes copied, 22 %\ntenuto: 40 of 90 bytes copied, 44 %\n" +
			"tenuto: 60 of 90 bytes copied, 66 %\ntenuto: 80 of 90 bytes copied, 88 %\n"
		if stderr.String() != want || out.Len() > 0 {
			t.Errorf("standard output %q, error %q; want %q", out.String(), stderr.String(), want)
		}
	})
}
