package main

import (
	"bytes"
	"context"
	"testing"

	"github.com/tenuto-dev/tenuto/internal/chaos/host"
	"github.com/tenuto-dev/tenuto/internal/chaos/judge"
	"github.com/tenuto-dev/tenuto/replay"
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
	registry, err := replay.NewRegistry(host.Orchestrations()...)
	if err != nil {
		t.Fatal(err)
	}
	verdict := judge.Judge(record, registry)
	verdict.Report(&out)
	t.Log(out.String())
	for _, violation := range verdict.Violations {
		t.Errorf("%s: %s", violation.Invariant, violation.Detail)
	}
	if len(shortcomings) > 0 {
		t.Error(shortcomings)
	}
	if idle := verdict.Idle(); len(idle) > 0 {
		t.Error(idle)
	}
}
