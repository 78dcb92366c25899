package transport

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// Credentials returns gRPC credentials that report the peer of a connection, whose handshake is
// already done.
func Credentials() credentials.TransportCredentials { return linkCredentials{} }

// PeerOf returns the peer of the connection over which a call arrived.
func PeerOf(ctx context.Context) Principal {
	if sender, ok := peer.FromContext(ctx); ok {
		if info, ok := sender.AuthInfo.(AuthInfo); ok {
			return info.Peer
		}
	}
	return Principal{}
}

// AuthInfo holds the peer of a connection for gRPC.
type AuthInfo struct {
	credentials.CommonAuthInfo
	Peer Principal
}

// AuthType implements credentials.AuthInfo.
func (AuthInfo) AuthType() string { return "tenuto" }

func newAuthInfo(conn net.Conn) AuthInfo {
	info := AuthInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
	if l, ok := conn.(*Link); ok {
		info.Peer = l.peer
	}
	return info
}

// linkCredentials implements credentials.TransportCredentials.
type linkCredentials struct{}

func (linkCredentials) ClientHandshake(_ context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return conn, newAuthInfo(conn), nil
}

func (linkCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return conn, newAuthInfo(conn), nil
}

func (linkCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tenuto"}
}

func (c linkCredentials) Clone() credentials.TransportCredentials { return c }

func (linkCredentials) OverrideServerName(string) error { return nil }
