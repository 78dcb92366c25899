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

// heavy are modules that no author's package may pull in, however indirectly.
var heavy = []string{"github.com/hashicorp", "github.com/asynkron", "google.golang.org/grpc", "go.etcd.io", "github.com/boltdb"}

// builtSentence is how the README says what replay pulls in.
var builtSentence = regexp.MustCompile("imports only `replay`\\s+builds (\\d+)\\s+packages")

// A package that imports only replay builds little, and the README says how
// little.
func TestWhatAnAuthorsPackageBuilds(t *testing.T) {
	deps, err := dependencies(repository, "replay")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range deps {
		if slices.ContainsFunc(heavy, func(module string) bool { return isWithin(path, module) }) {
			t.Errorf("replay pulls in %s", path)
		}
	}
	readme, err := os.ReadFile(filepath.Join(repository, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	said := builtSentence.FindSubmatch(readme)
	if said == nil {
		t.Fatalf("the README does not say that a package which imports only replay builds %d packages", len(deps))
	}
	if string(said[1]) != fmt.Sprint(len(deps)) {
		t.Errorf("the README says %s packages; there are %d:\n%s", said[1], len(deps), strings.Join(deps, "\n"))
	}
}

// An author's tests run on the real engine, without what puts it on disks and
// networks.
func TestWhatAnAuthorsTestBuilds(t *testing.T) {
	deps, err := dependencies(repository, "replay/replaytest")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range deps {
		for _, module := range []string{"github.com/cockroachdb", "github.com/hashicorp", "google.golang.org/grpc", "go.etcd.io"} {
			if isWithin(path, module) {
				t.Errorf("replay/replaytest pulls in %s", path)
			}
		}
	}
}

// dependencies lists the packages outside of the standard library that building
// the package in dir takes, itself among them. Those of the module are read here
// and not by the go command, so that the test's result is not kept when they
// change; those outside are as go.mod pins them.
func dependencies(root, dir string) ([]string, error) {
	if _, err := os.ReadFile(filepath.Join(root, "go.mod")); err != nil {
		return nil, err
	}
	inside, outside := []string{dir}, []string{}
	for i := 0; i < len(inside); i++ {
		read, err := build.ImportDir(filepath.Join(root, inside[i]), 0)
		if err != nil {
			return nil, fmt.Errorf("read imports of %s: %w", inside[i], err)
		}
		for _, path := range read.Imports {
			below, isInside := strings.CutPrefix(path, modulePath+"/")
			switch {
			case isInside && !slices.Contains(inside, below):
				inside = append(inside, below)
			case !isInside && !isStandard(path):
				outside = append(outside, path)
			}
		}
	}
	list := exec.Command("go", append([]string{"list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}"}, outside...)...)
	list.Dir = root
	output, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list what %s imports: %w", dir, err)
	}
	deps := strings.Fields(string(output))
	for _, below := range inside {
		deps = append(deps, modulePath+"/"+below)
	}
	slices.Sort(deps)
	return slices.Compact(deps), nil
}

func TestDependenciesAreFoundBelowThose(t *testing.T) {
	deps, err := dependencies(repository, "cluster")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{modulePath + "/journal/state", "github.com/hashicorp/raft", "google.golang.org/protobuf/internal/impl"} {
		if !slices.Contains(deps, want) {
			t.Errorf("cluster builds no %s", want)
		}
	}
}
