// Package clustertest runs a cluster inside a test: real nodes, with their journals
// on disk, that talk over loopback, and that the test can kill, cut off, pause and
// restart.
//
//	func TestCheckoutSurvivesTheLeader(t *testing.T) {
//		c := clustertest.New(t, 3, clustertest.Definitions(
//			Charge.Bind(charge), Checkout.Bind(checkout),
//		))
//		leader := c.Leader()
//		other := (leader + 1) % 3
//		run, err := cluster.StartRun(t.Context(), c.Client(other), Checkout, "order-17", order)
//		...
//		c.Kill(leader)
//		receipt, err := run.Wait(t.Context())
//		...
//		c.Restart(leader)
//		c.Eventually("the old leader follows", func() bool { return c.Node(leader).Leader() != "" })
//	}
//
// It is for what needs a cluster: the services around the orchestrations, activities
// that are cut off, upgrades of one node after the other ([Configure]). Whether the
// code of an orchestration is right is cheaper to find out with package
// replay/replaytest: there time is virtual, here it is real.
//
// # Guarantees
//
//  1. When Kill, Partition, Isolate or Pause has returned, nothing that is sent
//     from then on passes, in either direction. What was sent before may still
//     arrive.
//  2. What is cut is not lost but late: it goes on at Heal or Resume, unless one
//     of the ends has given up meanwhile. What was under way when a node was killed
//     is lost.
//  3. A test that has ended leaves nothing behind: no goroutine, no listener, no
//     file. It fails when a goroutine does not end, the user's activities included.
//     Connections that an HTTP client keeps for its next call are its own affair.
//  4. Tests with clusters of their own may run in parallel.
//
// # What may not be assumed
//
// That a killed node is a killed process: what it had handed to the operating system
// is there at its restart, and goroutines of the user's that are not the node's go
// on. To lose them, run nodes in processes of their own and kill those. That a paused
// node stands still: only what it sends and receives does. That nodes come to the
// same view at once: wait for it with [Cluster.Eventually].
package clustertest
