package shorttest

import (
	"flag"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Cases returns how many of all cases a test tries that takes minutes for all: an eighth, a
// twentieth with -short or -race, at least one; all with "make exhaustive", which sets
// TENUTO_EXHAUSTIVE.
func Cases(all int) int {
	switch {
	case os.Getenv("TENUTO_EXHAUSTIVE") != "":
		return all
	case testing.Short() || Race:
		return max(all/20, 1)
	}
	return max(all/8, 1)
}

// Rounds returns how often a test with random input runs: as often as given, or an eighth of it, at
// least once, with -short.
func Rounds(all int) int {
	if testing.Short() {
		return max(all/8, 1)
	}
	return all
}

// SequentialRounds is Rounds for tests with one goroutine: -race finds nothing in them and makes
// them several times as slow, so they run an eighth as often with it.
func SequentialRounds(all int) int {
	if Race {
		all = max(all/8, 1)
	}
	return Rounds(all)
}

// Main runs the tests of a package that mostly wait. Without -race, one more of the parallel ones
// runs at once than there are processors, unless -parallel says how many. With more, leaders lose
// their majorities.
func Main(m *testing.M) (exitCode int) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue && !Race {
		if err := f.Value.Set(strconv.Itoa(runtime.GOMAXPROCS(0) + 1)); err != nil {
			panic(err)
		}
	}
	return m.Run()
}

// SkipUnless skips a test with -short, unless the name of the test that contains it is given.
func SkipUnless(t testing.TB, reason string, tests ...string) {
	t.Helper()
	name, _, _ := strings.Cut(t.Name(), "/")
	if testing.Short() && !slices.Contains(tests, name) {
		t.Skip(reason)
	}
}
