package vet

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"
)

// Every rule has a package under testdata/src/rules, with code that breaks it
// and code that comes close and does not.
func TestRules(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir("testdata/src/rules")
	if err != nil {
		t.Fatal(err)
	}
	var packages []string
	for _, entry := range entries {
		packages = append(packages, "rules/"+entry.Name())
	}
	analysistest.Run(wantedFacts{t}, gopath(t), Analyzer, packages...)
}

// wantedFacts ignores facts for which a file has no expectation: nearly every
// orchestration makes durable calls.
type wantedFacts struct{ *testing.T }

func (w wantedFacts) Errorf(format string, arguments ...any) {
	if text := fmt.Sprintf(format, arguments...); !strings.Contains(text, ": unexpected fact: ") {
		w.T.Error(text)
	}
}
