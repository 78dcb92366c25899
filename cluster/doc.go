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
// # What a client does
//
//   - It starts instances: [Call], [StartRun], with options for the version, the
//     time, tags, and what is to happen when the ID is taken.
//   - It gives them input: [Send] an event, [SendOrStart], [CallUpdate] to have
//     something done and answered, [Client.Cancel], [Client.Suspend],
//     [Client.Resume], [Client.Terminate], [Client.Retry].
//   - It asks: [Query] reads from the running code, [Client.Get] and
//     [Client.Pending] tell what an instance is doing, [Client.Wait] and
//     [Run.Wait] how it ended, [Client.History] and [Client.Executions] what it
//     did, [Client.Watch] what it does, event by event as they commit.
//   - It finds: [Client.List] and [Client.Count] by state, name, version, tags,
//     parent, time.
//   - It clears away: [Client.Purge], and by itself with Config.Retention.
//
// Functions are typed by the handles of package replay; methods are not.
//
// # Guarantees
//
//  1. A start, an event, an update or a result that was acknowledged is on the
//     disks of a majority of the nodes.
//  2. A call to any node reaches the leader, through changes of leadership, until
//     it is answered or its context ends.
//  3. An error says whether nothing happened or whether the outcome is unknown
//     (see [UnavailableError]). Calls carry a request ID, so that their own
//     repetitions have no second effect, and get the answer that was lost, also
//     when the instance has ended since. A user who names a call ([RequestID],
//     [EventID], [UpdateID]) can repeat it in the same way.
//  4. What Get, List, Count, History and Executions return was true at some
//     moment of the call, on every node alike (linearizable), unless [Stale] asks
//     for less.
//  5. What [Client.Watch], the Wait methods and [CallUpdate] see is committed,
//     and no event is left out; how late it is depends on this node.
//  6. An update is carried out once, or not at all, and then its caller is told.
//  7. Retention and Purge remove nothing that runs, and nothing that a relative
//     still needs.
//  8. [Node.Close] ends every goroutine of the node, except activities that do
//     not heed the end of their context.
//
// # What may not be assumed
//
// Progress without a majority; that an activity runs once; that nodes on
// anything but loopback can talk without TLS (they refuse); that a request ID is
// still known after the instance was purged, or when 256 other inputs and a
// continue-as-new have come since.
package cluster
