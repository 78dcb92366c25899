// Package lineage compares the lineages of a cluster. A cluster that is restored from a backup, or
// recovered after the loss of a majority, continues as a new lineage; the directories of the nodes
// before that are of an earlier one. Each lineage has a random ID.
package lineage
