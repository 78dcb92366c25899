// Package frame writes and reads checksummed messages.
//
//	frame   = length (4 bytes, not 0), the bytes, their CRC-32C (4 bytes)
//	trailer = length 0 (4 bytes), CRC-32C of all bytes before it (4 bytes)
//
// with integers little-endian.
//
// # Guarantees
//
//  1. A reader returns a frame only if its checksum matches and its length is within the bound that
//     the caller gives.
//  2. ReadJSON consumes no byte after its frame.
package frame
