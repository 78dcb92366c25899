package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A filter loses packets in the kernel: a program of BPF where they come in, with
// a table of what is to be lost from whom to whom. Nothing tells the sender.
type filter struct{ table, program *os.File }

// The table: from the sender's and the receiver's address, in the order of the
// processor's bytes, to the share that is lost of 1<<32 packets.
const (
	keySize    = 8
	valueSize  = 8
	entriesMax = 1024
	everything = 1 << 32
)

// Where the header of Ethernet has the type, and that of IPv4 behind it the
// addresses.
const (
	atType, atSource, atTarget = 12, 26, 30
	typeIPv4                   = 0x0800
)

// The functions of the kernel that the program calls, and its answers: the packet
// is lost, or goes on.
const (
	callLookup = 1
	callRandom = 7
	answerLost = 2
	answerPass = -1
)

// newFilter loads the program, with a table that has everything pass.
func newFilter() (*filter, error) {
	table, err := bpf(unix.BPF_MAP_CREATE, &struct{ kind, key, value, entries uint32 }{
		unix.BPF_MAP_TYPE_HASH, keySize, valueSize, entriesMax,
	})
	if err != nil {
		return nil, fmt.Errorf("make a table for BPF: %w", err)
	}
	code, license := assemble(int32(table.Fd())), []byte("MIT\x00")
	program, err := bpf(unix.BPF_PROG_LOAD, &struct {
		kind, length  uint32
		code, license unsafe.Pointer
	}{unix.BPF_PROG_TYPE_SCHED_CLS, uint32(len(code)), unsafe.Pointer(&code[0]), unsafe.Pointer(&license[0])})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("load a program of BPF: %w", err), table.Close())
	}
	return &filter{table, program}, nil
}

// An instruction is one of BPF, as the kernel takes it; ops are in
// linux/bpf.h.
type instruction struct {
	op, registers uint8 // the target in the lower half, the source in the upper one
	offset        int16
	immediate     int32
}

// assemble returns the program. r0 is where the kernel's functions answer, r10
// the end of the stack.
func assemble(table int32) []instruction {
	const pass = 18
	return []instruction{
		{0xbf, 0x16, 0, 0},                              // r6 = r1: the packet, which loads of it expect there
		{0x28, 0, 0, atType},                            // r0 = type
		{0x55, 0x00, pass - 3, typeIPv4},                // if r0 != IPv4 goto pass
		{0x20, 0, 0, atSource},                          // r0 = source
		{0x63, 0x0a, -8, 0},                             // key[0:4] = r0
		{0x20, 0, 0, atTarget},                          // r0 = target
		{0x63, 0x0a, -4, 0},                             // key[4:8] = r0
		{0x18, unix.BPF_PSEUDO_MAP_FD<<4 | 1, 0, table}, // r1 = table
		{},                          // (the other half of that)
		{0xbf, 0xa2, 0, 0},          // r2 = r10
		{0x07, 0x02, 0, -keySize},   // r2 -= 8: the key
		{0x85, 0, 0, callLookup},    // r0 = lookup(r1, r2)
		{0x15, 0x00, pass - 13, 0},  // if r0 == nil goto pass
		{0x79, 0x07, 0, 0},          // r7 = *r0: the share
		{0x85, 0, 0, callRandom},    // r0 = random 32 bits
		{0x3d, 0x70, pass - 16, 0},  // if r0 >= r7 goto pass
		{0xb7, 0x00, 0, answerLost}, // r0 = lost
		{0x95, 0, 0, 0},             // return r0
		pass:                        {0xb7, 0x00, 0, answerPass}, // r0 = goes on
		{0x95, 0, 0, 0},             // return r0
	}
}

// set says which share of the packets from one address to another is lost.
func (f *filter) set(from, to netip.Addr, share float64) error {
	key := make([]byte, 0, keySize)
	for _, address := range []netip.Addr{from, to} {
		key = binary.NativeEndian.AppendUint32(key, binary.BigEndian.Uint32(address.AsSlice()))
	}
	value := uint64(share * everything)
	if _, err := bpf(unix.BPF_MAP_UPDATE_ELEM, &struct {
		table      uint32
		_          uint32
		key, value unsafe.Pointer
		flags      uint64
	}{table: uint32(f.table.Fd()), key: unsafe.Pointer(&key[0]), value: unsafe.Pointer(&value)}); err != nil {
		return fmt.Errorf("lose packets from %s to %s: %w", from, to, err)
	}
	return nil
}

// attach puts the filter where packets come in from an interface of the calling
// thread's namespace, until the file that is returned is closed.
func (f *filter) attach(index int) (*os.File, error) {
	file, err := bpf(unix.BPF_LINK_CREATE, &struct{ program, target, kind, flags, relative, _, revision1, revision2 uint32 }{
		program: uint32(f.program.Fd()), target: uint32(index), kind: unix.BPF_TCX_INGRESS,
	})
	if err != nil {
		return nil, fmt.Errorf("attach a program of BPF (Linux 6.6 can): %w", err)
	}
	return file, nil
}

func (f *filter) close() error { return errors.Join(f.table.Close(), f.program.Close()) }

// bpf makes a system call, and returns the file that it has made, if it makes one.
func bpf[A any](command uintptr, attributes *A) (*os.File, error) {
	fd, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(unsafe.Pointer(attributes)), unsafe.Sizeof(*attributes))
	switch {
	case errno != 0:
		return nil, errno
	case command == unix.BPF_MAP_UPDATE_ELEM:
		return nil, nil
	}
	return os.NewFile(fd, "bpf"), nil
}
