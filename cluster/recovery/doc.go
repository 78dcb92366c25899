// Package recovery makes a new cluster from the directories of nodes that are left after a cluster
// has lost the majority of its voters for good. The nodes must be stopped.
//
//	report, err := recovery.Inspect(ctx, "data")
//	…
//	report, err = recovery.Recover(ctx, recovery.Target{Dir: "data.recovered", Address: "10.0.0.1:7000"}, "data")
//
// # Guarantees
//
//  1. Inspect and Recover change nothing that the directories of survivors hold, also in a crash:
//     they can be used again as long as the new one was not. (Opening a database rewrites some of
//     its files.) Recover writes a new directory as a whole or not at all.
//  2. Of each partition, the new directory has all entries of the survivor with the highest term
//     and, of these, the highest index. No other survivor has an entry that this one lacks, except
//     for entries that were never committed.
//  3. The recovered cluster is another lineage: it has the new directory's node as its only member,
//     another directory identity and a higher epoch. It refuses nodes with directories of the old
//     cluster. An old node of this build stops for good, and records it in its directory, as soon
//     as it hears of the new lineage: it asks the members that it knows before it takes part in
//     anything; if it leads, it asks those that do not answer it every 5 s; and each connection for
//     Raft compares lineages in both directions. Remote clients and workers that have seen the new
//     lineage use no old node.
//  4. Each status of an instance that is older says so; see cluster.Status.
//
// # What may not be assumed
//
//   - That nothing acknowledged is lost: entries that only the lost nodes had are. The [Report]
//     bounds what these can have changed.
//   - That the partitions are of one moment: one may have an effect of a message that another one
//     has lost.
//   - That the old cluster cannot serve: a majority of it that returns while no address that it
//     knows leads to a node of the new lineage is the old cluster again, for clients that have not
//     seen the new one. Delete the directories of lost nodes, and start the new node at an address
//     of the old cluster.
//   - That a copy for a test is harmless: with the same cluster ID, and if nodes of the old cluster
//     reach it, they stop. The error names the file to delete. Use another cluster ID.
//   - That activities ran once: those that were open run again, as after the loss of their worker.
package recovery
