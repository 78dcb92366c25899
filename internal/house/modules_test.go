package house

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

type pin struct{ module, version string }

// pinnedModules are versions known to work together. For some of these modules "@latest" is an
// older version, so that an upgrade breaks the build. Without an entry, the version is whatever
// another module requires.
var pinnedModules = []pin{
	{"github.com/asynkron/protoactor-go", "v0.0.0-20260118094027-288962e52f3f"},
	{"github.com/hashicorp/raft", "v1.8.0"},
	{"github.com/hashicorp/raft-boltdb/v2", "v2.4.2"},
	{"go.etcd.io/bbolt", "v1.5.0"},
	{"google.golang.org/grpc", "v1.85.0"},
	{"google.golang.org/protobuf", "v1.36.12"},
}

// pinnedToolModules generate and check code. The plugin and the runtime of protobuf must have the
// same version.
var pinnedToolModules = []pin{
	{"google.golang.org/protobuf", "v1.36.12"},
	{"honnef.co/go/tools", "v0.8.2"},
}

// allowedRequirements are all modules that the packages of the root module import, tests included.
// What applications do not link belongs into another module.
var allowedRequirements = []string{
	"github.com/asynkron/protoactor-go",
	"github.com/cespare/xxhash/v2",
	"github.com/cockroachdb/pebble/v2",
	"github.com/google/go-cmp", // of tests alone
	"github.com/hashicorp/go-hclog",
	"github.com/hashicorp/raft",
	"github.com/hashicorp/raft-boltdb/v2",
	"github.com/netresearch/go-cron",
	"github.com/prometheus/client_golang",
	"go.etcd.io/bbolt",
	"go.opentelemetry.io/otel",
	"go.opentelemetry.io/otel/exporters/prometheus",
	"go.opentelemetry.io/otel/metric",
	"go.opentelemetry.io/otel/sdk",
	"go.opentelemetry.io/otel/sdk/metric",
	"go.opentelemetry.io/otel/trace",
	"golang.org/x/sync",
	"golang.org/x/sys",
	"google.golang.org/grpc",
	"google.golang.org/protobuf",
}

func TestModules(t *testing.T) {
	expectNoViolations(t, moduleViolations(pinnedModules))
}

func TestModules_Requirements(t *testing.T) {
	expectNoViolations(t, requirementViolations(allowedRequirements))
}

func TestToolModules(t *testing.T) {
	expectNoViolations(t, func(root string) ([]string, error) {
		return moduleViolations(pinnedToolModules)(filepath.Join(root, "internal", "tools"))
	})
}

// "go install" rejects a module that replaces, and a replacement does not reach those who import
// one.
func TestOtherModules(t *testing.T) {
	for _, dir := range otherModules {
		expectNoViolations(t, func(root string) ([]string, error) {
			return moduleViolations(nil)(filepath.Join(root, dir))
		})
	}
}

// requirementViolations finds direct requirements of the root module that are not allowed.
func requirementViolations(allowed []string) func(root string) ([]string, error) {
	return func(root string) ([]string, error) {
		directives, err := readDirectives(root, "go.mod")
		if err != nil {
			return nil, err
		}
		var violations []string
		for _, directive := range directives {
			if isDirect(directive) && !slices.Contains(allowed, directive[1]) {
				violations = append(violations, fmt.Sprintf("go.mod must not require %s: applications do not link it", directive[1]))
			}
		}
		return violations, nil
	}
}

func isRequirement(directive []string) bool { return len(directive) >= 3 && directive[0] == "require" }

func isDirect(directive []string) bool { return isRequirement(directive) && len(directive) == 3 }

func moduleViolations(pins []pin) func(root string) ([]string, error) {
	return func(root string) ([]string, error) {
		directives, err := readDirectives(root, "go.mod")
		if err != nil {
			return nil, err
		}
		var violations []string
		for _, directive := range directives {
			// Both directives are ignored by modules that import this one, which would then build
			// something that we did not test.
			if directive[0] == "replace" || directive[0] == "exclude" {
				violations = append(violations, "go.mod: no "+strings.Join(directive, " "))
			}
		}
		return append(violations, versionViolations(pins, directives)...), nil
	}
}

func versionViolations(pins []pin, directives [][]string) []string {
	var violations []string
	for _, pin := range pins {
		at := slices.IndexFunc(directives, func(d []string) bool {
			return isRequirement(d) && d[1] == pin.module
		})
		if at < 0 {
			violations = append(violations, fmt.Sprintf("go.mod does not require %s %s", pin.module, pin.version))
		} else if version := directives[at][2]; version != pin.version {
			violations = append(violations, fmt.Sprintf("go.mod requires %s %s; pinned is %s", pin.module, version, pin.version))
		}
	}
	return violations
}

// readDirectives returns the directives of a go.mod or go.work.
func readDirectives(dir, name string) ([][]string, error) {
	content, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	return directivesOf(string(content)), nil
}

// directivesOf splits a go.mod into its directives. Each is a list of words that begins with the
// directive's name, also within a block, and ends with "indirect" if a comment says so.
func directivesOf(content string) [][]string {
	var directives [][]string
	block := ""
	for line := range strings.Lines(content) {
		line, comment, _ := strings.Cut(line, "//")
		// A block may open without a space before the parenthesis.
		words := strings.Fields(strings.ReplaceAll(line, "(", " ( "))
		if len(words) > 0 && strings.TrimSpace(comment) == "indirect" {
			words = append(words, "indirect")
		}
		switch {
		case len(words) == 0:
		case words[0] == ")":
			block = ""
		case block != "":
			directives = append(directives, append([]string{block}, words...))
		case len(words) == 2 && words[1] == "(":
			block = words[0]
		default:
			directives = append(directives, words)
		}
	}
	return directives
}

func TestModules_Violations(t *testing.T) {
	pins := []pin{{"example.org/a", "v1.0.0"}, {"example.org/b", "v1.2.0"}, {"example.org/c", "v1.0.0"}, {"example.org/d/v2", "v2.0.0"}}
	files := map[string]string{"go.mod": `module example.org/us // not: replace

require example.org/a v1.0.0 // indirect

require (
	example.org/b v1.1.0
	// example.org/c v1.0.0
	example.org/d/v2 v2.0.0
)

replace example.org/a => ../a

replace(
	example.org/b v1.1.0 => example.org/e v1.0.0
)

exclude example.org/f v1.0.0
`}
	expectViolations(t, moduleViolations(pins), files,
		"no replace example.org/a",
		"no replace example.org/b",
		"no exclude example.org/f",
		"requires example.org/b v1.1.0; pinned is v1.2.0",
		"does not require example.org/c v1.0.0",
	)
}

func TestModules_RequirementViolations(t *testing.T) {
	files := map[string]string{"go.mod": `module example.org/us

require example.org/a v1.0.0

require (
	example.org/b v1.0.0
	example.org/c v1.0.0 // indirect
)
`}
	expectViolations(t, requirementViolations([]string{"example.org/a"}), files, "must not require example.org/b")
}
