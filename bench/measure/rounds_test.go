package measure

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// scripted returns a subject that writes down that it ran.
func scripted(t *testing.T, name string, ran *[]string, yardsticks ...*Subject) *Subject {
	return &Subject{Name: name, Yardsticks: yardsticks, Run: func(_ context.Context, dir string, progress func(string)) (*Result, error) {
		*ran = append(*ran, name)
		progress("under way")
		if err := os.WriteFile(filepath.Join(dir, "data"), nil, 0o644); err != nil {
			t.Error(err)
		}
		r := &Result{}
		r.Add(Figure{Name: name, Value: float64(len(*ran))})
		return r, nil
	}}
}

func TestRoundsTakeTurnsAndYardsticksComeRightBefore(t *testing.T) {
	var ran []string
	disk := scripted(t, "disk", &ran)
	plan := Plan{Subjects: []*Subject{scripted(t, "a", &ran, disk), scripted(t, "b", &ran), scripted(t, "c", &ran, disk)}, Repeat: 2, Dir: t.TempDir()}
	measured, err := plan.Rounds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(ran, " "), "disk a b disk c disk a b disk c"; got != want {
		t.Errorf("ran %q; want %q", got, want)
	}
	if len(measured) != 4 || measured[0].Name != "disk" || len(measured[0].Results) != 4 {
		t.Fatalf("measured %d subjects, the first %+v", len(measured), measured[0])
	}
	if a := measured[1]; a.Yardsticks[0]["disk"] != 1 || a.Yardsticks[1]["disk"] != 6 {
		t.Errorf("a has the yardsticks %v; want those that ran right before it", a.Yardsticks)
	}
	if left, err := os.ReadDir(plan.Dir); err != nil || len(left) > 0 {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
}

func TestWhatWasMeasuredBeforeAnErrorIsReturned(t *testing.T) {
	var ran []string
	broken := errors.New("broken")
	plan := Plan{Repeat: 1, Dir: t.TempDir(), Subjects: []*Subject{
		scripted(t, "a", &ran),
		{Name: "b", Run: func(context.Context, string, func(string)) (*Result, error) { return nil, broken }},
	}}
	measured, err := plan.Rounds(t.Context())
	if !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), "b: ") {
		t.Errorf("the error is %v", err)
	}
	if len(measured) != 2 || len(measured[0].Results) != 1 || len(measured[1].Results) != 0 {
		t.Errorf("measured %+v", measured)
	}
}

func TestThisMachineIsDescribed(t *testing.T) {
	m := ThisMachine(t.TempDir())
	if m.Cores < 1 || m.GOMAXPROCS < 1 || m.Go == "" || m.OS == "" {
		t.Errorf("%+v", m)
	}
}

// sink keeps what it holds from being optimised away.
var sink []byte

func TestAMeterCountsAllocations(t *testing.T) {
	r := &Result{}
	meter := StartMeter()
	const operations, size = 100, 1 << 20
	for range operations {
		sink = make([]byte, size)
	}
	meter.Stop(r, "makes", operations)
	bytes, ok := r.Figure(Key{Name: "makes: allocated each"})
	if !ok || bytes < size {
		t.Errorf("%v bytes each, %v; want at least %d", bytes, ok, size)
	}
}
