package house

import (
	"fmt"
	"go/build"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mayImport draws the picture: which parts of the module each part may import
// besides itself. A part is a top-level directory with all below it that is no
// part of its own here, and under proto/ one schema. Imports point down only.
var mayImport = map[string][]string{
	"examples":           {"cluster", "replay"},
	"cmd":                {"cluster", "replay", "replay/vet"},
	"bench":              {"cluster", "replay", "proto/clusterpb", "proto/journalpb"},
	"cluster":            {"journal", "journal/state", "actors", "replay", "proto/clusterpb", "proto/journalpb", "internal/clustertime", "internal/logqueue", "internal/rig", "internal/slots"},
	"actors":             {"replay", "proto/journalpb", "internal/clustertime"},
	"cluster/prometheus": {"cluster"},
	"journal":            {"journal/state", "journal/state/pebblestore", "proto/journalpb", "internal/clustertime", "internal/logqueue"},
	"journal/state":      {"journal/state/store", "proto/journalpb", "internal/clustertime"},
	// What the state asks of a database, and the one that there is.
	"journal/state/store":       {},
	"journal/state/pebblestore": {"journal/state/store"},
	"replay":                    {"proto/journalpb", "internal/goroutine"},
	"replay/vet":                {},
	// The real engine under an author's tests: all but Raft, network and disk.
	"replay/replaytest": {"actors", "journal/state", "replay", "proto/journalpb"},
	"proto/clusterpb":   {"proto/journalpb"},
	"proto/journalpb":   {},
	"internal":          {},
	"internal/chaos":    {"cluster", "cluster/prometheus", "replay", "proto/journalpb", "internal/rig", "internal/slots"},
	// The type of what leaders record, and compare with what was recorded.
	"internal/clustertime": {},
	// Whether a durable call comes from the goroutine that may make it.
	"internal/goroutine": {},
	// What harnesses may ask of a node.
	"internal/rig":      {},
	"internal/logqueue": {},
	"internal/slots":    {},
}

// kept names the only parts that may import a module from outside. bench sets up
// the Raft library with nothing around it, to hold the engine against.
var kept = []struct {
	module string
	parts  []string
}{
	{"github.com/hashicorp/raft", []string{"journal", "bench"}},
	{"github.com/hashicorp/raft-boltdb", []string{"journal", "bench"}},
	{"github.com/boltdb/bolt", []string{"journal"}},
	{"go.etcd.io/bbolt", []string{"journal", "bench"}},
	{"github.com/cockroachdb/pebble", []string{"journal", "journal/state/pebblestore"}},
	{"github.com/asynkron/protoactor-go", []string{"actors", "cluster"}},
	{"golang.org/x/tools", []string{"replay/vet", "cmd"}},
	{"google.golang.org/grpc", []string{"cluster", "proto/clusterpb", "proto/journalpb"}},
	{"github.com/anishathalye/porcupine", []string{"internal/chaos"}},
	{"github.com/prometheus", []string{"cluster/prometheus"}},
	{"go.opentelemetry.io/otel/sdk", []string{"cluster/prometheus"}},
	{"go.opentelemetry.io/otel/exporters", []string{"cluster/prometheus"}},
}

// frugal names the parts that an author's package pulls in, and all that they
// may import from outside the standard library and this module.
var frugal = map[string][]string{
	"replay":            {"google.golang.org/protobuf"},
	"replay/replaytest": {"google.golang.org/protobuf"},
	"proto/journalpb":   {"google.golang.org/protobuf"},
}

const anything = "*"

// testExceptions lists what the tests of a part may import beyond its own
// rules: a package, with all below it, or anything.
var testExceptions = []struct {
	part, path, why string
}{
	{"actors", modulePath + "/journal/state", "the tests' journal decides by the real rules"},
	{"cluster", anything, "whole nodes are taken apart and compared"},
	{"cluster/prometheus", modulePath + "/replay", "the node in the test runs an orchestration"},
	{"internal", modulePath, "what importing all packages changes in a program is looked at"},
	{"examples", anything, "what an example leaves on disk is checked from below"},
	{"journal/state", modulePath + "/journal/state/pebblestore", "a machine shows the same with a store and without"},
	{"journal/state", "github.com/cockroachdb/pebble", "the files below it are cut off and damaged"},
	{"replay", "github.com/google/go-cmp", "histories are compared"},
}

func TestImportsPointDown(t *testing.T) {
	expectNone(t, importViolations)
}

func importViolations(root string) ([]string, error) {
	dirs, err := packageDirs(root)
	if err != nil {
		return nil, err
	}
	// Files for another system or behind a build tag obey the rules too.
	reader := build.Default
	reader.UseAllFiles = true
	var violations []string
	for _, dir := range dirs {
		read, err := reader.ImportDir(filepath.Join(root, dir), 0)
		if err != nil {
			return nil, fmt.Errorf("read imports of %s: %w", dir, err)
		}
		violations = append(violations, violationsOf(dir, read)...)
	}
	return violations, nil
}

func violationsOf(dir string, read *build.Package) []string {
	part := partOf(dir)
	if _, known := mayImport[part]; !known {
		return []string{fmt.Sprintf("%s belongs to no known part of the system", dir)}
	}
	var violations []string
	for _, path := range read.Imports {
		if why := refusal(part, path); why != "" {
			violations = append(violations, fmt.Sprintf("%s imports %s: %s", dir, path, why))
		}
	}
	for _, path := range testImports(read) {
		if why := refusal(part, path); why != "" && !isException(part, path) {
			violations = append(violations, fmt.Sprintf("tests of %s import %s: %s", dir, path, why))
		}
	}
	return violations
}

func testImports(read *build.Package) []string {
	paths := slices.Concat(read.TestImports, read.XTestImports)
	slices.Sort(paths)
	return slices.Compact(paths)
}

// refusal says why a part may not import a path; empty if it may.
func refusal(part, path string) string {
	if path == modulePath {
		return "the module's root holds no package"
	}
	if inside, ok := strings.CutPrefix(path, modulePath+"/"); ok {
		return refusalInside(part, partOf(inside))
	}
	if isStandard(path) {
		return ""
	}
	return refusalOutside(part, path)
}

func refusalInside(part, other string) string {
	if part == other || slices.Contains(mayImport[part], other) {
		return ""
	}
	return fmt.Sprintf("%s may not import %s", part, other)
}

func refusalOutside(part, path string) string {
	within := func(module string) bool { return isWithin(path, module) }
	if modules, ok := frugal[part]; ok && !slices.ContainsFunc(modules, within) {
		return fmt.Sprintf("%s may import only %s from outside", part, strings.Join(modules, ", "))
	}
	for _, rule := range kept {
		if within(rule.module) && !slices.Contains(rule.parts, part) {
			return "that is for " + strings.Join(rule.parts, ", ") + " alone"
		}
	}
	return ""
}

func isException(part, path string) bool {
	for _, exception := range testExceptions {
		if exception.part == part && (exception.path == anything || isWithin(path, exception.path)) {
			return true
		}
	}
	return false
}

// partOf tells the part of a directory or of an import path inside the module.
func partOf(dir string) string {
	for part := dir; part != "."; part = path.Dir(part) {
		if _, known := mayImport[part]; known {
			return part
		}
	}
	first, rest, _ := strings.Cut(dir, "/")
	if first != "proto" || rest == "" {
		return first
	}
	second, _, _ := strings.Cut(rest, "/")
	return first + "/" + second
}

func isWithin(path, parent string) bool {
	return path == parent || strings.HasPrefix(path, parent+"/")
}

// isStandard goes by what the go command promises: no standard package has a
// dot in its first element.
func isStandard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}
