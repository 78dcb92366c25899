package engine_test

import "testing"

// rounds returns how often a test with random input runs: as often as given, or an eighth of it
// with -short.
func rounds(all int) int {
	if testing.Short() {
		return max(all/8, 1)
	}
	return all
}
