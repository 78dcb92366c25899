// Package journaltest is a test suite for journals, in memory or on disk, with any log store. It
// covers what package journal promises about appends, rejections, epochs, purges, restarts and
// failing disks. Run it against your own journal, or a log store for one:
//
//	func TestMine(t *testing.T) {
//		journaltest.Run(t, journaltest.Subject{Open: openMine, Durable: true})
//	}
//
// The suite opens single-node partitions. Behavior across nodes is covered by the tests of package
// journal.
package journaltest
