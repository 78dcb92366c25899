// Package pebblestore implements store.Store on disk, in a Pebble database. No other package
// depends on Pebble.
//
// # Files
//
// A store is a directory. Its file "current" names one of the databases beside it, each called
// "db-" and 16 hexadecimal digits. The file "damaged" exists if that database must not be used. A
// database is a Pebble database of format FormatTableFormatV6 without a write-ahead log; after a
// crash it returns to its last flush. A Write is one batch. Pebble flushes memtables in the order
// in which they were filled, a batch is in one memtable, and a flush is one record of the manifest.
// So a crash leaves a prefix of the batches. Keys are ordered by their bytes. A table holds keys
// with one first byte only.
//
// # Errors
//
// Pebble needs care in three cases. Fatalf and background errors end their goroutine
// (runtime.Goexit): after the former Pebble would continue on data that it knows to be wrong, after
// the latter it would retry for ever. Pebble panics when it cannot sync a directory, so that also
// ends the goroutine. An Open that fails late makes a running compaction panic, so none may start
// before Open returns. Calls that may meet one of these run in a goroutine of their own.
package pebblestore
