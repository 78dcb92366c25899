package clock

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
)

// Sample is a pair of the cluster time and this node's wall clock, in Unix nanoseconds, at one
// moment. The zero value is no sample.
type Sample struct {
	Epoch uint64 // of the leader whose time it is
	Time  clustertime.Time
	Wall  int64
}

// clockLagMax is how far the sampled cluster time may be behind the wall clock and still be used
// after a restart of all nodes. A larger lag means that the wall clocks showed a wrong date when
// the cluster was founded.
const clockLagMax = 48 * time.Hour

// ReadingAt returns the cluster time when the wall clock shows wall: the sample's time plus the
// progress of the wall clock since the sample. The wall clock may be wrong, but must not have been
// set since. Without a usable sample ReadingAt returns wall itself.
func (s Sample) ReadingAt(wall int64) Reading {
	if s == (Sample{}) || s.Wall-s.Time.UnixNano() > int64(clockLagMax) {
		return Reading{Time: clustertime.FromUnixNano(wall)}
	}
	return Reading{Time: s.Time.Add(time.Duration(max(0, wall-s.Wall))), Epoch: s.Epoch}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The file of the sample is written in place, in one sector:
//
//	"tenuto 1", epoch, time, wall, CRC-32C of the bytes before it
//
// with little-endian numbers of 8, 8, 8 and 4 bytes. A damaged file counts as missing: after an
// outage of all nodes, this node then uses its wall clock alone.
const (
	clockFile      = "clock"
	clockFileMagic = "tenuto 1"
	clockFileSize  = len(clockFileMagic) + 3*8 + crc32.Size
)

func (s Sample) encode() []byte {
	b := append(make([]byte, 0, clockFileSize), clockFileMagic...)
	b = binary.LittleEndian.AppendUint64(b, s.Epoch)
	b = binary.LittleEndian.AppendUint64(b, uint64(s.Time.UnixNano()))
	b = binary.LittleEndian.AppendUint64(b, uint64(s.Wall))
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeSample(b []byte) Sample {
	content := clockFileSize - crc32.Size
	if len(b) != clockFileSize || string(b[:len(clockFileMagic)]) != clockFileMagic ||
		binary.LittleEndian.Uint32(b[content:]) != crc32.Checksum(b[:content], castagnoli) {
		return Sample{}
	}
	b = b[len(clockFileMagic):]
	return Sample{
		Epoch: binary.LittleEndian.Uint64(b),
		Time:  clustertime.FromUnixNano(int64(binary.LittleEndian.Uint64(b[8:]))),
		Wall:  int64(binary.LittleEndian.Uint64(b[16:])),
	}
}

// ReadSample returns the sample in a directory, or the zero value.
func ReadSample(dir string) Sample {
	if dir == "" {
		return Sample{}
	}
	b, err := os.ReadFile(filepath.Join(dir, clockFile))
	if err != nil {
		return Sample{}
	}
	return decodeSample(b)
}

// write writes the sample in place.
func (s Sample) write(dir string, sync bool) error {
	f, err := os.OpenFile(filepath.Join(dir, clockFile), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(s.encode(), 0)
	if err == nil && sync {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil && sync {
		err = diskfile.SyncDir(vfs.Default, dir)
	}
	return err
}

// KeepSampled takes and writes a sample every Interval, and when there is a new leader, until
// ctx ends. The file is synced once per leader: the later samples of that leader differ only by the
// lag that it has made up. If dir is empty, nothing is written.
func (c *Clock) KeepSampled(ctx context.Context, dir string, logger *slog.Logger) {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	synced, failing := uint64(0), false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-c.leaderChanged:
		}
		saved, current := c.takeSample()
		if !current || dir == "" {
			continue
		}
		err := saved.write(dir, saved.Epoch != synced)
		if err == nil {
			synced = saved.Epoch
		} else if !failing {
			logger.Warn("cannot write clock sample; the node continues and tries again", "error", err)
		}
		failing = err != nil
	}
}
