// Package clustertest runs a cluster inside a test: real nodes with journals on disk, connected
// over loopback. The test can kill, disconnect, pause and restart them.
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
// Use it for what needs a cluster: services around the orchestrations, activities on unreachable
// nodes, rolling upgrades ([Configure]). To test the code of an orchestration, package
// replay/replaytest is faster: its time is virtual, here time is real.
//
// # Guarantees
//
//  1. After Kill, Disconnect, Isolate or Pause has returned, nothing sent from
//     then on passes, in either direction. What was sent before may still arrive.
//  2. Blocked traffic is delayed, not lost: it continues at Heal or Resume, unless
//     one of the ends has timed out meanwhile. Traffic in flight when a node was
//     killed is lost.
//  3. When a test has finished, no goroutine, listener or file of its cluster remains. The test
//     fails if a goroutine does not end, including those of activities. Pooled connections of an
//     HTTP client do not count.
//  4. Tests with their own clusters may run in parallel.
//
// # What may not be assumed
//
// Do not assume that a killed node is a killed process. What it had handed to the operating system
// is there at its restart, and goroutines that the application started outside the node continue.
// To lose both, run nodes in their own processes and kill those. A paused node keeps running: only
// its traffic stops. Nodes do not see a change at the same time: wait for it with
// [Cluster.Eventually].
package clustertest
