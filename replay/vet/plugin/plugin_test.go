package plugin

import (
	"testing"

	"github.com/golangci/plugin-module-register/register"

	"github.com/tenuto-dev/tenuto/replay/vet"
)

func TestTheAnalyzerIsRegisteredAsTenuto(t *testing.T) {
	open, err := register.GetPlugin("tenuto")
	if err != nil {
		t.Fatal(err)
	}
	opened, err := open(nil)
	if err != nil {
		t.Fatal(err)
	}
	analyzers, err := opened.BuildAnalyzers()
	if err != nil || len(analyzers) != 1 || analyzers[0] != vet.Analyzer {
		t.Errorf("analyzers %v: %v", analyzers, err)
	}
	if mode := opened.GetLoadMode(); mode != register.LoadModeTypesInfo {
		t.Errorf("load mode %s", mode)
	}
}

func TestSettingsAreRefused(t *testing.T) {
	open, err := register.GetPlugin("tenuto")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open(map[string]any{"strict": true}); err == nil {
		t.Error("settings that mean nothing are taken")
	}
}
