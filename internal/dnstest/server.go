package dnstest

import (
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"testing"
)

// The types of records that a Server has.
const (
	typeA   = 1
	typeSRV = 33
)

// srvPort is the port in the first SRV record. Each further record has the next port.
const srvPort = 7400

// headerBytes is the length of the header of a message.
const headerBytes = 12

// A Server answers questions for A records with its addresses, and for SRV records with one target
// for each of them: t-0.tenuto.test at port 7400, and so on.
type Server struct {
	conn  net.PacketConn
	hosts chan []string // holds the addresses
}

// Start starts a server on loopback, until the end of the test.
func Start(t testing.TB) *Server {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{conn, make(chan []string, 1)}
	s.hosts <- nil
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.serve()
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-served
	})
	return s
}

// Address returns the UDP address of the server.
func (s *Server) Address() string { return s.conn.LocalAddr().String() }

// Set replaces the addresses. They must be of IPv4.
func (s *Server) Set(hosts ...string) {
	<-s.hosts
	s.hosts <- hosts
}

// serve answers until the connection is closed.
func (s *Server) serve() {
	buffer := make([]byte, 1500)
	for {
		n, from, err := s.conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		if answer := s.answer(buffer[:n]); answer != nil {
			_, _ = s.conn.WriteTo(answer, from)
		}
	}
}

// answer returns the answer to a query with one question; nil if it is malformed.
func (s *Server) answer(query []byte) []byte {
	hosts := <-s.hosts
	s.hosts <- hosts
	end := headerBytes
	for end < len(query) && query[end] != 0 {
		end += 1 + int(query[end])
	}
	end += 5 // the end of the name, the type and the class
	if end > len(query) {
		return nil
	}
	kind := binary.BigEndian.Uint16(query[end-4:])
	message := slices.Clone(query[:end])
	count := uint16(0)
	for i, host := range hosts {
		var data []byte
		switch kind {
		case typeA:
			data = net.ParseIP(host).To4()
		case typeSRV:
			data = binary.BigEndian.AppendUint16([]byte{0, 0, 0, 0}, uint16(srvPort+i))
			data = append(data, fmt.Sprintf("\x03t-%d\x06tenuto\x04test\x00", i)...)
		}
		if data != nil {
			message = appendRecord(message, kind, data)
			count++
		}
	}
	copy(message[2:], []byte{0x84, 0}) // an authoritative answer
	binary.BigEndian.PutUint16(message[6:], count)
	clear(message[8:headerBytes])
	return message
}

// appendRecord appends a record of the name in the question, of class IN, valid for a second.
func appendRecord(message []byte, kind uint16, data []byte) []byte {
	message = append(message, 0xC0, headerBytes)
	message = binary.BigEndian.AppendUint16(message, kind)
	message = append(message, 0, 1, 0, 0, 0, 1)
	message = binary.BigEndian.AppendUint16(message, uint16(len(data)))
	return append(message, data...)
}
