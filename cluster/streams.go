package cluster

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/journal"
)

// With several groups, each connection for Raft begins with three bytes from
// whoever has dialed: which group it is for, and of how many. The first byte is none
// with which a message of Raft begins, so that nodes of different numbers of groups
// do not take each other's words for something else. With one group there is no
// opening.
const streamOpening = 0xC7

// A switchboard hands the connections for Raft to the groups that they are for.
type switchboard struct {
	door    *door
	groups  []*extension
	sorting sync.WaitGroup
}

// An extension is the network of one group.
type extension struct {
	board  *switchboard
	number int
	conns  chan net.Conn
	shut   chan struct{}
	closed sync.Once
}

// switchTo has the connections for Raft sorted by so many groups. The port waits
// for the sorting to end.
func (p *port) switchTo(groups int) {
	if groups == 1 {
		return
	}
	board := &switchboard{door: p.raft}
	for i := range groups {
		board.groups = append(board.groups, &extension{board: board, number: i, conns: make(chan net.Conn), shut: make(chan struct{})})
	}
	p.board = board
	p.running.Go(board.accept)
}

// networkOf returns what connects one group to the same group on other nodes.
func (p *port) networkOf(group int) journal.Network {
	if p.board == nil {
		return p.raft
	}
	return p.board.groups[group]
}

// accept sorts connections until the port closes.
func (b *switchboard) accept() {
	defer b.sorting.Wait()
	for {
		conn, err := b.door.Accept()
		if err != nil {
			return
		}
		if b.door.port.queue(conn) {
			b.sorting.Go(func() { b.sort(conn) })
		}
	}
}

func (b *switchboard) sort(conn net.Conn) {
	_ = conn.SetDeadline(time.Now().Add(handshakeTimeout))
	group, err := b.read(conn)
	b.door.port.unqueue(conn)
	if err != nil {
		_ = conn.Close()
		b.door.port.refusals.log(conn, err)
		return
	}
	_ = conn.SetDeadline(time.Time{})
	b.groups[group].pass(conn)
}

// read reads the opening.
func (b *switchboard) read(from io.Reader) (group int, err error) {
	var opening [3]byte
	if _, err := io.ReadFull(from, opening[:1]); err != nil {
		return 0, err
	}
	if opening[0] != streamOpening {
		return 0, errors.New("it names no group: the other node has one, this one several")
	}
	if _, err := io.ReadFull(from, opening[1:]); err != nil {
		return 0, err
	}
	if int(opening[2]) != len(b.groups) || opening[1] >= opening[2] {
		return 0, fmt.Errorf("it is for group %d of %d, and there are %d", opening[1], opening[2], len(b.groups))
	}
	return int(opening[1]), nil
}

func (e *extension) pass(conn net.Conn) {
	select {
	case e.conns <- conn:
	case <-e.shut:
		_ = conn.Close()
	case <-e.board.door.port.closing:
		_ = conn.Close()
	}
}

// Accept implements journal.Network.
func (e *extension) Accept() (net.Conn, error) {
	select {
	case conn := <-e.conns:
		return conn, nil
	case <-e.shut:
		return nil, net.ErrClosed
	case <-e.board.door.port.closing:
		return nil, net.ErrClosed
	}
}

// Close implements journal.Network: it shuts out this group alone.
func (e *extension) Close() error {
	e.closed.Do(func() { close(e.shut) })
	return nil
}

// Addr implements journal.Network.
func (e *extension) Addr() net.Addr { return e.board.door.Addr() }

// Dial implements journal.Network.
func (e *extension) Dial(address string, timeout time.Duration) (net.Conn, error) {
	conn, err := e.board.door.Dial(address, timeout)
	if err != nil {
		return nil, err
	}
	_ = conn.SetWriteDeadline(time.Now().Add(timeout))
	if _, err := conn.Write([]byte{streamOpening, byte(e.number), byte(len(e.board.groups))}); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, conn.SetWriteDeadline(time.Time{})
}
