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
	"sync"
	"syscall"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

// flipBit flips one bit in a file of a stopped follower and restarts it. The node may reject to
// start, fail, or not need that bit. The checks verify that its state does not differ from that of
// the other nodes. Healing restores the bit.
func flipBit(ctx context.Context, s *injection) error {
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
	node.setDamaged(true)
	s.onHeal(func(context.Context) error {
		err := node.kill()
		node.setDamaged(false)
		return errors.Join(err, b.restore())
	})
	_ = node.start(ctx) // an error is correct: the node may not start
	return nil
}

// randomByte chooses a random byte of the files in a directory.
func (inj *injection) randomByte(dir string) (name string, offset int64, err error) {
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
		return "", 0, fmt.Errorf("no data in %s", dir)
	}
	at := inj.random.Int64N(total)
	for i, size := range sizes {
		if at < size {
			return names[i], at, nil
		}
		at -= size
	}
	return "", 0, errors.New("file sizes changed during the walk")
}

// A bit is one bit of a file, with the bytes around it.
type bit struct {
	name   string
	offset int64
	mask   byte

	// Set by flip: the open file and the bytes around the bit. The file may gain and lose names, as
	// the tables of a snapshot do.
	file        *os.File
	surrounding []byte
}

// surroundingBytes is the number of bytes that identify the place of a flipped bit.
const surroundingBytes = 64

// flip inverts the bit. The caller must call restore.
func (b *bit) flip() (err error) {
	if b.file, err = os.OpenFile(b.name, os.O_RDWR, 0); err != nil {
		return err
	}
	if err := errors.Join(b.invert(), b.file.Sync()); err != nil {
		return errors.Join(err, b.file.Close())
	}
	if b.surrounding, err = b.read(); err != nil {
		return errors.Join(err, b.invert(), b.file.Close())
	}
	return nil
}

// restore inverts the bit again if the bytes around it are unchanged. If the node has overwritten
// them, inverting would cause damage that is never repaired.
func (b *bit) restore() error {
	surrounding, err := b.read()
	if err == nil && bytes.Equal(surrounding, b.surrounding) {
		err = errors.Join(b.invert(), b.file.Sync())
	}
	return errors.Join(err, b.file.Close())
}

