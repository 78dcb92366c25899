package telemetry

import (
	"os"
	"regexp"
	"testing"
)

func TestMetrics_AllDescribed(t *testing.T) {
	described, err := os.ReadFile("../../METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := make(map[string]bool)
	for _, name := range regexp.MustCompile("(?m)^\\| `(tenuto[a-z._]+)`").FindAllSubmatch(described, -1) {
		documented[string(name[1])] = true
	}
	source, err := os.ReadFile("metricset.go")
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, name := range regexp.MustCompile(`"(tenuto\.[a-z._]+)"`).FindAllSubmatch(source, -1) {
		names[string(name[1])] = true
	}
	for _, f := range observables {
		names[f.name] = true
	}
	for name := range names {
		if !documented[name] {
			t.Errorf("METRICS.md does not describe %s", name)
		}
	}
	for name := range documented {
		if !names[name] {
			t.Errorf("METRICS.md describes %s, which does not exist", name)
		}
	}
}
