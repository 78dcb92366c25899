package plugin

import (
	"fmt"

	"github.com/golangci/plugin-module-register/register"
	"golang.org/x/tools/go/analysis"

	"github.com/tenuto-dev/tenuto/replay/vet"
)

func init() { register.Plugin("tenuto", newPlugin) }

// plugin returns the analyzer to golangci-lint.
type plugin struct{}

func newPlugin(settings any) (register.LinterPlugin, error) {
	if settings != nil {
		return nil, fmt.Errorf("tenuto: the linter has no settings, got %v", settings)
	}
	return plugin{}, nil
}

func (plugin) BuildAnalyzers() ([]*analysis.Analyzer, error) {
	return []*analysis.Analyzer{vet.Analyzer}, nil
}

// GetLoadMode requests types: the type of a parameter identifies orchestration code.
func (plugin) GetLoadMode() string { return register.LoadModeTypesInfo }
