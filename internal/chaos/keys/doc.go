// Package keys issues the certificates of a run, and replaces them and their authority meanwhile.
package keys
