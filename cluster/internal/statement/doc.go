// Package statement encodes what the leader of a partition signs. Packages comparison and proof use
// it; package proof documents the bytes.
package statement
