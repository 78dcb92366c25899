package host

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"testing"
	"time"
)

func TestABurdenIsReadAsItWasWritten(t *testing.T) {
	for _, calls := range []int{0, 1, burdenLot, 2*burdenLot + 1} {
		want := Burden{Processors: time.Second, RunQueue: Delays{1, 2, 3}}
		for i := range calls {
			want.Calls.add(Pressed{At: time.Duration(i), Took: time.Second, Trouble: Busy})
		}
		var written bytes.Buffer
		if err := want.Write(&written); err != nil {
			t.Fatal(err)
		}
		var got Burden
		if err := got.Read(bytes.NewReader(written.Bytes())); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("of %d calls %d, %v", calls, len(got.Calls), err)
		}
		if err := new(Burden).Read(bytes.NewReader(written.Bytes()[:written.Len()-1])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("of %d calls, cut off: %v", calls, err)
		}
	}
}
