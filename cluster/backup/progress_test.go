package backup_test

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/backup"
)

// The progress of a backup rises to the total, which is what the stream has, and is never ahead of
// what was written.
func TestWrite_Progress(t *testing.T) {
	c := newCluster(t, 1, 2)
	client := c.Client(0)
	var calls sync.WaitGroup
	for i := range 40 { // files of several parts
		calls.Go(func() {
			if _, err := cluster.StartRun(t.Context(), client, waiter, fmt.Sprint("w", i), strings.Repeat(fmt.Sprint(i), 100_000)); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	var base *backup.Info
	for _, what := range []string{"full", "incremental"} {
		var to bytes.Buffer
		last, totals, steps := int64(0), make(map[int64]bool), 0
		info, err := backup.Write(t.Context(), client, &to, backup.Options{Base: base, Progress: func(written, total int64) {
			if written <= last || written > int64(to.Len()) {
				t.Errorf("%s: %d of %d bytes after %d, and the stream has %d", what, written, total, last, to.Len())
			}
			last, totals[total], steps = written, true, steps+1
		}})
		if err != nil {
			t.Fatal(err)
		}
		if stream, _ := info.Bytes(); last != stream || !totals[stream] || len(totals) != 1 || base == nil && steps < 4 {
			t.Errorf("%s: %d steps to %d of %v bytes; want %d", what, steps, last, totals, stream)
		}
		if (info.Base != "") != (base != nil) {
			t.Errorf("%s: the backup continues %q", what, info.Base)
		}
		base = info
		if _, err := cluster.StartRun(t.Context(), client, waiter, "since-"+info.ID, "order"); err != nil {
			t.Fatal(err)
		}
	}
}
