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

// allowedImports lists which parts of the module each part may import besides itself. A part is a
// top-level directory with everything below it that is not a part of its own here; under proto/ it
// is one schema. Imports point down only.
var allowedImports = map[string][]string{
	"examples": {"cluster", "replay", "replay/history"},
	"cmd":      {"cluster", "replay", "replay/history"},
	"bench":    {"cluster", "replay", "replay/engine", "replay/history", "proto/clusterpb", "proto/journalpb", "internal/eventpb"},
	"cluster":  {"journal", "journal/state", "journal/state/index", "actors", "actors/activity", "actors/session", "replay", "replay/engine", "replay/history", "proto/clusterpb", "proto/journalpb", "internal/clustertime", "internal/eventpb", "internal/logqueue", "internal/frame", "internal/harness", "internal/lineage", "internal/slots"},
	"actors":   {"actors/activity", "actors/worker", "actors/session", "actors/internal", "replay", "replay/engine", "proto/clusterpb", "proto/journalpb", "internal/clustertime"},
	// The leader's and the worker's side of activities do not know each other.
	"actors/activity":    {"actors/session", "actors/internal", "replay", "replay/engine", "proto/clusterpb", "proto/journalpb", "internal/clustertime"},
	"actors/worker":      {"actors/session", "actors/internal", "replay", "replay/engine", "proto/clusterpb", "proto/journalpb"},
	"actors/session":     {"actors/internal", "replay", "proto/clusterpb", "proto/journalpb"},
	"actors/internal":    {"replay", "replay/engine", "proto/journalpb", "internal/clustertime"},
	"cluster/prometheus": {"cluster"},
	"journal":            {"journal/state", "journal/state/index", "journal/state/pebblestore", "proto/journalpb", "internal/clustertime", "internal/frame", "internal/lineage", "internal/logqueue"},
	"journal/state":      {"journal/state/index", "journal/state/store", "proto/journalpb", "internal/clustertime"},
	// The database interface of the state, and its implementation.
	"journal/state/index":       {},
	"journal/state/store":       {},
	"journal/state/pebblestore": {"journal/state/store"},
	// What authors import, with its contract with the engine (replay/internal/host).
	"replay":         {},
	"replay/engine":  {"replay", "proto/journalpb", "internal/goroutine"},
	"replay/history": {"replay", "replay/engine", "proto/journalpb", "internal/eventpb/hook"},
	"replay/vet":     {},
	// The real engine for tests of orchestrations: all but Raft, network and disk.
	"replay/replaytest": {"actors", "actors/activity", "journal/state", "replay", "replay/engine", "replay/history", "proto/journalpb", "internal/eventpb"},
	"proto/clusterpb":   {"proto/journalpb"},
	"proto/journalpb":   {},
	"internal":          {},
	"internal/browser":  {"cluster", "internal/harness", "replay", "replay/history"},
	"internal/upgrades": {"cluster", "internal/harness", "replay", "replay/history", "replay/replaytest"},
	// It reads the directories of restored backups, which no node has opened.
	"internal/chaos": {"cluster", "cluster/prometheus", "journal", "journal/state", "journal/state/pebblestore", "replay", "replay/engine", "replay/history", "proto/journalpb", "internal/eventpb", "internal/harness", "internal/slots"},
	// The time that leaders record and compare with what was recorded.
	"internal/clustertime": {},
	// The protobuf form of events, which the exported API does not name.
	"internal/eventpb":      {"internal/eventpb/hook", "replay/history", "proto/journalpb"},
	"internal/eventpb/hook": {},
	// Checks that a durable call comes from the orchestration's goroutine.
	"internal/goroutine": {},
	// Checksummed messages, on disk and on connections.
	"internal/frame": {},
	// What test harnesses may change in a node.
	"internal/harness":  {},
	"internal/lineage":  {},
	"internal/logqueue": {},
	"internal/slots":    {},
}

// restrictedModules names the only parts that may import an external module. bench compares the
// engine with the Raft library alone.
var restrictedModules = []struct {
	module string
	parts  []string
}{
	{"github.com/hashicorp/raft", []string{"journal", "bench"}},
	{"github.com/hashicorp/raft-boltdb", []string{"journal", "bench"}},
	{"github.com/boltdb/bolt", []string{"journal"}},
	{"go.etcd.io/bbolt", []string{"journal", "bench"}},
	{"github.com/cockroachdb/pebble", []string{"journal", "journal/state/pebblestore"}},
	{"github.com/netresearch/go-cron", []string{"cluster"}},
	{"github.com/asynkron/protoactor-go", []string{"actors", "actors/internal", "cluster"}},
	{"golang.org/x/tools", []string{"replay/vet"}},
	{"github.com/golangci", []string{"replay/vet"}},
	{"google.golang.org/grpc", []string{"cluster", "proto/clusterpb", "proto/journalpb"}},
	{"github.com/chromedp", []string{"internal/browser"}},
	{"github.com/anishathalye/porcupine", []string{"internal/chaos"}},
	{"github.com/prometheus", []string{"cluster/prometheus"}},
	{"go.opentelemetry.io/otel/sdk", []string{"cluster/prometheus"}},
	{"go.opentelemetry.io/otel/exporters", []string{"cluster/prometheus"}},
}

