// Package keytest makes keys and certificates for tests.
package keytest
