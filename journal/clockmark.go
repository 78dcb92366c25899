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
)

// A clockMark is the cluster time at a moment, and what the wall clock of this node
// showed then, in Unix nanoseconds. The zero value is none.
type clockMark struct {
	epoch uint64 // of the leader whose time it is
	time  clustertime.Time
	wall  int64
}

// lagMax is by how much the cluster time may be behind a wall clock and still be
// held against it over a restart of all nodes. A time that is further behind is that
// of machines which did not know the date when the cluster was founded.
const lagMax = 48 * time.Hour

// at returns what the cluster time has come to when the wall clock shows something:
// as much has passed as that has gone forward. Whether it was right does not matter,
// only whether it was set meanwhile. Without a mark the wall clock is believed.
func (m clockMark) at(wall int64) clockReading {
	if m == (clockMark{}) || m.wall-m.time.UnixNano() > int64(lagMax) {
		return clockReading{Time: clustertime.FromUnix(wall)}
	}
	return clockReading{Time: m.time.Add(time.Duration(max(0, wall-m.wall))), Epoch: m.epoch}
}

// The file of the mark is written in place, in one sector:
//
//	"tenuto 1", epoch, time, wall, CRC-32C of what is before   // numbers little-endian, of 8, 8, 8 and 4 bytes
//
// One that does not check is none: nothing depends on it but what a wall clock is
// worth after all nodes were down.
const (
	clockFile      = "clock"
	clockFileMagic = "tenuto 1"
	clockFileSize  = len(clockFileMagic) + 3*8 + crc32.Size
)

func (m clockMark) encode() []byte {
	b := append(make([]byte, 0, clockFileSize), clockFileMagic...)
	b = binary.LittleEndian.AppendUint64(b, m.epoch)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.time.UnixNano()))
	b = binary.LittleEndian.AppendUint64(b, uint64(m.wall))
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeClockMark(b []byte) clockMark {
	content := clockFileSize - crc32.Size
	if len(b) != clockFileSize || string(b[:len(clockFileMagic)]) != clockFileMagic ||
		binary.LittleEndian.Uint32(b[content:]) != crc32.Checksum(b[:content], castagnoli) {
		return clockMark{}
	}
	b = b[len(clockFileMagic):]
	return clockMark{
		epoch: binary.LittleEndian.Uint64(b),
		time:  clustertime.FromUnix(int64(binary.LittleEndian.Uint64(b[8:]))),
		wall:  int64(binary.LittleEndian.Uint64(b[16:])),
	}
}

// readClockMark returns the mark in a directory, none if there is none.
func readClockMark(dir string) clockMark {
	if dir == "" {
		return clockMark{}
	}
	b, err := os.ReadFile(filepath.Join(dir, clockFile))
	if err != nil {
		return clockMark{}
	}
	return decodeClockMark(b)
}

// write writes the mark in place.
func (m clockMark) write(dir string, sync bool) error {
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
		err = syncDir(vfs.Default, dir)
	}
	return err
}

// markTime has this node's clock looked at, and the mark written, every clockEvery and
// when there is a new leader, until ctx ends. The mark is synced once for each leader:
// later ones of the same say the same, but for what was caught up with.
func (j *Journal) markTime(ctx context.Context) {
	tick := time.NewTicker(clockEvery)
	defer tick.Stop()
	synced, failing := uint64(0), false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-j.clock.fresh:
		}
		mark, kept := j.clock.note()
		if !kept || j.config.Dir == "" {
			continue
		}
		err := mark.write(j.config.Dir, mark.epoch != synced)
		if err == nil {
			synced = mark.epoch
		} else if !failing {
			j.config.Logger.Warn("the time is not noted", "error", fmt.Errorf("write mark: %w", err))
		}
		failing = err != nil
	}
}
