package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

// flipBit flips one bit in a file of a stopped follower and starts it again. It
// may refuse to start, or step aside, or not have needed that bit; what it must
// not do, show something else than the others, is judged from what it tells. In
// the end the bit is put right.
func flipBit(ctx context.Context, s *scene) error {
	id := s.follower()
	if err := s.kill(id); err != nil {
		return err
	}
	name, offset, err := s.randomByte(s.fleet.dataDir(id))
	if err != nil {
		return err
	}
	b := &bit{name: name, offset: offset, mask: byte(1) << s.random.IntN(8)}
	if err := b.flip(); err != nil {
		return err
	}
	node := s.fleet.node(id)
	node.damage(true)
	s.later(func(context.Context) error {
		err := node.kill()
		node.damage(false)
		return errors.Join(err, b.restore())
	})
	_ = node.start(ctx) // it may refuse to, which is as it should be
	return nil
}

// randomByte chooses a byte of the files below a directory.
func (s *scene) randomByte(dir string) (name string, offset int64, err error) {
	var names []string
	var sizes []int64
	total := int64(0)
	err = filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Size() > 0 {
			names, sizes = append(names, name), append(sizes, info.Size())
			total += info.Size()
		}
		return err
	})
	if err != nil {
		return "", 0, err
	}
	if total == 0 {
		return "", 0, fmt.Errorf("nothing in %s", dir)
	}
	at := s.random.Int64N(total)
	for i, size := range sizes {
		if at < size {
			return names[i], at, nil
		}
		at -= size
	}
	return "", 0, errors.New("sizes do not add up")
}

// A bit is one of a file, and what is around it.
type bit struct {
	name   string
	offset int64
	mask   byte

	// Once it is flipped: the file, which may have other names as well, or get them, and
	// lose the one that it had, as the tables of a snapshot do; and what is around.
	file   *os.File
	around []byte
}

// surroundings is how many bytes around a flipped bit tell whether it is still that.
const surroundings = 64

// flip inverts the bit. restore must be called.
func (b *bit) flip() (err error) {
	if b.file, err = os.OpenFile(b.name, os.O_RDWR, 0); err != nil {
		return err
	}
	if err := errors.Join(b.invert(), b.file.Sync()); err != nil {
		return errors.Join(err, b.file.Close())
	}
	if b.around, err = b.read(); err != nil {
		return errors.Join(err, b.invert(), b.file.Close())
	}
	return nil
}

// restore inverts the bit again, if it is still there. The node may have written over
// that place: then this would be damage that nobody puts right.
func (b *bit) restore() error {
	around, err := b.read()
	if err == nil && bytes.Equal(around, b.around) {
		err = errors.Join(b.invert(), b.file.Sync())
	}
	return errors.Join(err, b.file.Close())
}

// read returns the bytes around the bit, as many as there are.
func (b *bit) read() ([]byte, error) {
	around := make([]byte, surroundings)
	n, err := b.file.ReadAt(around, max(b.offset-surroundings/2, 0))
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return around[:n], err
}

func (b *bit) invert() error {
	one := make([]byte, 1)
	if _, err := b.file.ReadAt(one, b.offset); err != nil {
		return err
	}
	one[0] ^= b.mask
	_, err := b.file.WriteAt(one, b.offset)
	return err
}

// tamper has every sync of a node's process meet something, by strace.
func (s *scene) tamper(id, what string) error {
	s.hits(id)
	strace, err := exec.LookPath("strace")
	if err != nil {
		return &skipError{"there is no strace"}
	}
	command := exec.Command(strace, "-f", "-qq", "-o", "/dev/null", "-p", fmt.Sprint(s.fleet.node(id).pid()),
		"-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:"+what)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	s.later(func(context.Context) error {
		_ = command.Process.Signal(syscall.SIGINT) // it lets go of the process
		<-ended
		return nil
	})
	select {
	case err := <-ended:
		ended <- err
		return &skipError{fmt.Sprintf("strace may not attach: %v", err)}
	case <-time.After(short):
		return nil
	}
}

