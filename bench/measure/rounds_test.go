package measure

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// scripted returns a subject that records that it ran.
func scripted(t *testing.T, name string, ran *[]string, baselines ...*Subject) *Subject {
	return &Subject{Name: name, Baselines: baselines, Run: func(_ context.Context, dir string, progress func(string)) (*Result, error) {
		*ran = append(*ran, name)
		progress("under way")
		if err := os.WriteFile(filepath.Join(dir, "data"), nil, 0o644); err != nil {
			t.Error(err)
		}
		r := &Result{}
		r.Add(Metric{Name: name, Value: float64(len(*ran))})
		return r, nil
	}}
}

func TestPlan_BaselinesRunBeforeSubjects(t *testing.T) {
	var ran []string
	disk := scripted(t, "disk", &ran)
	plan := Plan{Subjects: []*Subject{scripted(t, "a", &ran, disk), scripted(t, "b", &ran), scripted(t, "c", &ran, disk)}, Repeat: 2, Dir: t.TempDir()}
	results, err := plan.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(ran, " "), "disk a b disk c disk a b disk c"; got != want {
		t.Errorf("ran %q; want %q", got, want)
	}
	if len(results) != 4 || results[0].Name != "disk" || len(results[0].Results) != 4 {
		t.Fatalf("measured %d subjects, the first %+v", len(results), results[0])
	}
	if a := results[1]; a.Baselines[0]["disk"] != 1 || a.Baselines[1]["disk"] != 6 {
		t.Errorf("a has the baselines %v; want those that ran directly before it", a.Baselines)
	}
	if left, err := os.ReadDir(plan.Dir); err != nil || len(left) > 0 {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
}

func TestPlan_ReturnsResultsBeforeError(t *testing.T) {
	var ran []string
	broken := errors.New("broken")
	plan := Plan{Repeat: 1, Dir: t.TempDir(), Subjects: []*Subject{
		scripted(t, "a", &ran),
		{Name: "b", Run: func(context.Context, string, func(string)) (*Result, error) { return nil, broken }},
	}}
	results, err := plan.Run(t.Context())
	if !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), "b: ") {
		t.Errorf("the error is %v", err)
	}
	if len(results) != 2 || len(results[0].Results) != 1 || len(results[1].Results) != 0 {
		t.Errorf("measured %+v", results)
	}
}

func TestThisMachine(t *testing.T) {
	m := ThisMachine(t.TempDir())
	if m.Cores < 1 || m.GOMAXPROCS < 1 || m.Go == "" || m.OS == "" {
		t.Errorf("%+v", m)
	}
}

// sink prevents the compiler from optimizing allocations away.
var sink []byte

func TestMeter_CountsAllocations(t *testing.T) {
	r := &Result{}
	meter := StartMeter()
	const operations, size = 100, 1 << 20
	for range operations {
		sink = make([]byte, size)
	}
	meter.Stop(r, "makes", operations)
	bytes, ok := r.Metric(MetricKey{Name: "makes: allocated each"})
	if !ok || bytes < size {
		t.Errorf("%v bytes each, %v; want at least %d", bytes, ok, size)
	}
}
