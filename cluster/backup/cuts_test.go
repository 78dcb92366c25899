package backup

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/frame"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A logWriter writes a file of entries, as a node does.
type logWriter struct {
	content bytes.Buffer
	index   uint64
}

// add appends an entry, as recorded a number of seconds after 1970.
func (w *logWriter) add(t *testing.T, seconds int64, records ...*journalpb.Record) {
	t.Helper()
	packed := &journalpb.Entry{Format: 1}
	for _, r := range records {
		encoded, err := proto.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		packed.Records = append(packed.Records, &journalpb.ChecksummedRecord{Record: encoded, Crc32C: crc32.Checksum(encoded, castagnoli)})
	}
	data, err := proto.Marshal(packed)
	if err != nil {
		t.Fatal(err)
	}
	w.index++
	b := binary.AppendUvarint(binary.AppendUvarint(nil, w.index), 1)
	b = binary.AppendVarint(b, time.Unix(seconds, 0).UnixNano())
	frame.NewWriter(&w.content).Frame(append(b, data...))
}

// write writes the entries to the pool, as those of a partition in a backup.
func (w *logWriter) write(t *testing.T, pool *filePool, info *Info, partition int) {
	t.Helper()
	path := pool.path(info.ID, partition, "entries")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, w.content.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	of := &info.Partitions[partition]
	of.Index, of.Term, of.Log = w.index, 1, []File{{Name: "entries", Size: int64(w.content.Len())}}
}

func cutRecord(epoch, cut uint64) *journalpb.Record {
	return &journalpb.Record{Command: &journalpb.Record_MetadataChange{MetadataChange: &journalpb.MetadataChange{Epoch: epoch, Cut: cut}}}
}

func epochRecord() *journalpb.Record {
	return &journalpb.Record{Command: &journalpb.Record_Epoch{Epoch: &journalpb.Epoch{Node: "n1"}}}
}

// A cut that a partition has rejected, because another leadership had begun, is none: messages that
// the partition has sent between that record and the next one belong to the state at the cut.
func TestCuts_RejectedRecords(t *testing.T) {
	type point struct{ index, cut uint64 }
	for what, test := range map[string]struct {
		entries [][]*journalpb.Record
		want    []point
	}{
		"one leadership":               {[][]*journalpb.Record{{cutRecord(7, 2)}, {}, {cutRecord(7, 3)}}, []point{{1, 2}, {3, 3}}},
		"an earlier epoch":             {[][]*journalpb.Record{{epochRecord()}, {cutRecord(7, 2)}, {cutRecord(8, 2)}, {cutRecord(8, 3)}}, []point{{3, 2}, {4, 3}}},
		"an earlier epoch at first":    {[][]*journalpb.Record{{cutRecord(6, 2)}, {cutRecord(7, 2)}}, []point{{2, 2}}},
		"before the next epoch":        {[][]*journalpb.Record{{cutRecord(7, 2)}, {epochRecord()}, {cutRecord(8, 3)}}, []point{{1, 2}, {3, 3}}},
		"within an entry":              {[][]*journalpb.Record{{cutRecord(7, 2), epochRecord(), cutRecord(7, 3)}, {cutRecord(8, 3)}}, []point{{1, 2}, {2, 3}}},
		"accepted within an entry":     {[][]*journalpb.Record{{cutRecord(6, 2), epochRecord(), cutRecord(8, 3)}, {cutRecord(8, 4)}}, []point{{1, 3}, {2, 4}}},
		"two in one entry":             {[][]*journalpb.Record{{cutRecord(7, 2), cutRecord(7, 3)}, {cutRecord(7, 5)}}, []point{{1, 2}, {1, 3}, {2, 5}}},
		"recorded before":              {[][]*journalpb.Record{{cutRecord(7, 1)}, {cutRecord(7, 2)}, {cutRecord(7, 2)}}, []point{{2, 2}}},
		"several leaderships, no cuts": {[][]*journalpb.Record{{epochRecord()}, {epochRecord()}, {epochRecord()}, {cutRecord(9, 2)}, {cutRecord(10, 2)}}, []point{{5, 2}}},
	} {
		t.Run(what, func(t *testing.T) {
			pool := &filePool{dir: t.TempDir()}
			before := &Info{ID: testID, Cut: 1, Partitions: make([]Partition, 2)}
			info := &Info{ID: "aa112233445566778899aabbccddeeff", Partitions: make([]Partition, 2)}
			w := new(logWriter)
			for i, records := range test.entries {
				w.add(t, int64(i), records...)
			}
			w.write(t, pool, info, 1)
			_, cuts, err := pool.scan(1, info, before, Point{})
			if err != nil {
				t.Fatal(err)
			}
			var got []point
			for _, c := range cuts[1:] {
				got = append(got, point{c.index, c.cut})
			}
			if cuts[0].cut != 1 || !slices.Equal(got, test.want) {
				t.Errorf("%+v, want %v", cuts, test.want)
			}
		})
	}
}

// The clock of a leader may be behind that of the one before. A point has nothing that was recorded
// later, by the clock of the leader that has recorded it.
func TestShorten_ClockOfNextLeaderIsBehind(t *testing.T) {
	for _, partitions := range []int{1, 2} {
		pool := &filePool{dir: t.TempDir()}
		before := &Info{ID: testID, Cut: 1, Time: time.Unix(10, 0), Partitions: make([]Partition, partitions)}
		info := &Info{ID: "aa112233445566778899aabbccddeeff", Base: testID, Cut: 4, Time: time.Unix(60, 0), Partitions: make([]Partition, partitions)}
		for i := range partitions {
			w := new(logWriter)
			w.add(t, 5, cutRecord(7, 2)) // the clock of the node of the backup before was ahead
			w.add(t, 40)
			w.add(t, 20, epochRecord(), cutRecord(8, 3))
			w.add(t, 50, cutRecord(8, 4))
			w.write(t, pool, info, i)
		}
		for seconds, want := range map[int64]uint64{10: 1, 20: 1, 39: 1, 40: 3, 49: 3, 50: 4, 55: 4} {
			until := Point{Time: time.Unix(seconds, 0)}
			got, err := pool.shorten(info, before, until)
			if err != nil {
				t.Fatal(err)
			}
			// Entry 3 is not before entry 2.
			wantTime := map[uint64]int64{1: 10, 3: 40, 4: 50}[want]
			for i, p := range got.Partitions {
				if p.Index != want || got.Time.Unix() != wantTime {
					t.Errorf("until %d s: partition %d of %d ends at %d, want %d; the time is %v, want %d s", seconds, i, partitions, p.Index, want, got.Time, wantTime)
				}
			}
		}
	}
}
