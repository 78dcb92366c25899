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

// SkipUnless skips a test with -short, unless the name of the test that contains it is given.
func SkipUnless(t testing.TB, reason string, tests ...string) {
	t.Helper()
	name, _, _ := strings.Cut(t.Name(), "/")
	if testing.Short() && !slices.Contains(tests, name) {
		t.Skip(reason)
	}
}
