package dnstest

import (
	"encoding/binary"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The types of records that a Server has.
const (
	typeA   = 1
	typeSRV = 33
)

// headerBytes is the length of the header of a message.
const headerBytes = 12

// A Server answers questions for A records with its addresses, and for SRV records with its
// targets.
type Server struct {
	conn    net.PacketConn
	records chan records // holds them
}

type records struct{ hosts, targets []string }

// Start starts a server on loopback, until the end of the test.
func Start(t testing.TB) *Server {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{conn, make(chan records, 1)}
	s.records <- records{}
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
	r := <-s.records
	r.hosts = hosts
	s.records <- r
}

// SetTargets replaces the targets of the SRV records, name:port.
func (s *Server) SetTargets(targets ...string) {
	r := <-s.records
	r.targets = targets
	s.records <- r
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
	all := s.dataOf(kind)
	for _, data := range all {
		message = appendRecord(message, kind, data)
	}
	copy(message[2:], []byte{0x84, 0}) // an authoritative answer
	binary.BigEndian.PutUint16(message[6:], uint16(len(all)))
	clear(message[8:headerBytes])
	return message
}

// dataOf returns the data of each record of a type.
func (s *Server) dataOf(kind uint16) (all [][]byte) {
	r := <-s.records
	s.records <- r
	switch kind {
	case typeA:
		for _, host := range r.hosts {
			all = append(all, net.ParseIP(host).To4())
		}
	case typeSRV:
		for _, target := range r.targets {
			all = append(all, encodeTarget(target))
		}
	}
	return all
}

// encodeTarget returns the data of an SRV record of priority and weight 0.
func encodeTarget(target string) []byte {
	name, text, _ := strings.Cut(target, ":")
	port, _ := strconv.ParseUint(text, 10, 16)
	data := binary.BigEndian.AppendUint16([]byte{0, 0, 0, 0}, uint16(port))
	for label := range strings.SplitSeq(name, ".") {
		data = append(append(data, byte(len(label))), label...)
	}
	return append(data, 0)
}

// appendRecord appends a record of the name in the question, of class IN, valid for a second.
func appendRecord(message []byte, kind uint16, data []byte) []byte {
	message = append(message, 0xC0, headerBytes)
	message = binary.BigEndian.AppendUint16(message, kind)
	message = append(message, 0, 1, 0, 0, 0, 1)
	message = binary.BigEndian.AppendUint16(message, uint16(len(data)))
	return append(message, data...)
}
