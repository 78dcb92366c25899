package main

import (
	"bytes"
	"context"
	"testing"
)

// No fault is made that would have a new leader derive open work anew: whatever is forgotten
// stays so, and is seen. All kinds of calls are made.
func TestNothingIsForgottenWithoutFaults(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	var out bytes.Buffer
	record, shortcomings, err := wage(ctx, options{dir: t.TempDir(), seed: 1, out: &out, network: byEither, nodes: fleetSize, groups: 1})
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	verdict := judged(t, record, shortcomings, &out)
	if idle := verdict.Idle(); len(idle) > 0 {
		t.Error(idle)
	}
}
