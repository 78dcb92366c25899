package transport

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// PartitionMagic is the first byte of a Raft connection between nodes with several partitions. The
// dialing side sends a header of three bytes: PartitionMagic, the partition, and the number of
// partitions. No Raft message begins with PartitionMagic, so nodes with different numbers of
// partitions do not misread each other. With one partition there is no header.
const PartitionMagic = 0xC7

// A Network accepts connections from the other nodes of a partition and dials them.
type Network interface {
	net.Listener
	Dial(address string, timeout time.Duration) (net.Conn, error)
}

// A partitionMux passes Raft connections to their partitions.
type partitionMux struct {
	listener   *purposeListener
	partitions []*partitionListener
	handshakes sync.WaitGroup
}

// A partitionListener is the network of one partition.
type partitionListener struct {
	mux       *partitionMux
	number    int
	conns     chan net.Conn
	done      chan struct{}
	closeOnce sync.Once
}

// SplitByPartition starts to dispatch Raft connections to the given number of partitions. Close
// waits until the dispatching has ended.
func (m *Mux) SplitByPartition(partitions int) {
	if partitions == 1 {
		return
	}
	mux := &partitionMux{listener: m.raft}
	for i := range partitions {
		mux.partitions = append(mux.partitions, &partitionListener{mux: mux, number: i, conns: make(chan net.Conn), done: make(chan struct{})})
	}
	m.partitionMux = mux
	m.running.Go(mux.accept)
}

// NetworkOf returns the network that connects a partition to the same partition on other nodes.
func (m *Mux) NetworkOf(partition int) Network {
	if m.partitionMux == nil {
		return m.raft
	}
	return m.partitionMux.partitions[partition]
}

// accept dispatches connections until the port closes.
func (p *partitionMux) accept() {
	defer p.handshakes.Wait()
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		if p.listener.mux.addHandshaking(conn) {
			p.handshakes.Go(func() { p.dispatch(conn) })
		}
	}
}

func (p *partitionMux) dispatch(conn net.Conn) {
	_ = conn.SetDeadline(time.Now().Add(HandshakeTimeout))
	partition, err := p.readHeader(conn)
	p.listener.mux.removeHandshaking(conn)
	if err != nil {
		_ = conn.Close()
		p.listener.mux.rejections.log(conn, err)
		return
	}
	_ = conn.SetDeadline(time.Time{})
	p.partitions[partition].deliver(conn)
}

// readHeader reads the header and returns its partition. It returns an error if the other node has
// another number of partitions.
func (p *partitionMux) readHeader(from io.Reader) (partition int, err error) {
	var header [3]byte
	if _, err := io.ReadFull(from, header[:1]); err != nil {
		return 0, err
	}
	if header[0] != PartitionMagic {
		return 0, errors.New("connection without a partition header: the other node has one partition, this one several")
	}
	if _, err := io.ReadFull(from, header[1:]); err != nil {
		return 0, err
	}
	if int(header[2]) != len(p.partitions) || header[1] >= header[2] {
		return 0, fmt.Errorf("connection for partition %d of %d, this node has %d", header[1], header[2], len(p.partitions))
	}
	return int(header[1]), nil
}

func (p *partitionListener) deliver(conn net.Conn) {
	select {
	case p.conns <- conn:
	case <-p.done:
		_ = conn.Close()
	case <-p.mux.listener.mux.closing:
		_ = conn.Close()
	}
}

// Accept implements Network.
func (p *partitionListener) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-p.mux.listener.mux.closing:
		return nil, net.ErrClosed
	}
}

// Close implements Network: it closes only this partition's listener.
func (p *partitionListener) Close() error {
	p.closeOnce.Do(func() { close(p.done) })
	return nil
}

// Addr implements Network.
func (p *partitionListener) Addr() net.Addr { return p.mux.listener.Addr() }

// Dial implements Network.
func (p *partitionListener) Dial(address string, timeout time.Duration) (net.Conn, error) {
	conn, err := p.mux.listener.Dial(address, timeout)
	if err != nil {
		return nil, err
	}
	_ = conn.SetWriteDeadline(time.Now().Add(timeout))
	if _, err := conn.Write([]byte{PartitionMagic, byte(p.number), byte(len(p.mux.partitions))}); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, conn.SetWriteDeadline(time.Time{})
}
