// Package cases contains the loads of the benchmarks: each [Case] is a load on real nodes,
// with real Raft and every write synced to disk, through the public API.
//
// A case starts its nodes (one, three in this process, or three in separate processes), warms
// them up, measures, and closes them. For nodes in separate processes the program is started
// again as such a node; it must call [RunAsNode] before anything else.
package cases
