package peer

import (
	"crypto/rand"
	"encoding/hex"
	"strings"

	"github.com/hashicorp/raft"
)

// IdentitySeparator is between the address and the identity in Raft's configuration.
//
// Every directory has a random identity, written once and never changed. Raft's configuration names
// each member with the identity of its directory. So the identity is replicated, is in each
// snapshot, and is known before the log is applied. To Raft, a node that has lost its directory is
// an unknown server, whatever its name.
//
// The configuration holds the identity after the address, as "host:port#identity". A member that
// was added by a build before protocol 3 has none until the leader records it.
const IdentitySeparator = "#"

// Address returns an address as in Raft's configuration.
func Address(address, identity string) raft.ServerAddress {
	if identity == "" {
		return raft.ServerAddress(address)
	}
	return raft.ServerAddress(address + IdentitySeparator + identity)
}

// SplitAddress returns the address of a server and its recorded identity, "" if none is recorded.
func SplitAddress(of raft.ServerAddress) (address, identity string) {
	address, identity, _ = strings.Cut(string(of), IdentitySeparator)
	return address, identity
}

// AddressOf returns the address of a server without its identity.
func AddressOf(server *raft.Server) string {
	address, _ := SplitAddress(server.Address)
	return address
}

// IdentityOf returns the recorded identity of a server, "" if none is recorded.
func IdentityOf(server *raft.Server) string {
	_, identity := SplitAddress(server.Address)
	return identity
}

// NewIdentity returns a random identity.
func NewIdentity() string {
	var b [IdentityBytes]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// IdentityBytes is the size of an identity, which is written in hexadecimal digits.
const IdentityBytes = 16

// IsValidIdentity reports whether a text has the form of an identity.
func IsValidIdentity(text string) bool {
	b, err := hex.DecodeString(text)
	return err == nil && len(b) == IdentityBytes && strings.ToLower(text) == text
}

// Process is what a node reports of itself: the identity of its directory, and what distinguishes
// this process from others that have opened the directory or a copy of it.
type Process struct {
	Identity string `json:"identity"`
	// Starts counts how often the directory was opened. It is synced before the node votes or
	// acknowledges anything.
	Starts uint64 `json:"starts"`
	// Session is random. It differs between processes that opened copies of the same directory.
	Session string `json:"session"`
}

// NewProcess returns the first process of a new directory. A node that keeps everything in memory
// has a new directory at each start.
func NewProcess(identity string) Process {
	if identity == "" {
		identity = NewIdentity()
	}
	return Process{Identity: identity, Starts: 1, Session: NewIdentity()}
}
