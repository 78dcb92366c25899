// Package cases holds what the benchmarks do: each [Case] is a load on real
// nodes, with real Raft and every write synced to disk, through the API that
// applications use and no other.
//
// A case makes its nodes itself (one, three in this process, three in processes
// of their own), warms them up, measures, and closes them. A program that wants
// nodes in processes of their own is started again as such a node; it has to
// call [RunAsNode] before anything else.
package cases
