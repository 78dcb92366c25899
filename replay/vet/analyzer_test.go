package vet

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"
)

// Every rule has a package under testdata/src/rules, with violations and with similar correct
// code.
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
	analysistest.Run(ignoreExtraFacts{t}, gopath(t), Analyzer, packages...)
}

// ignoreExtraFacts ignores facts without expectations: nearly every orchestration makes
// durable calls.
type ignoreExtraFacts struct{ *testing.T }

func (i ignoreExtraFacts) Errorf(format string, arguments ...any) {
	if text := fmt.Sprintf(format, arguments...); !strings.Contains(text, ": unexpected fact: ") {
		i.T.Error(text)
	}
}
