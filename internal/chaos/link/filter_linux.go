package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	ebpflink "github.com/cilium/ebpf/link"
)

// A filter drops packets in the kernel: a BPF program at the ingress of an interface, with a table
// of the share to drop from one address to another. The sender gets no error.
type filter struct {
	table   *ebpf.Map
	program *ebpf.Program
}

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

// The results of the program: the packet is dropped, or passes. From linux/bpf.h.
const (
	resultDrop = 2
	resultPass = -1
)

// newFilter loads the program with an empty table, which drops nothing.
func newFilter() (*filter, error) {
	table, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: keySize, ValueSize: valueSize, MaxEntries: entriesMax})
	if err != nil {
		return nil, fmt.Errorf("create BPF table: %w", err)
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, Instructions: instructions(table), License: "MIT"})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("load BPF program: %w", err), table.Close())
	}
	return &filter{table, program}, nil
}

func instructions(table *ebpf.Map) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1), // the packet; packet loads read R6
		asm.LoadAbs(typeOffset, asm.Half),
		asm.JNE.Imm(asm.R0, typeIPv4, "pass"),
		asm.LoadAbs(sourceOffset, asm.Word),
		asm.StoreMem(asm.RFP, -keySize, asm.R0, asm.Word),
		asm.LoadAbs(targetOffset, asm.Word),
		asm.StoreMem(asm.RFP, -keySize/2, asm.R0, asm.Word),
		asm.LoadMapPtr(asm.R1, table.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -keySize),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),
		asm.LoadMem(asm.R7, asm.R0, 0, asm.DWord), // the share
		asm.FnGetPrandomU32.Call(),
		asm.JGE.Reg(asm.R0, asm.R7, "pass"),
		asm.Mov.Imm(asm.R0, resultDrop),
		asm.Return(),
		asm.Mov.Imm(asm.R0, resultPass).WithSymbol("pass"),
		asm.Return(),
	}
}

// set sets the share of packets from one address to another that is dropped.
func (f *filter) set(from, to netip.Addr, share float64) error {
	key := [2]uint32{binary.BigEndian.Uint32(from.AsSlice()), binary.BigEndian.Uint32(to.AsSlice())}
	if err := f.table.Put(key, uint64(share*shareAll)); err != nil {
		return fmt.Errorf("set packet loss from %s to %s: %w", from, to, err)
	}
	return nil
}

// attach attaches the filter to the ingress of an interface of the calling thread's namespace,
// until what it returns is closed.
func (f *filter) attach(index int) (io.Closer, error) {
	attached, err := ebpflink.AttachTCX(ebpflink.TCXOptions{Interface: index, Program: f.program, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return nil, fmt.Errorf("attach BPF program (needs Linux 6.6): %w", err)
	}
	return attached, nil
}

func (f *filter) close() error { return errors.Join(f.table.Close(), f.program.Close()) }
