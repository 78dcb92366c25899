// Package waittest waits for conditions in tests of the journal, with a bound.
package waittest