// read returns the bytes around the bit, as many as there are.
func (b *bit) read() ([]byte, error) {
	surrounding := make([]byte, surroundingBytes)
	n, err := b.file.ReadAt(surrounding, max(b.offset-surroundingBytes/2, 0))
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return surrounding[:n], err
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

// injectSyncFault makes strace inject a fault into every sync of a node's process.
func (inj *injection) injectSyncFault(id, what string) error {
	inj.addNodes(id)
	strace, err := exec.LookPath("strace")
	if err != nil {
		return &skipError{"strace is not installed"}
	}
	command := exec.Command(strace, "-f", "-qq", "-o", "/dev/null", "-p", fmt.Sprint(inj.fleet.node(id).pid()),
		"-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:"+what)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	inj.onHeal(func(context.Context) error {
		_ = command.Process.Signal(syscall.SIGINT) // detaches from the process
		<-ended
		return nil
	})
	select {
	case err := <-ended:
		ended <- err
		return &skipError{fmt.Sprintf("strace cannot attach: %v", err)}
	case <-time.After(shortTime):
		return nil
	}
}

// failSync makes every sync of the leader fail. The leader must fail; healing restarts it.
func failSync(_ context.Context, s *injection) error {
	node := s.fleet.node(s.leader)
	s.onHeal(s.fleet.start)
	s.onHeal(func(context.Context) error { return node.kill() })
	return s.injectSyncFault(s.leader, "error=EIO")
}

// disks are file systems for each node, in image files in the run's directory. They need root.
type disks struct {
	dir  string
	size int // number of disks
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
	if err := runCommand("mkfs.ext4", "-q", "-m", "0", image); err != nil {
		return err
	}
	return d.mountImage(id)
}

// mountImage mounts a node's disk. Its journal commit interval is long, so that a power cut loses
// unsynced data.
func (d *disks) mountImage(id string) error {
	return runCommand("mount", "-o", "loop,commit=300", filepath.Join(d.dir, id+".image"), d.mount(id))
}

// unmount unmounts the disks. Their content stays in the images.
func (d *disks) unmount() error {
	var errs []error
	for i := range d.size {
		mount := d.mount(fmt.Sprintf("n%d", i+1))
		if isMounted(mount) {
			errs = append(errs, runCommand("umount", mount))
		}
	}
	return errors.Join(errs...)
}

func isMounted(dir string) bool {
	mounts, err := os.ReadFile("/proc/mounts")
	return err == nil && strings.Contains(string(mounts), " "+dir+" ")
}

func runCommand(name string, arguments ...string) error {
	if out, err := exec.Command(name, arguments...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// fullDisk fills the leader's disk completely.
func fullDisk(_ context.Context, s *injection) error {
	if s.fleet.disks == nil {
		return &skipError{"the nodes have no disks of their own"}
	}
	s.addNodes(s.leader)
	node, ballast := s.fleet.node(s.leader), filepath.Join(s.fleet.disks.mount(s.leader), "ballast")
	// A node that failed because of a disk error takes no part until it is restarted.
	s.onHeal(s.fleet.start)
	s.onHeal(func(ctx context.Context) error {
		if err := os.Remove(ballast); err != nil {
			return err
		}
		var state host.NodeStatus
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

// frozenDisk makes every write of the leader hang.
func frozenDisk(_ context.Context, s *injection) error {
	if s.fleet.disks == nil {
		return &skipError{"the nodes have no disks of their own"}
	}
	if _, err := exec.LookPath("fsfreeze"); err != nil {
		return &skipError{"fsfreeze is not installed"}
	}
	s.addNodes(s.leader)
	mount := s.fleet.disks.mount(s.leader)
	s.onHeal(func(context.Context) error { return runCommand("fsfreeze", "-u", mount) })
	return runCommand("fsfreeze", "-f", mount)
}

const (
	tailEvents  = 64
	tailTimeout = 300 * time.Millisecond
)

// fullDiskTail cuts the leader off, makes it append writes that it cannot commit, and fills its
// disk when it is reconnected. It must then truncate its tail and write the other nodes' entries.
func fullDiskTail(ctx context.Context, s *injection) error {
	if s.fleet.disks == nil {
		return &skipError{"the nodes have no disks of their own"}
	}
	if err := s.isolate(s.leader, true, true); err != nil {
		return err
	}
	s.writeTail(ctx)
	if _, err := s.fleet.awaitLeader(ctx, s.partition, s.leader); err != nil {
		return err
	}
	if err := fullDisk(ctx, s); err != nil {
		return err
	}
	return s.fleet.healNetwork(ctx)
}

// writeTail sends events through the leader, which waits in vain for a majority.
func (inj *injection) writeTail(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, tailTimeout)
	defer cancel()
	var nodeIndex int
	for i, node := range inj.fleet.nodes {
		if node.id == inj.leader {
			nodeIndex = i
		}
	}
	targets := inj.fleet.log.Acked(evidence.Start, "register-", inj.partition, tailEvents)
	var sending sync.WaitGroup
	for i, target := range targets {
		sender := client{fleet: inj.fleet, id: tailSender - i, firstNode: nodeIndex, noFailover: true}
		sending.Go(func() {
			sender.do(ctx, evidence.Request{
				Kind: evidence.Send, Instance: target.Instance, Name: host.Number,
				RequestID: "tail/" + target.Instance + "/" + inj.leader + "/" + inj.fleet.log.Now().String(), Input: encode("tail"),
			})
		})
	}
	sending.Wait()
}

// tailSender is the first of the clients whose writes are not committed.
const tailSender = -1000
