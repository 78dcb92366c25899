package host

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"testing"
	"time"
)

func TestLoadResult_RoundTrip(t *testing.T) {
	for _, calls := range []int{0, 1, callBatchSize, 2*callBatchSize + 1} {
		want := LoadResult{Processors: time.Second, RunQueue: LatencyQuantiles{1, 2, 3}}
		for i := range calls {
			want.Calls.add(LoadCall{At: time.Duration(i), Took: time.Second, Failure: Busy})
		}
		var written bytes.Buffer
		if err := want.Write(&written); err != nil {
			t.Fatal(err)
		}
		var got LoadResult
		if err := got.Read(bytes.NewReader(written.Bytes())); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%d calls were written, %d read, %v", calls, len(got.Calls), err)
		}
		if err := new(LoadResult).Read(bytes.NewReader(written.Bytes()[:written.Len()-1])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("truncated input of %d calls: %v", calls, err)
		}
	}
}
