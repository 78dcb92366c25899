// Package backup copies the whole state of a running cluster to a stream, and makes a new cluster
// from such streams.
//
//	info, err := backup.Write(ctx, client, file, backup.Options{})
//	…
//	info, err = backup.Restore(ctx, backup.Target{Dir: "data", NodeID: "n1", Address: "10.0.0.1:7000"}, file)
//
// A [Plan] makes the nodes do so at intervals, to a [Sink].
//
// # Guarantees
//
//  1. A backup has the state of all partitions at one moment that each of them could have been in,
//     with everything that was acknowledged before Write was called: no partition has an effect of
//     a message of another one that lacks the message (Chandy and Lamport, "Distributed Snapshots",
//     1985).
//  2. Nothing is stopped meanwhile. The files come from one node: by default one that leads
//     nothing, for an incremental backup that of its base, even if it leads by then.
//  3. Every file has a checksum, and so has the stream. Restore uses nothing that does not match.
//  4. Restore writes a directory as a whole or not at all. The restored cluster has the same IDs,
//     histories, settings, timers and schedules. Its cluster time continues as after an outage
//     since the backup, but not past the clock of the machine that restores: if the clock of the
//     leader was years behind, no timer fires early. Activities that were running are run again, as
//     after the loss of their worker.
//  5. An incremental backup has the new files of the state, or the entries of the log since its
//     base. With entries, Restore can go to points between the two; see [Point].
//  6. The restored cluster is another lineage: its first node has a new directory identity, so
//     nodes with directories of the old cluster are refused. They stop when they hear of it; see
//     package recovery.
//
// # What may not be assumed
//
//   - That a backup is secret: it has all payloads as the cluster has them, encrypted only if a
//     codec does so, and the key of signed tokens. The right that it needs is [ActionBackup].
//   - That what ran after the backup did not happen: activities of that time may be repeated. Their
//     signed tokens are refused, but a plain token ([replay.Attempt.Token]) of an activity that was
//     scheduled after the backup is taken for the activity with the same event_id in the restored
//     history, if the run began before the backup.
//   - That there is a point to restore to between two backups: the second must have points
//     ([Info.HasPoints]). A node that no longer has all entries since the base makes none.
//   - That the old cluster has ended: two lineages of one cluster ID must not serve the same
//     callers. A copy for a test needs another cluster ID ([Target]): otherwise nodes that it
//     reaches stop.
package backup
