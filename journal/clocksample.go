package journal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
)

// clockSample is a pair of the cluster time and this node's wall clock, in Unix nanoseconds, at one
// moment. The zero value is no sample.
type clockSample struct {
	epoch uint64 // of the leader whose time it is
	time  clustertime.Time
	wall  int64
}

// clockLagMax is how far the sampled cluster time may be behind the wall clock and still be used
// after a restart of all nodes. A larger lag means that the wall clocks showed a wrong date when
// the cluster was founded.
const clockLagMax = 48 * time.Hour

// readingAt returns the cluster time when the wall clock shows wall: the sample's time plus the
// progress of the wall clock since the sample. The wall clock may be wrong, but must not have been
// set since. Without a usable sample readingAt returns wall itself.
func (m clockSample) readingAt(wall int64) clockReading {
	if m == (clockSample{}) || m.wall-m.time.UnixNano() > int64(clockLagMax) {
		return clockReading{Time: clustertime.FromUnixNano(wall)}
	}
	return clockReading{Time: m.time.Add(time.Duration(max(0, wall-m.wall))), Epoch: m.epoch}
}

// The file of the sample is written in place, in one sector:
//
//	"tenuto 1", epoch, time, wall, CRC-32C of what is before
//
// with little-endian numbers of 8, 8, 8 and 4 bytes. A damaged file counts as missing: after an
// outage of all nodes, this node then uses its wall clock alone.
const (
	clockFile      = "clock"
	clockFileMagic = "tenuto 1"
	clockFileSize  = len(clockFileMagic) + 3*8 + crc32.Size
)

func (m clockSample) encode() []byte {
	b := append(make([]byte, 0, clockFileSize), clockFileMagic...)
	b = binary.LittleEndian.AppendUint64(b, m.epoch)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.time.UnixNano()))
	b = binary.LittleEndian.AppendUint64(b, uint64(m.wall))
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeClockSample(b []byte) clockSample {
	content := clockFileSize - crc32.Size
	if len(b) != clockFileSize || string(b[:len(clockFileMagic)]) != clockFileMagic ||
		binary.LittleEndian.Uint32(b[content:]) != crc32.Checksum(b[:content], castagnoli) {
		return clockSample{}
	}
	b = b[len(clockFileMagic):]
	return clockSample{
		epoch: binary.LittleEndian.Uint64(b),
		time:  clustertime.FromUnixNano(int64(binary.LittleEndian.Uint64(b[8:]))),
		wall:  int64(binary.LittleEndian.Uint64(b[16:])),
	}
}

// readClockSample returns the sample in a directory, or the zero value.
func readClockSample(dir string) clockSample {
	if dir == "" {
		return clockSample{}
	}
	b, err := os.ReadFile(filepath.Join(dir, clockFile))
	if err != nil {
		return clockSample{}
	}
	return decodeClockSample(b)
}

// write writes the sample in place.
func (m clockSample) write(dir string, sync bool) error {
	f, err := os.OpenFile(filepath.Join(dir, clockFile), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(m.encode(), 0)
	if err == nil && sync {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil && sync {
		err = diskfile.SyncDir(vfs.Default, dir)
	}
	return err
}

// sampleClock takes and writes a sample every clockInterval, and when there is a new leader, until
// ctx ends. The file is synced once per leader: the later samples of that leader differ only by the
// lag that it has made up.
func (j *Journal) sampleClock(ctx context.Context) {
	tick := time.NewTicker(clockInterval)
	defer tick.Stop()
	synced, failing := uint64(0), false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-j.clock.leaderChanged:
		}
		saved, current := j.clock.takeSample()
		if !current || j.config.Dir == "" {
			continue
		}
		err := saved.write(j.config.Dir, saved.epoch != synced)
		if err == nil {
			synced = saved.epoch
		} else if !failing {
			j.config.Logger.Warn("cannot write clock sample", "error", fmt.Errorf("write clock sample: %w", err))
		}
		failing = err != nil
	}
}
