// Package dnstest is a DNS server for tests, whose records change.
//
// # Guarantees
//
// An answer has the records of the last calls of [Server.Set] and [Server.SetTargets] that returned
// before the question came.
//
// # What may not be assumed
//
// That the server checks the name in a question: it has the same records for every name.
package dnstest
