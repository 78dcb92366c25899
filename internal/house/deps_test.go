package house

import (
	"fmt"
	"go/build"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// heavyModules are modules that a package of orchestrations must not depend on, directly or
// indirectly.
var heavyModules = []string{"github.com/hashicorp", "github.com/asynkron", "google.golang.org/grpc", "go.etcd.io", "github.com/boltdb"}

// packageCountPattern matches the README's count of the packages that replay depends on.
var packageCountPattern = regexp.MustCompile("imports only `replay`\\s+builds (\\d+)\\s+packages")

// A package that imports only replay builds few packages, and the README states how many.
func TestDependencies_OfReplay(t *testing.T) {
	deps, err := dependencies(repositoryRoot, "replay")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range deps {
		if slices.ContainsFunc(heavyModules, func(module string) bool { return isWithin(path, module) }) {
			t.Errorf("replay depends on %s", path)
		}
	}
	readme, err := os.ReadFile(filepath.Join(repositoryRoot, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	sentence := packageCountPattern.FindSubmatch(readme)
	if sentence == nil {
		t.Fatalf("the README does not say that a package which imports only replay builds %d packages", len(deps))
	}
	if string(sentence[1]) != fmt.Sprint(len(deps)) {
		t.Errorf("the README says %s packages; there are %d:\n%s", sentence[1], len(deps), strings.Join(deps, "\n"))
	}
}

// Tests of orchestrations run on the real engine, without its storage and network.
func TestDependencies_OfReplaytest(t *testing.T) {
	deps, err := dependencies(repositoryRoot, "replay/replaytest")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range deps {
		for _, module := range []string{"github.com/cockroachdb", "github.com/hashicorp", "google.golang.org/grpc", "go.etcd.io"} {
			if isWithin(path, module) {
				t.Errorf("replay/replaytest depends on %s", path)
			}
		}
	}
}

// dependencies lists the packages outside the standard library that the package in dir depends on,
// including itself. Packages of the module are read here, not by the go command, so that a cached
// test result becomes invalid when they change. go.mod pins the others.
func dependencies(root, dir string) ([]string, error) {
	if _, err := os.ReadFile(filepath.Join(root, "go.mod")); err != nil {
		return nil, err
	}
	inside, outside := []string{dir}, []string{}
	for i := 0; i < len(inside); i++ {
		pkg, err := build.ImportDir(filepath.Join(root, inside[i]), 0)
		if err != nil {
			return nil, fmt.Errorf("read imports of %s: %w", inside[i], err)
		}
		for _, path := range pkg.Imports {
			below, isInside := strings.CutPrefix(path, modulePath+"/")
			switch {
			case isInside && !slices.Contains(inside, below):
				inside = append(inside, below)
			case !isInside && !isStandard(path):
				outside = append(outside, path)
			}
		}
	}
	if len(outside) == 0 {
		return modulePaths(inside), nil
	}
	list := exec.Command("go", append([]string{"list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}"}, outside...)...)
	list.Dir = root
	output, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list imports of %s: %w", dir, err)
	}
	deps := append(strings.Fields(string(output)), modulePaths(inside)...)
	slices.Sort(deps)
	return slices.Compact(deps), nil
}

// modulePaths returns the import paths of packages of the module, in order.
func modulePaths(dirs []string) []string {
	paths := make([]string, len(dirs))
	for i, dir := range dirs {
		paths[i] = modulePath + "/" + dir
	}
	slices.Sort(paths)
	return paths
}

func TestDependencies_AreTransitive(t *testing.T) {
	deps, err := dependencies(repositoryRoot, "cluster")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{modulePath + "/journal/state", "github.com/hashicorp/raft", "google.golang.org/protobuf/internal/impl"} {
		if !slices.Contains(deps, want) {
			t.Errorf("cluster does not depend on %s", want)
		}
	}
}
