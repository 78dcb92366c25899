package house

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
)

// topLevel lists everything that may be at the top level. A new entry needs a good reason and a
// line here.
var topLevel = []string{
	"CHANGELOG.md", "CONTRIBUTING.md", "GLOSSARY.md", "LICENSE", "Makefile", "README.md", "SECURITY.md", "go.mod", "go.sum", "go.work", "go.work.sum",
	"actors/", "bench/", "cluster/", "cmd/", "examples/", "internal/", "journal/", "proto/", "replay/",
}

// leftovers are files of running and testing that .gitignore ignores.
var leftovers = []string{"data", "*.test", "*.prof"}

func TestTopLevel(t *testing.T) {
	expectNoViolations(t, layoutViolations)
}

func layoutViolations(root string) ([]string, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	var violations []string
	for _, entry := range entries {
		name := entry.Name()
		if entry.IsDir() {
			name += "/"
		}
		if !slices.Contains(topLevel, name) && !isLeftover(entry.Name()) {
			violations = append(violations, fmt.Sprintf("%s has no place at the top level", name))
		}
	}
	return violations, nil
}

// isLeftover also ignores hidden entries, which belong to a developer's tools.
func isLeftover(name string) bool {
	return strings.HasPrefix(name, ".") || slices.ContainsFunc(leftovers, func(pattern string) bool {
		matched, err := path.Match(pattern, name)
		return err == nil && matched
	})
}

func TestTopLevel_Violations(t *testing.T) {
	expectViolations(t, layoutViolations, map[string]string{
		"README.md":       "",
		"journal/doc.go":  "",
		".ci/run":         "",
		".gitignore":      "",
		"data/node/log":   "",
		"cluster.test":    "",
		"cpu.prof":        "",
		"pkg/shop/doc.go": "",
		"main.go":         "",
		"replay":          "",
	},
		"pkg/ has no place",
		"main.go has no place",
		"replay has no place",
	)
}
