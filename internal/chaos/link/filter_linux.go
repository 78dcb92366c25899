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

// A filter drops packets in the kernel: a BPF program at the ingress of an interface, with a table
// of the share to drop from one address to another. The sender gets no error.
type filter struct{ table, program *os.File }

// The table maps the sender's and the receiver's address, in native byte order, to the dropped
// share of 1<<32 packets.
const (
	keySize    = 8
	valueSize  = 8
	entriesMax = 1024
	shareAll   = 1 << 32
)

// The offsets of the Ethernet type and of the IPv4 addresses.
const (
	typeOffset, sourceOffset, targetOffset = 12, 26, 30
	typeIPv4                               = 0x0800
)

// The kernel helpers that the program calls, and its results: the packet is dropped, or passes.
const (
	callLookup = 1
	callRandom = 7
	resultDrop = 2
	resultPass = -1
)

// newFilter loads the program with an empty table, which drops nothing.
func newFilter() (*filter, error) {
	table, err := bpf(unix.BPF_MAP_CREATE, &struct{ kind, key, value, entries uint32 }{
		unix.BPF_MAP_TYPE_HASH, keySize, valueSize, entriesMax,
	})
	if err != nil {
		return nil, fmt.Errorf("create BPF table: %w", err)
	}
	code, license := assemble(int32(table.Fd())), []byte("MIT\x00")
	program, err := bpf(unix.BPF_PROG_LOAD, &struct {
		kind, length  uint32
		code, license unsafe.Pointer
	}{unix.BPF_PROG_TYPE_SCHED_CLS, uint32(len(code)), unsafe.Pointer(&code[0]), unsafe.Pointer(&license[0])})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("load BPF program: %w", err), table.Close())
	}
	return &filter{table, program}, nil
}

// An instruction is a BPF instruction in the kernel's format; opcodes are in linux/bpf.h.
type instruction struct {
	op, registers uint8 // the target in the lower half, the source in the upper one
	offset        int16
	immediate     int32
}

// assemble returns the program. The kernel's helpers return their result in r0; r10 is the end of
// the stack.
func assemble(table int32) []instruction {
	const pass = 18
	return []instruction{
		{0xbf, 0x16, 0, 0},                              // r6 = r1: the packet; packet loads read r6
		{0x28, 0, 0, typeOffset},                        // r0 = type
		{0x55, 0x00, pass - 3, typeIPv4},                // if r0 != IPv4 goto pass
		{0x20, 0, 0, sourceOffset},                      // r0 = source
		{0x63, 0x0a, -8, 0},                             // key[0:4] = r0
		{0x20, 0, 0, targetOffset},                      // r0 = target
		{0x63, 0x0a, -4, 0},                             // key[4:8] = r0
		{0x18, unix.BPF_PSEUDO_MAP_FD<<4 | 1, 0, table}, // r1 = table
		{},                          // (second half of the previous instruction)
		{0xbf, 0xa2, 0, 0},          // r2 = r10
		{0x07, 0x02, 0, -keySize},   // r2 -= 8: the key
		{0x85, 0, 0, callLookup},    // r0 = lookup(r1, r2)
		{0x15, 0x00, pass - 13, 0},  // if r0 == nil goto pass
		{0x79, 0x07, 0, 0},          // r7 = *r0: the share
		{0x85, 0, 0, callRandom},    // r0 = random 32 bits
		{0x3d, 0x70, pass - 16, 0},  // if r0 >= r7 goto pass
		{0xb7, 0x00, 0, resultDrop}, // r0 = drop
		{0x95, 0, 0, 0},             // return r0
		pass:                        {0xb7, 0x00, 0, resultPass}, // r0 = pass
		{0x95, 0, 0, 0},             // return r0
	}
}

// set sets the share of packets from one address to another that is dropped.
func (f *filter) set(from, to netip.Addr, share float64) error {
	key := make([]byte, 0, keySize)
	for _, address := range []netip.Addr{from, to} {
		key = binary.NativeEndian.AppendUint32(key, binary.BigEndian.Uint32(address.AsSlice()))
	}
	value := uint64(share * shareAll)
	if _, err := bpf(unix.BPF_MAP_UPDATE_ELEM, &struct {
		table      uint32
		_          uint32
		key, value unsafe.Pointer
		flags      uint64
	}{table: uint32(f.table.Fd()), key: unsafe.Pointer(&key[0]), value: unsafe.Pointer(&value)}); err != nil {
		return fmt.Errorf("set packet loss from %s to %s: %w", from, to, err)
	}
	return nil
}

// attach attaches the filter to the ingress of an interface of the calling thread's namespace,
// until the returned file is closed.
func (f *filter) attach(index int) (*os.File, error) {
	file, err := bpf(unix.BPF_LINK_CREATE, &struct{ program, target, kind, flags, relative, _, revision1, revision2 uint32 }{
		program: uint32(f.program.Fd()), target: uint32(index), kind: unix.BPF_TCX_INGRESS,
	})
	if err != nil {
		return nil, fmt.Errorf("attach BPF program (needs Linux 6.6): %w", err)
	}
	return file, nil
}

func (f *filter) close() error { return errors.Join(f.table.Close(), f.program.Close()) }

// bpf makes a bpf(2) system call and returns the file that it creates, if any.
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
