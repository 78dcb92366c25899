package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/internal/detour"
)

// A Dialer connects to nodes.
type Dialer struct {
	TLSSource *TLSSource // nil: no TLS, loopback only
	Links     *Links
	// NodeAt returns the ID of the node at an address, "" if it is unknown.
	NodeAt  func(address string) string
	Route   detour.Route    // for tests
	Context context.Context // its end cancels attempts to connect; nil: never
}

// LoopbackRule says, in an error, where plaintext is allowed.
const LoopbackRule = "without TLS, connections are allowed to loopback addresses only"

// Dial returns a connection after the peer has accepted the handshake. ctx and HandshakeTimeout
// bound it.
func (d *Dialer) Dial(ctx context.Context, address string, required Purpose) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, HandshakeTimeout)
	defer cancel()
	if d.Context != nil {
		defer context.AfterFunc(d.Context, cancel)()
	}
	tcp := net.Dialer{Timeout: connectTimeout, Control: setTCPUserTimeout}
	raw, err := tcp.DialContext(ctx, "tcp", d.Route.To(address))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	l, err := d.handshake(ctx, raw, address, required)
	if !stop() { // err only says that the deadline was set
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	return l, d.Links.add(l)
}

// handshake sends the purpose of a new connection and waits until the peer accepts it.
func (d *Dialer) handshake(ctx context.Context, raw net.Conn, address string, required Purpose) (*Link, error) {
	l := &Link{Conn: raw, raw: raw, handshakeResult: handshakeResult{purpose: required, peer: Principal{Kind: KindLocal}}}
	if d.TLSSource == nil {
		if !isLoopback(raw.RemoteAddr()) {
			return nil, errors.New(LoopbackRule)
		}
		if _, err := raw.Write(append([]byte(PreambleMagic), byte(required))); err != nil {
			return nil, err
		}
	} else if err := d.handshakeTLS(ctx, l, d.NodeAt(address)); err != nil {
		return nil, err
	}
	var answer [1]byte
	if _, err := io.ReadFull(l, answer[:]); err != nil {
		return nil, fmt.Errorf("rejected: %w", err)
	}
	if err := handshakeError(answer[0]); err != nil {
		return nil, fmt.Errorf("rejected: %w", err)
	}
	return l, nil
}

func (d *Dialer) handshakeTLS(ctx context.Context, l *Link, nodeID string) error {
	config, err := d.TLSSource.clientConfig(l.purpose, nodeID)
	if err != nil {
		return err
	}
	conn := tls.Client(l.raw, config)
	if err := conn.HandshakeContext(ctx); errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("the node closed the connection during the TLS handshake: it is stopping, or does not use TLS: %w", err)
	} else if err != nil {
		return err
	}
	found, err := d.TLSSource.handshakeOf(conn.ConnectionState())
	if err != nil {
		return err
	}
	l.Conn, l.handshakeResult = conn, *found
	return nil
}

func isLoopback(address net.Addr) bool {
	tcp, ok := address.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
