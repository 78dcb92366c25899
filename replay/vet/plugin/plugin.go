package plugin

import (
	"fmt"

	"github.com/golangci/plugin-module-register/register"
	"golang.org/x/tools/go/analysis"

	"github.com/tenuto-dev/tenuto/replay/vet"
)

func init() { register.Plugin("tenuto", open) }

// plugin is what golangci-lint asks for the analyzer.
type plugin struct{}

func open(settings any) (register.LinterPlugin, error) {
	if settings != nil {
		return nil, fmt.Errorf("tenuto: there are no settings, got %v", settings)
	}
	return plugin{}, nil
}

func (plugin) BuildAnalyzers() ([]*analysis.Analyzer, error) {
	return []*analysis.Analyzer{vet.Analyzer}, nil
}

// GetLoadMode asks for types: orchestration code is told by the type of its
// parameter.
func (plugin) GetLoadMode() string { return register.LoadModeTypesInfo }
