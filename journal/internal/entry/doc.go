// Package entry encodes and decodes the data of Raft's log entries.
//
// # Guarantees
//
//  1. A record is encoded once, in the caller's goroutine. Pack only copies.
//  2. Unpack returns no record of an entry with any checksum mismatch.
//
// The documentation of package journal has the bytes.
package entry
