// Package journaltest is one suite of tests that every journal passes, in memory
// or on disk and whatever its log store: what package journal promises about
// appends, refusals, epochs, purges, restarts and failing disks. Whoever writes
// a journal of their own, or a log store for one, runs it against theirs:
//
//	func TestMine(t *testing.T) {
//		journaltest.Run(t, journaltest.Subject{Open: openMine, Durable: true})
//	}
//
// The suite opens groups of one. What takes several nodes is for the tests of
// the journal itself.
package journaltest
