// Package addresstest chooses network addresses for tests.
package addresstest
