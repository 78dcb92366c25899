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
// So a crash leaves a prefix of the batches. Keys are ordered by their bytes. All keys of a table
// have the same first byte.
//
// # Errors
//
// This package works around three behaviors of Pebble. First, Pebble continues on data that it
// found wrong if Fatalf returns, and retries forever after a background error. In both cases
// this package ends the goroutine (runtime.Goexit). Second, Pebble panics when it cannot sync a
// directory; goexitFS ends the goroutine before. Third, an Open that fails late makes running
// compactions panic, so compactionScheduler starts none before Open returns. A call that may end
// its goroutine runs in a separate one (runGuarded).
package pebblestore
