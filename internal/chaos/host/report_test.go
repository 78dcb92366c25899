package host

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
)

func TestInstancesOf_ConcurrentAndOrdered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count, each = 10 * readersMax, time.Millisecond
		ids := make([]string, count)
		for i := range ids {
			ids[i] = fmt.Sprint(i)
		}
		begin := time.Now()
		got, err := instancesOf(t.Context(), ids, func(_ context.Context, id string) (*evidence.Instance, error) {
			time.Sleep(each)
			if id == ids[7] {
				return nil, cluster.ErrNotFound
			}
			return &evidence.Instance{ID: id}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took != count/readersMax*each {
			t.Errorf("took %v; want %v, with %d at once", took, count/readersMax*each, readersMax)
		}
		want := append(ids[:7:7], ids[8:]...)
		if len(got) != len(want) {
			t.Fatalf("%d of %d are reported", len(got), len(want))
		}
		for i, instance := range got {
			if instance.ID != want[i] {
				t.Errorf("%s is reported in the place of %s", instance.ID, want[i])
			}
		}
	})
}

func TestInstancesOf_FailsIfOneFails(t *testing.T) {
	broken := errors.New("broken")
	got, err := instancesOf(t.Context(), []string{"a", "b"}, func(_ context.Context, id string) (*evidence.Instance, error) {
		if id == "b" {
			return nil, broken
		}
		return &evidence.Instance{ID: id}, nil
	})
	if !errors.Is(err, broken) || got != nil {
		t.Errorf("reported %v, %v", got, err)
	}
}
