package plugin

import (
	"testing"

	"github.com/golangci/plugin-module-register/register"

	"github.com/tenuto-dev/tenuto/replay/vet"
)

func TestPlugin_RegistersAnalyzer(t *testing.T) {
	open, err := register.GetPlugin("tenuto")
	if err != nil {
		t.Fatal(err)
	}
	linter, err := open(nil)
	if err != nil {
		t.Fatal(err)
	}
	analyzers, err := linter.BuildAnalyzers()
	if err != nil || len(analyzers) != 1 || analyzers[0] != vet.Analyzer {
		t.Errorf("analyzers %v: %v", analyzers, err)
	}
	if mode := linter.GetLoadMode(); mode != register.LoadModeTypesInfo {
		t.Errorf("load mode %s", mode)
	}
}

func TestPlugin_RejectsSettings(t *testing.T) {
	open, err := register.GetPlugin("tenuto")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open(map[string]any{"strict": true}); err == nil {
		t.Error("unknown settings are accepted")
	}
}
