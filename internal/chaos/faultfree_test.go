package main

import (
	"bytes"
	"context"
	"testing"
)

// Without faults no new leader recovers open operations, so lost work stays lost and is seen. The
// clients make all kinds of calls.
func TestCampaign_FaultFree(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	var out bytes.Buffer
	record, shortcomings, err := runCampaign(ctx, options{dir: t.TempDir(), seed: 1, out: &out, network: networkAuto, nodes: fleetSize, partitions: 1})
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	result := checkRecord(t, record, shortcomings, &out)
	if idle := result.Uncovered(); len(idle) > 0 {
		t.Error(idle)
	}
}
