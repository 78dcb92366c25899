// Package diskfile writes and verifies the files in a node's directory.
//
// # Guarantees
//
//  1. After WriteAtomic returns nil, the file is on disk as a whole. After an error or a crash it
//     has its old content or the new one, never a part.
//  2. A sector is written in place and needs no free space. If its checksum does not match, it was
//     damaged: a disk writes a sector completely or not at all.
//
// # What may not be assumed
//
// Windows cannot sync a directory. A power cut there may undo the creation or the replacement of a
// file.
package diskfile
