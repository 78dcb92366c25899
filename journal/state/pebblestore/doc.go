// Package pebblestore keeps the state of a machine on disk, in a database of
// Pebble's. It is the only package that knows which one it is.
//
// # The files of a store
//
// A store is a directory with the file "current", which names one of the
// databases "db-" and 16 hexadecimal digits beside it, and the file "damaged" if
// that database must not be believed. A database is one of Pebble's, table format
// 6, without a write-ahead log: it falls back on its last flush. A Write is one
// batch; Pebble flushes its memtables in the order in which they were filled, a
// batch is in one of them, and a flush is one record of the manifest, so that what
// is left after a crash is a prefix of the batches. Keys are ordered by their
// bytes; a table holds keys of one first byte alone.
//
// # Errors
//
// Three things of Pebble need care. Fatalf and errors in the background end their
// goroutine (Goexit), since one would go on with what it knows to be wrong and the
// other try again for ever. It panics when a directory cannot be synced, so that
// does the same. And an Open that fails late panics in a compaction that it has
// begun, so none may begin before. Whatever may meet one of these runs in a
// goroutine of its own.
package pebblestore
