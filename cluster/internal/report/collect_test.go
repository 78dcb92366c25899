package report

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// Nodes that do not answer in time have an error; those that do are there, in order of their IDs.
func TestCollect_NodesThatDoNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		addresses := make(map[string]string)
		for i := range 2 * nodesMax {
			addresses[fmt.Sprintf("n%02d", i)] = fmt.Sprintf("10.0.0.%d:7400", i)
		}
		begun := time.Now()
		answers := Collect(t.Context(), addresses, func(ctx context.Context, node, address string) (*clusterpb.NodeReport, error) {
			if addresses[node] != address {
				t.Errorf("%s at %s", node, address)
			}
			if node == "n03" || node == "n50" {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return &clusterpb.NodeReport{Node: node}, nil
		})
		if elapsed := time.Since(begun); elapsed != Timeout {
			t.Errorf("took %v; want %v", elapsed, Timeout)
		}
		if len(answers) != len(addresses) {
			t.Fatalf("%d answers", len(answers))
		}
		for i, a := range answers {
			silent := i == 3 || i == 50
			if a.Node != fmt.Sprintf("n%02d", i) || errors.Is(a.Err, context.DeadlineExceeded) != silent || (a.Report == nil) != silent {
				t.Errorf("answer %d: %+v", i, a)
			}
		}
	})
}