// failSync has every sync of the leader fail; it steps aside, and is started
// again in the end.
func failSync(_ context.Context, s *scene) error {
	node := s.fleet.node(s.leader)
	s.later(s.fleet.start)
	s.later(func(context.Context) error { return node.kill() })
	return s.tamper(s.leader, "error=EIO")
}

// disks are file systems of their own for each node, in images of the run's
// directory. They need root.
type disks struct {
	dir  string
	size int // how many
}

const imageBytes = 1 << 30 // sparse

func newDisks(dir string, size int) (*disks, error) {
	if os.Geteuid() != 0 {
		return nil, &skipError{"only root can mount a disk for each node"}
	}
	d := &disks{dir: dir, size: size}
	for i := range d.size {
		if err := d.make(fmt.Sprintf("n%d", i+1)); err != nil {
			return nil, errors.Join(&skipError{"a disk for each node: " + err.Error()}, d.unmount())
		}
	}
	return d, nil
}

func (d *disks) mount(id string) string { return filepath.Join(d.dir, id+".disk") }

func (d *disks) make(id string) error {
	image, mount := filepath.Join(d.dir, id+".image"), d.mount(id)
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(image, imageBytes); err != nil {
		return err
	}
	if err := os.Mkdir(mount, 0o700); err != nil {
		return err
	}
	if err := run("mkfs.ext4", "-q", "-m", "0", image); err != nil {
		return err
	}
	return d.attach(id)
}

// attach mounts a node's disk. Nothing is written back by itself for a while, so that
// a power cut finds something to lose.
func (d *disks) attach(id string) error {
	return run("mount", "-o", "loop,commit=300", filepath.Join(d.dir, id+".image"), d.mount(id))
}

// unmount unmounts the disks; what is on them stays in the images.
func (d *disks) unmount() error {
	var errs []error
	for i := range d.size {
		mount := d.mount(fmt.Sprintf("n%d", i+1))
		if isMounted(mount) {
			errs = append(errs, run("umount", mount))
		}
	}
	return errors.Join(errs...)
}

func isMounted(dir string) bool {
	mounts, err := os.ReadFile("/proc/mounts")
	return err == nil && strings.Contains(string(mounts), " "+dir+" ")
}

func run(name string, arguments ...string) error {
	if out, err := exec.Command(name, arguments...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// fullDisk fills the leader's disk to the last byte.
func fullDisk(_ context.Context, s *scene) error {
	if s.fleet.disks == nil {
		return &skipError{"the nodes have no disks of their own"}
	}
	s.hits(s.leader)
	node, ballast := s.fleet.node(s.leader), filepath.Join(s.fleet.disks.mount(s.leader), "ballast")
	// A node that has met an error of its disk takes no part until it is started
	// again.
	s.later(s.fleet.start)
	s.later(func(ctx context.Context) error {
		if err := os.Remove(ballast); err != nil {
			return err
		}
		var state host.Node
		if err := s.fleet.post(ctx, node, host.NodePath, struct{}{}, &state); err != nil {
			return err
		}
		if state.Err != "" {
			return node.kill()
		}
		return nil
	})
	file, err := os.Create(ballast)
	if err != nil {
		return err
	}
	defer file.Close()
	for size := 16 << 20; size >= 512; size /= 2 {
		for block := make([]byte, size); err == nil; {
			_, err = file.Write(block)
		}
		if !errors.Is(err, syscall.ENOSPC) {
			return err
		}
		err = nil
	}
	return nil
}

// frozenDisk has every write of the leader hang.
func frozenDisk(_ context.Context, s *scene) error {
	if s.fleet.disks == nil {
		return &skipError{"the nodes have no disks of their own"}
	}
	if _, err := exec.LookPath("fsfreeze"); err != nil {
		return &skipError{"there is no fsfreeze"}
	}
	s.hits(s.leader)
	mount := s.fleet.disks.mount(s.leader)
	s.later(func(context.Context) error { return run("fsfreeze", "-u", mount) })
	return run("fsfreeze", "-f", mount)
}
