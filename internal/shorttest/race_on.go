//go:build race

package shorttest

// Race reports whether the tests run with -race.
const Race = true
