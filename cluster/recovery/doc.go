// Package recovery makes a new cluster from the directories of nodes that are left after a cluster has
// lost the majority of its voters for good. The nodes must be stopped.
//
//	report, err := recovery.Inspect(ctx, "data")
//	…
//	report, err = recovery.Recover(ctx, recovery.Target{Dir: "data.recovered", Address: "10.0.0.1:7000"}, "data")
//
// # Guarantees
//
//  1. Inspect changes nothing. Recover writes a new directory as a whole or not at all, and does not change
//     those that it reads: they can be used again as long as the new one was not.
//  2. Of each partition, the new directory has all entries of the survivor with the highest term and, of
//     these, the highest index. No other survivor has an entry that this one lacks, except for entries that
//     were never committed.
//  3. The recovered cluster is another lineage: it has the new directory's node as its only member, another
//     directory identity and a higher epoch. Nodes with directories of the old cluster are refused.
//  4. Each status of an instance that is older says so; see cluster.Status.
//
// # What may not be assumed
//
//   - That nothing acknowledged is lost: entries that only the lost nodes had are. The [Report] bounds
//     what these can have changed.
//   - That the partitions are of one moment: one may have an effect of a message that another one has lost.
//   - That the lost nodes stay lost: a majority of them that returns with its directories is the old
//     cluster again. Delete their directories.
//   - That activities ran once: those that were open run again, as after the loss of their worker.
package recovery
