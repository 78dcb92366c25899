package house

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	// peersModule compares Tenuto with engines that require other versions of their dependencies.
	peersModule = "bench/peers"
	// rulesModule parses alerting rules with code of Prometheus, and contains nothing of Tenuto.
	rulesModule = "internal/tools/rulecheck"
	// manifestsModule decodes manifests with the types of Kubernetes, and contains nothing of
	// Tenuto.
	manifestsModule = "internal/tools/manifestcheck"
	// serverModule builds a server for tests, and contains nothing of Tenuto.
	serverModule = "internal/tools/s3server"
)

// moduleDirs lists the directories of all modules under root, beginning with the root itself.
func moduleDirs(root string) ([]string, error) {
	var dirs []string
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if base := entry.Name(); entry.IsDir() && (base == "testdata" || base == "data" || name != root && base[0] == '.') {
			return fs.SkipDir
		}
		if entry.Name() != "go.mod" {
			return nil
		}
		dir, err := filepath.Rel(root, filepath.Dir(name))
		dirs = append(dirs, filepath.ToSlash(dir))
		return err
	})
	slices.Sort(dirs)
	return dirs, err
}

// The tests of every module run with the versions that applications get.
func TestWorkspace_VersionsAreEqual(t *testing.T) {
	expectNoViolations(t, differentVersions)
}

func differentVersions(root string) ([]string, error) {
	dirs, err := moduleDirs(root)
	if err != nil {
		return nil, err
	}
	type requirement struct {
		dir, version string
		direct       bool
	}
	first := make(map[string]requirement)
	var violations []string
	for _, dir := range dirs {
		directives, err := readDirectives(filepath.Join(root, dir), "go.mod")
		if err != nil {
			return nil, err
		}
		for _, directive := range directives {
			if !isRequirement(directive) {
				continue
			}
			name, version := directive[1], directive[2]
			other, found := first[name]
			switch {
			case dir == rulesModule, dir == manifestsModule, dir == serverModule:
				continue
			case !found && dir != peersModule:
				first[name] = requirement{dir, version, isDirect(directive)}
			case found && version != other.version && (dir != peersModule || other.direct):
				violations = append(violations, fmt.Sprintf("%s/go.mod requires %s %s, %s/go.mod %s", dir, name, version, other.dir, other.version))
			}
		}
	}
	return violations, nil
}

// modulesPattern matches the modules that the Makefile checks and tests.
var modulesPattern = regexp.MustCompile(`(?m)^MODULES := (.*)$`)

func TestWorkspace_HasEveryModule(t *testing.T) {
	expectNoViolations(t, omittedModules)
}

// omittedModules finds modules that go.work or the Makefile do not name. Three have targets of
// their own, because their requirements would apply to the whole workspace.
func omittedModules(root string) ([]string, error) {
	dirs, err := moduleDirs(root)
	if err != nil {
		return nil, err
	}
	directives, err := readDirectives(root, "go.work")
	if err != nil {
		return nil, err
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		return nil, err
	}
	var used, made []string
	for _, directive := range directives {
		if directive[0] == "use" {
			used = append(used, filepath.ToSlash(filepath.Clean(directive[1])))
		}
	}
	if line := modulesPattern.FindSubmatch(makefile); line != nil {
		made = strings.Fields(string(line[1]))
	}
	var violations []string
	for _, dir := range dirs {
		if dir == peersModule || dir == rulesModule || dir == manifestsModule || dir == serverModule {
			continue
		}
		if !slices.Contains(used, dir) {
			violations = append(violations, fmt.Sprintf("go.work does not use %s", dir))
		}
		if !slices.Contains(made, dir) {
			violations = append(violations, fmt.Sprintf("MODULES in the Makefile does not name %s", dir))
		}
	}
	return violations, nil
}

func TestWorkspace_Violations(t *testing.T) {
	const require = "module example.org/%s\n\nrequire (\n\texample.org/a v1.%d.0\n\texample.org/b v1.%d.0 // indirect\n)\n"
	files := map[string]string{
		"go.mod":             fmt.Sprintf(require, "us", 0, 0),
		"bench/go.mod":       fmt.Sprintf(require, "us/bench", 0, 1),
		"bench/peers/go.mod": fmt.Sprintf(require, "us/bench/peers", 1, 1),
		"replay/vet/go.mod":  fmt.Sprintf(require, "us/replay/vet", 0, 0),
		"x/testdata/go.mod":  fmt.Sprintf(require, "us/x", 2, 2),
		"go.work":            "go 1.26.0\n\nuse (\n\t.\n\t./bench\n)\n",
		"Makefile":           "MODULES := . replay/vet\n",
	}
	expectViolations(t, differentVersions, files,
		"bench/go.mod requires example.org/b v1.1.0",
		"bench/peers/go.mod requires example.org/a v1.1.0",
	)
	expectViolations(t, omittedModules, files,
		"go.work does not use replay/vet",
		"does not name bench",
	)
}
