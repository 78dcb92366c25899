package main

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"
)

// testTimeout ends a test that hangs.
const testTimeout = 2 * time.Minute

func TestLoads_EveryEngine(t *testing.T) {
	for _, e := range engines {
		for _, l := range loads {
			t.Run(l.name+", "+e.name(), func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
				defer cancel()
				result, err := l.measure(ctx, e, amounts{hellos: 10, concurrency: 5, steps: 10}, t.TempDir())
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range result.Metrics {
					if f.Unit != "" && f.Value <= 0 {
						t.Errorf("%s: %v %s", f.Name, f.Value, f.Unit)
					}
				}
			})
		}
	}
}

func TestFlags_Validated(t *testing.T) {
	for _, arguments := range []string{"-repeat 0", "-n -1", "-c -1", "more", "-n many"} {
		if _, err := parse(strings.Fields(arguments), io.Discard); err == nil {
			t.Errorf("%s is accepted", arguments)
		}
	}
}
