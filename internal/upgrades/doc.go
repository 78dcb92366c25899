// Package upgrades tests upgrades with real processes of two builds: an earlier commit of this
// repository, and its present state. "make upgrades" runs it.
package upgrades
