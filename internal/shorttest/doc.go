// Package shorttest chooses how much the tests of several packages do: less with -short or with
// -race, all of it with "make exhaustive", and more at once where tests mostly wait.
package shorttest
