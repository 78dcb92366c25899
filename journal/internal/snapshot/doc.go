// Package snapshot stores, sends, fetches and serves the snapshots of a partition.
//
// # Guarantees
//
//  1. A snapshot exists as a whole or not at all. Every file has a checksum in the manifest.
//  2. A file with a checksum mismatch is neither installed nor sent. The snapshot that it belongs
//     to is quarantined, and Store.OnDamaged is called, because the state may share the file.
//  3. A received snapshot that ends no later than this node's last entry is rejected.
//  4. A Server sends one snapshot at a time, and only to the same cluster.
//
// # What may not be assumed
//
// Raft lists the state itself as the newest snapshot when it starts (Starting); that one cannot be
// opened. The documentation of package journal has the bytes on disk and on connections.
package snapshot
