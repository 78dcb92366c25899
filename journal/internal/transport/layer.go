package transport

import (
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// dialLayer is a stream layer that accepts no connections. The Raft library closes it first when it
// closes a transport.
type dialLayer struct {
	*Streams
	closing chan struct{}
	once    sync.Once
}

// Accept implements net.Listener.
func (d *dialLayer) Accept() (net.Conn, error) {
	<-d.closing
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (d *dialLayer) Close() error {
	d.once.Do(func() { close(d.closing) })
	return d.Streams.Close()
}

// acceptLayer is a stream layer with a single accepted connection.
type acceptLayer struct {
	conn       *closeNotifyConn
	acceptSlot chan struct{} // has room until the connection is returned
	closing    chan struct{}
	once       sync.Once
}

// Accept implements net.Listener.
func (a *acceptLayer) Accept() (net.Conn, error) {
	select {
	case a.acceptSlot <- struct{}{}:
		return a.conn, nil
	case <-a.closing:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (a *acceptLayer) Close() error {
	a.once.Do(func() { close(a.closing) })
	return a.conn.Close()
}

// Addr implements net.Listener.
func (a *acceptLayer) Addr() net.Addr { return a.conn.LocalAddr() }

// Dial implements raft.StreamLayer.
func (*acceptLayer) Dial(raft.ServerAddress, time.Duration) (net.Conn, error) {
	return nil, net.ErrClosed
}

// closeNotifyConn is a connection that signals when it was closed.
type closeNotifyConn struct {
	net.Conn
	once     sync.Once
	closedCh chan struct{}
}

// Close implements net.Conn.
func (c *closeNotifyConn) Close() error {
	c.once.Do(func() { close(c.closedCh) })
	return c.Conn.Close()
}
