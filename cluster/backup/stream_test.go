package backup

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/internal/frame"
	"github.com/tenuto-dev/tenuto/replay"
)

const testID = "00112233445566778899aabbccddeeff"

// streamOf returns a stream that begins with a description and has no files.
func streamOf(info *Info) []byte {
	encoded, err := json.Marshal(info)
	if err != nil {
		panic(err)
	}
	var b bytes.Buffer
	w := frame.NewWriter(&b)
	w.Bytes([]byte(magic))
	w.Frame(encoded)
	w.Trailer()
	return b.Bytes()
}

func validInfo() *Info {
	return &Info{Format: formatFiles, ID: testID, Cluster: "c", Partitions: []Partition{{Files: []File{{Name: "x", In: testID}}}}}
}

// A description cannot make Restore write outside of its directory.
func TestReadInfo_InvalidDescriptions(t *testing.T) {
	if _, err := ReadInfo(bytes.NewReader(streamOf(validInfo()))); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Info){
		"another format":     func(i *Info) { i.Format = 9 },
		"no ID":              func(i *Info) { i.ID = "" },
		"path as ID":         func(i *Info) { i.ID = "../../x" },
		"path as base":       func(i *Info) { i.Base = "../x" },
		"no cluster":         func(i *Info) { i.Cluster = "" },
		"no partition":       func(i *Info) { i.Partitions = nil },
		"path as file":       func(i *Info) { i.Partitions[0].Files[0].Name = "../x" },
		"directory as file":  func(i *Info) { i.Partitions[0].Files[0].Name = ".." },
		"path of a backup":   func(i *Info) { i.Partitions[0].Files[0].In = "../x" },
		"negative file size": func(i *Info) { i.Partitions[0].Files[0].Size = -1 },
		"path as cluster":    func(i *Info) { i.Cluster = "../x" },
		"NUL as file":        func(i *Info) { i.Partitions[0].Files[0].Name = "x\x00" },
		"line as file":       func(i *Info) { i.Partitions[0].Files[0].Name = "x\ny" },
		"long name of file":  func(i *Info) { i.Partitions[0].Files[0].Name = strings.Repeat("x", 256) },
		"a file twice":       func(i *Info) { i.Partitions[0].Files = append(i.Partitions[0].Files, i.Partitions[0].Files[0]) },
		"too much": func(i *Info) {
			i.Partitions[0].Files[0].Size = 1 << 62
			i.Partitions[0].Files = append(i.Partitions[0].Files, File{Name: "y", Size: 1 << 62})
		},
		"log before the state": func(i *Info) {
			p := &i.Partitions[0]
			p.Index, p.StateIndex, p.Log = 7, 8, []File{{Name: "entries"}}
		},
		"a log twice":     func(i *Info) { i.Partitions[0].Log = []File{{Name: "entries"}, {Name: "entries"}} },
		"a log as a file": func(i *Info) { i.Partitions[0].Log = i.Partitions[0].Files },
		"path of a log":   func(i *Info) { i.Partitions[0].Log = []File{{Name: "../x"}} },
		"many partitions": func(i *Info) { i.Partitions = make([]Partition, 65) },
	} {
		info := validInfo()
		change(info)
		_, err := ReadInfo(bytes.NewReader(streamOf(info)))
		if _, ok := errors.AsType[*replay.InvalidError](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whatever is read, nothing is written outside of the target's directory and nothing is left there.
func FuzzRestore(f *testing.F) {
	f.Add(streamOf(validInfo()))
	f.Add([]byte(magic))
	f.Add([]byte(strings.Repeat("x", 100)))
	f.Fuzz(func(t *testing.T, content []byte) {
		parent := t.TempDir()
		if _, err := Restore(t.Context(), Target{Dir: filepath.Join(parent, "node"), NodeID: "n1"}, bytes.NewReader(content)); err == nil {
			t.Fatal("restored")
		}
		if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
			t.Errorf("%v is left, %v", left, err)
		}
	})
}
