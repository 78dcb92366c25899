package shorttest

import (
	"slices"
	"strings"
	"testing"
)

// Rounds returns how often a test with random input runs: as often as given, or an eighth of it, at
// least once, with -short.
func Rounds(all int) int {
	if testing.Short() {
		return max(all/8, 1)
	}
	return all
}

// SequentialRounds is Rounds for tests with one goroutine: -race finds nothing in them and makes
// them several times as slow, so they run a quarter as often with it.
func SequentialRounds(all int) int {
	if Race {
		all = max(all/4, 1)
	}
	return Rounds(all)
}

// SkipUnless skips a test with -short, unless the name of the test that contains it is given.
func SkipUnless(t testing.TB, reason string, tests ...string) {
	t.Helper()
	name, _, _ := strings.Cut(t.Name(), "/")
	if testing.Short() && !slices.Contains(tests, name) {
		t.Skip(reason)
	}
}
