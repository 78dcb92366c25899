// Package cluster runs Tenuto inside an application: a node, the nodes around
// it, and the client through which instances are started, told things and
// waited for.
//
//	node, err := cluster.Start(ctx, cluster.Config{
//		Dir:         "data",
//		Definitions: []replay.Definition{Greet.Bind(greet), Hello.Bind(hello)},
//	})
//	...
//	greeting, err := cluster.Call(ctx, node.Client(), Hello, "hello-1", "Ada")
//
// One node with a directory is a complete system. Three make one that goes on
// when any of them dies.
//
// The package guarantees:
//
//  1. A start, an event or a result that was acknowledged is on the disks of a
//     majority of the nodes.
//  2. A call to any node reaches the leader, through changes of leadership, until
//     it is answered or its context ends.
//  3. An error says whether nothing happened or whether the outcome is unknown
//     (see [UnavailableError]). Calls carry a request ID, so that their own
//     repetitions have no second effect.
//  4. What Get and History return was true at some moment of the call, on every
//     node alike (linearizable).
//  5. [Node.Close] ends every goroutine of the node, except activities that do
//     not heed the end of their context.
//
// What may not be assumed: progress without a majority; that an activity runs
// once; that nodes on anything but loopback can talk without TLS (they refuse).
package cluster
