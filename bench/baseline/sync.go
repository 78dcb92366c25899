package baseline

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/tenuto-dev/tenuto/bench/measure"
)

const (
	blockBytes = 4 << 10
	// The file is written before, so that no sync allocates space.
	blocks = 256
)

// The metrics of [Sync].
const (
	SyncP50 = "fdatasync p50"
	SyncP99 = "fdatasync p99"
)

// Sync measures n times how long a write of 4 KiB with one fdatasync takes.
func Sync(n int) *measure.Subject {
	return &measure.Subject{
		Name:        "baseline: fdatasync",
		Description: "a write of 4 KiB to an existing file and one fdatasync",
		Run: func(ctx context.Context, dir string, _ func(string)) (*measure.Result, error) {
			file, err := os.Create(filepath.Join(dir, "blocks"))
			if err != nil {
				return nil, err
			}
			defer file.Close()
			if _, err := file.Write(make([]byte, blocks*blockBytes)); err != nil {
				return nil, err
			}
			if err := file.Sync(); err != nil {
				return nil, err
			}
			return measureSyncs(ctx, file, n)
		},
	}
}

func measureSyncs(ctx context.Context, file *os.File, n int) (*measure.Result, error) {
	block := make([]byte, blockBytes)
	latency := &measure.Histogram{}
	for i := range n {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		block[0]++
		began := time.Now()
		if _, err := file.WriteAt(block, int64(i%blocks)*blockBytes); err != nil {
			return nil, err
		}
		if err := syncData(file); err != nil {
			return nil, err
		}
		latency.Record(time.Since(began))
	}
	result := &measure.Result{}
	result.AddLatency("fdatasync", latency, "", "")
	return result, nil
}
