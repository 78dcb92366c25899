package baseline

import (
	"context"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/bench/measure"
)

// testTimeout ends a test that hangs.
const testTimeout = 3 * time.Minute

func TestBaselines_HaveMetrics(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for _, c := range []struct {
		subject *measure.Subject
		figures []string
	}{
		{Sync(10), []string{SyncP50, SyncP99}},
		{Commit(1, 100, 10), []string{CommitP50, CommitP99}},
		{Packed(1, 100, 10), []string{PackedRecords}},
		{Commit(3, 100, 10), []string{CommitP50, CommitP99}},
		{Packed(3, 100, 10), []string{PackedRecords}},
	} {
		t.Run(c.subject.Name, func(t *testing.T) {
			result, err := c.subject.Run(ctx, t.TempDir(), func(string) {})
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range c.figures {
				if v, ok := result.Metric(measure.MetricKey{Name: name}); !ok || v <= 0 {
					t.Errorf("%s: %v, %v", name, v, ok)
				}
			}
		})
	}
}

func TestCommit_StopsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Commit(3, 100, 1).Run(ctx, t.TempDir(), func(string) {}); err == nil {
		t.Error("no error after the context has ended")
	}
}
