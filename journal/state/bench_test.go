package state

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// BenchmarkApply_ShortRuns applies whole runs: an instance begins, runs one activity and ends, in
// three appends.
func BenchmarkApply_ShortRuns(b *testing.B) {
	m := newMachine(b)
	records := make([][]byte, 0, 3*b.N)
	for i := range b.N {
		for _, s := range []*journalpb.Segment{
			segmentOf(1, 1, started("a")),
			segmentOf(1, 2, activity()),
			segmentOf(1, 3, activityDone(2), completed()),
		} {
			records = append(records, must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_Append{
				Append: &journalpb.Append{Instance: fmt.Sprintf("i-%d", i), Epoch: 1, Segments: []*journalpb.Segment{s}},
			}})))
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	for _, r := range records {
		if _, err := m.Apply(r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkApply_OneInstance(b *testing.B) {
	m := newMachine(b)
	records := make([][]byte, b.N)
	for i := range records {
		id := uint64(i)*2 + 2
		var s *journalpb.Segment
		if i == 0 {
			s = segmentOf(1, 1, started("a"), activity(), activityDone(2))
			s.Events = s.Events[:1]
		} else {
			s = segmentOf(1, id-2, activity(), activityDone(id-2))
		}
		records[i] = must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_Append{
			Append: &journalpb.Append{Instance: "a", Epoch: 1, Segments: []*journalpb.Segment{s}},
		}}))
	}
	b.ReportAllocs()
	b.ResetTimer()
	for _, r := range records {
		if _, err := m.Apply(r); err != nil {
			b.Fatal(err)
		}
	}
}
