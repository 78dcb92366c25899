// Package shorttest lets the tests of several packages do less with -short.
package shorttest
