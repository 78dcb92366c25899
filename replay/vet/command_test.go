package vet

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const repoRoot = "../.."

// buildCommand builds tenuto-vet once.
var buildCommand = sync.OnceValues(func() (string, error) {
	path := filepath.Join(scratchDir, "tenuto-vet")
	output, err := exec.Command("go", "build", "-o", path, "./cmd/tenuto-vet").CombinedOutput()
	if err != nil {
		return string(output), err
	}
	return path, nil
})

type diagnostic struct {
	Category string
	Posn     string // file:line:column
	Message  string
}

// runVet runs go vet with tenuto-vet in a module and returns its diagnostics.
func runVet(t *testing.T, module string, patterns ...string) []diagnostic {
	t.Helper()
	path, err := buildCommand()
	if err != nil {
		t.Fatalf("build tenuto-vet: %v\n%s", err, path)
	}
	vet := exec.Command("go", append([]string{"vet", "-vettool=" + path, "-json"}, patterns...)...)
	vet.Dir = filepath.Join(repoRoot, module)
	var output, stderr bytes.Buffer
	vet.Stdout, vet.Stderr = &output, &stderr
	if err := vet.Run(); err != nil {
		t.Fatalf("go vet %q: %v\n%s", patterns, err, &stderr)
	}
	var found []diagnostic
	for decoder := json.NewDecoder(&output); decoder.More(); {
		var byPackage map[string]map[string][]diagnostic
		if err := decoder.Decode(&byPackage); err != nil {
			t.Fatal(err)
		}
		for _, byAnalyzer := range byPackage {
			found = slices.Concat(found, byAnalyzer[Analyzer.Name])
		}
	}
	return found
}

// position returns the file, relative to the repository, and the line.
func (d diagnostic) position(t *testing.T) (file string, line int) {
	t.Helper()
	parts := strings.Split(d.Posn, ":")
	line, err := strconv.Atoi(parts[len(parts)-2])
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs(repoRoot)
	if err != nil {
		t.Fatal(err)
	}
	file, err = filepath.Rel(root, strings.Join(parts[:len(parts)-2], ":"))
	if err != nil {
		t.Fatal(err)
	}
	return filepath.ToSlash(file), line
}

// Authors learn from our own orchestrations, including the tests of the examples. Other tests break
// rules on purpose. In the omitted packages only tests have orchestrations.
func TestModuleIsClean(t *testing.T) {
	t.Parallel()
	found := runVet(t, ".", "./cmd/...", "./examples/...", "./replay/...")
	for _, d := range append(found, runVet(t, "bench", "./...")...) {
		file, line := d.position(t)
		testsEngine := strings.HasSuffix(file, "_test.go") && !strings.HasPrefix(file, "examples/")
		if !testsEngine && !strings.HasPrefix(file, "replay/internal/broken/") {
			t.Errorf("%s:%d: %s: %s", file, line, d.Category, d.Message)
		}
	}
}

// brokenRules lists which rules find which of the twelve broken orchestrations, by function
// name. Some cannot be found in code, because the mistake is a difference to earlier code.
var brokenRules = map[string][]string{
	"clock":           {"clock"},
	"random":          {"random"},
	"mapOrder":        {"maporder"},
	"goroutine":       {"channel", "goroutine"},
	"channel":         {"channel", "future"},
	"globalCounter":   {"global"},
	"unawaitedFuture": {"future"},
	"durableDefer":    {"defer"},
	"closure":         {"shared"},
	"file":            {"io"},
	"changedOrder":    nil,
	"changedInput":    nil,
}

func TestBrokenOrchestrations(t *testing.T) {
	t.Parallel()
	found := make(map[string][]string)
	for _, d := range runVet(t, ".", "./replay/internal/broken") {
		file, line := d.position(t)
		name := functionAt(t, file, line)
		if !slices.Contains(found[name], d.Category) {
			found[name] = append(found[name], d.Category)
		}
	}
	for name, rules := range found {
		slices.Sort(rules)
		if !slices.Equal(rules, brokenRules[name]) {
			t.Errorf("%s is found by %q, want %q", name, rules, brokenRules[name])
		}
	}
	for name, rules := range brokenRules {
		if len(rules) > 0 && found[name] == nil {
			t.Errorf("%s is not found, want %q", name, rules)
		}
	}
}

// functionAt returns the name of the function around a line.
func functionAt(t *testing.T, file string, line int) string {
	t.Helper()
	positions := token.NewFileSet()
	parsed, err := parser.ParseFile(positions, filepath.Join(repoRoot, file), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, declared := range parsed.Decls {
		first, last := positions.Position(declared.Pos()).Line, positions.Position(declared.End()).Line
		if fn, ok := declared.(*ast.FuncDecl); ok && first <= line && line <= last {
			return fn.Name.Name
		}
	}
	return ""
}

// The go command passes facts between packages, and a diagnostic makes it fail.
func TestGoVetFails(t *testing.T) {
	t.Parallel()
	path, err := buildCommand()
	if err != nil {
		t.Fatalf("build tenuto-vet: %v\n%s", err, path)
	}
	vet := exec.Command("go", "vet", "-vettool="+path, "./replay/testdata/across")
	vet.Dir = repoRoot
	output, err := vet.CombinedOutput()
	const want = "across.go:13:18: calls prices.Of, which calls hour (prices.go:7), which calls time.Now (prices.go:9): use ctx.Now(), which is the same on every replay"
	if err == nil || !strings.HasSuffix(strings.TrimSpace(string(output)), want) {
		t.Errorf("go vet says %v and\n%s\nnot\n%s", err, output, want)
	}
}
