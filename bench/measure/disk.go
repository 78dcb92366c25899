package measure

import (
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// diskPart is how much is read or written at once.
const diskPart = 1 << 20

// DiskRates are rates of a file system in bytes per second, sequentially and with one call at a
// time.
type DiskRates struct {
	Write float64 // to a new file, with a sync at the end
	Read  float64 // of that file, after DropCached
	Copy  float64 // of that file to another one, after DropCached, with a sync at the end
}

// MeasureDisk measures the rates of a directory's file system with files of a size, which it
// removes.
func MeasureDisk(dir string, size int64) (rates DiskRates, err error) {
	temporary, err := os.MkdirTemp(dir, "disk-")
	if err != nil {
		return rates, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	path := filepath.Join(temporary, "a")
	rate := func(of func() error) (float64, error) {
		began := time.Now()
		err := of()
		return float64(size) / time.Since(began).Seconds(), err
	}
	if rates.Write, err = rate(func() error { return writeSynced(path, io.LimitReader(newNoise(), size)) }); err != nil {
		return rates, err
	}
	reread := func(to string) (float64, error) {
		if err := DropCached(temporary); err != nil {
			return 0, err
		}
		return rate(func() error { return readFile(path, to) })
	}
	if rates.Read, err = reread(""); err != nil {
		return rates, err
	}
	if rates.Copy, err = reread(filepath.Join(temporary, "b")); err != nil {
		return rates, err
	}
	return rates, nil
}

// readFile reads a file to its end, into another one unless its name is "".
func readFile(path, to string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	from := io.Reader(struct{ io.Reader }{file}) // without the shortcuts of the kernel
	if to != "" {
		return errors.Join(writeSynced(to, from), file.Close())
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, from, make([]byte, diskPart))
	return errors.Join(err, file.Close())
}

// writeSynced writes a new file and syncs it.
func writeSynced(path string, from io.Reader) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{file}, from, make([]byte, diskPart))
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// noise is an endless content that is cheap to make, and that compression of less than a part at a
// time cannot shorten.
type noise struct {
	part []byte
	at   int
}

func newNoise() *noise {
	n := &noise{part: make([]byte, diskPart)}
	_, _ = rand.NewChaCha8([32]byte{}).Read(n.part) // never fails
	return n
}

// Read implements io.Reader.
func (n *noise) Read(b []byte) (int, error) {
	read := copy(b, n.part[n.at:])
	n.at = (n.at + read) % len(n.part)
	return read, nil
}

// DropCached makes the system forget what it has cached of all files below a directory. What is not
// yet on disk is written before. Only Linux can do so; other systems return errors.ErrUnsupported.
func DropCached(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
			return nil
		}
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		file, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return errors.Join(file.Sync(), dropCached(file), file.Close())
	})
}

// BytesFromDisk returns how many bytes this process has made the system read from disks; false if
// unknown.
func BytesFromDisk() (uint64, bool) {
	for fields := range fieldsOf("/proc/self/io", ":") {
		if fields[0] == "read_bytes" && len(fields) > 1 {
			n, err := strconv.ParseUint(fields[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// LoadAverage returns the average number of processes that ran or waited in the last minute, "" if
// unknown.
func LoadAverage() string {
	average, _, _ := strings.Cut(firstLine("/proc/loadavg"), " ")
	return average
}
