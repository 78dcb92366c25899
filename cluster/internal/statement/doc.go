// Package statement encodes what the leader of a partition signs, and computes Merkle trees.
// Packages comparison and proof use it; package proof documents the bytes.
package statement
