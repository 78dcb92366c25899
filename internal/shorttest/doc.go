// Package shorttest lets the tests of several packages do less with -short or with -race.
package shorttest