// allowedModules names the parts that packages of orchestrations import, and all external modules
// that these parts may import.
var allowedModules = map[string][]string{
	"replay":            {},
	"replay/engine":     {"google.golang.org/protobuf"},
	"replay/history":    {"google.golang.org/protobuf"},
	"replay/replaytest": {"google.golang.org/protobuf"},
	"proto/journalpb":   {"google.golang.org/protobuf"},
}

const anyPath = "*"

// testExceptions lists what the tests of a part may import beyond its own rules: a package with all
// below it, or anything.
var testExceptions = []struct {
	part, path, reason string
}{
	{"actors", modulePath + "/journal/state", "the tests' journal applies the real append rule"},
	{"cluster", anyPath, "tests inspect and compare whole nodes"},
	{"cmd", modulePath + "/cluster/prometheus", "a runbook reads the metrics of a node"},
	{"cmd", modulePath + "/internal/harness", "a runbook corrects the clock of a node"},
	{"cluster/prometheus", modulePath + "/replay", "the node in the test runs an orchestration"},
	{anyPath, modulePath + "/internal/shorttest", "tests do less with -short"},
	{anyPath, modulePath + "/internal/addresstest", "tests start nodes at free addresses"},
	{"internal", modulePath, "a test checks what importing all packages changes in a program"},
	{"examples", anyPath, "tests inspect what an example leaves on disk"},
	{"journal", modulePath + "/journal/state/store", "a test writes a state of another format"},
	{"journal/state", modulePath + "/journal/state/pebblestore", "tests compare a state with a store and without"},
	{"journal/state", "github.com/cockroachdb/pebble", "tests truncate and damage the store's files"},
	{"replay", modulePath + "/replay/engine", "tests and examples run orchestrations"},
	{"replay/engine", "github.com/google/go-cmp", "tests compare histories"},
	{"replay/history", modulePath + "/internal/eventpb", "tests build events of every type"},
}

func TestImports_FollowRules(t *testing.T) {
	expectNoViolations(t, importViolations)
}

func importViolations(root string) ([]string, error) {
	dirs, err := packageDirs(root)
	if err != nil {
		return nil, err
	}
	// Files for other systems or behind build tags must follow the rules too.
	reader := build.Default
	reader.UseAllFiles = true
	var violations []string
	for _, dir := range dirs {
		pkg, err := reader.ImportDir(filepath.Join(root, dir), 0)
		if err != nil {
			return nil, fmt.Errorf("read imports of %s: %w", dir, err)
		}
		violations = append(violations, violationsOf(dir, pkg)...)
	}
	return violations, nil
}

func violationsOf(dir string, pkg *build.Package) []string {
	part := partOf(dir)
	if _, known := allowedImports[part]; !known {
		return []string{fmt.Sprintf("%s belongs to no known part of the system", dir)}
	}
	var violations []string
	for _, path := range pkg.Imports {
		if reason := importRejection(part, path); reason != "" {
			violations = append(violations, fmt.Sprintf("%s imports %s: %s", dir, path, reason))
		}
	}
	for _, path := range testImports(pkg) {
		if reason := importRejection(part, path); reason != "" && !isException(part, path) {
			violations = append(violations, fmt.Sprintf("tests of %s import %s: %s", dir, path, reason))
		}
	}
	return violations
}

func testImports(pkg *build.Package) []string {
	paths := slices.Concat(pkg.TestImports, pkg.XTestImports)
	slices.Sort(paths)
	return slices.Compact(paths)
}

// importRejection returns why a part may not import a path, or "" if it may.
func importRejection(part, path string) string {
	if path == modulePath {
		return "the module's root holds no package"
	}
	if inside, ok := strings.CutPrefix(path, modulePath+"/"); ok {
		return internalRejection(part, partOf(inside))
	}
	if isStandard(path) {
		return ""
	}
	return externalRejection(part, path)
}

func internalRejection(part, other string) string {
	if part == other || slices.Contains(allowedImports[part], other) {
		return ""
	}
	return fmt.Sprintf("%s may not import %s", part, other)
}

func externalRejection(part, path string) string {
	within := func(module string) bool { return isWithin(path, module) }
	modules, ok := allowedModules[part]
	if ok && len(modules) == 0 {
		return part + " may import nothing from outside"
	}
	if ok && !slices.ContainsFunc(modules, within) {
		return fmt.Sprintf("%s may import only %s from outside", part, strings.Join(modules, ", "))
	}
	for _, rule := range restrictedModules {
		if within(rule.module) && !slices.Contains(rule.parts, part) {
			return "only " + strings.Join(rule.parts, ", ") + " may import it"
		}
	}
	return ""
}

func isException(part, path string) bool {
	for _, exception := range testExceptions {
		if (exception.part == anyPath || exception.part == part) && (exception.path == anyPath || isWithin(path, exception.path)) {
			return true
		}
	}
	return false
}

// partOf returns the part of a directory or of an import path in the module.
func partOf(dir string) string {
	for part := dir; part != "."; part = path.Dir(part) {
		if _, known := allowedImports[part]; known {
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

// isStandard relies on a promise of the go command: no standard package has a dot in its first path
// element.
func isStandard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}
