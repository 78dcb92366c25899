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

const repository = "../.."

// command builds tenuto-vet, once.
var command = sync.OnceValues(func() (string, error) {
	path := filepath.Join(scratch, "tenuto-vet")
	build := exec.Command("go", "build", "-o", path, "./cmd/tenuto-vet")
	build.Dir = repository
	output, err := build.CombinedOutput()
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

// runVet runs go vet with tenuto-vet and returns what it says.
func runVet(t *testing.T, patterns ...string) []diagnostic {
	t.Helper()
	path, err := command()
	if err != nil {
		t.Fatalf("build tenuto-vet: %v\n%s", err, path)
	}
	vet := exec.Command("go", append([]string{"vet", "-vettool=" + path, "-json"}, patterns...)...)
	vet.Dir = repository
	var output, complaints bytes.Buffer
	vet.Stdout, vet.Stderr = &output, &complaints
	if err := vet.Run(); err != nil {
		t.Fatalf("go vet %q: %v\n%s", patterns, err, &complaints)
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

// place returns the file, relative to the repository, and the line.
func (d diagnostic) place(t *testing.T) (file string, line int) {
	t.Helper()
	parts := strings.Split(d.Posn, ":")
	line, err := strconv.Atoi(parts[len(parts)-2])
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	file, err = filepath.Rel(root, strings.Join(parts[:len(parts)-2], ":"))
	if err != nil {
		t.Fatal(err)
	}
	return filepath.ToSlash(file), line
}

// The module's own orchestrations are what authors learn from, the tests of the
// examples among them. Other tests make mistakes to see what the engine does,
// and in the parts that are left out only tests have orchestrations.
func TestModuleIsClean(t *testing.T) {
	t.Parallel()
	for _, d := range runVet(t, "./bench/...", "./cmd/...", "./examples/...", "./replay/...") {
		file, line := d.place(t)
		testsEngine := strings.HasSuffix(file, "_test.go") && !strings.HasPrefix(file, "examples/")
		if !testsEngine && !strings.HasPrefix(file, "replay/internal/broken/") {
			t.Errorf("%s:%d: %s: %s", file, line, d.Category, d.Message)
		}
	}
}

// rulesOfBroken says which rules find which of the twelve broken
// orchestrations, by the name of the function. None is for what code by itself
// cannot show, because the mistake is the difference to what was there before.
var rulesOfBroken = map[string][]string{
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
	for _, d := range runVet(t, "./replay/internal/broken") {
		file, line := d.place(t)
		name := functionAt(t, file, line)
		if !slices.Contains(found[name], d.Category) {
			found[name] = append(found[name], d.Category)
		}
	}
	for name, rules := range found {
		slices.Sort(rules)
		if !slices.Equal(rules, rulesOfBroken[name]) {
			t.Errorf("%s is found by %q, want %q", name, rules, rulesOfBroken[name])
		}
	}
	for name, rules := range rulesOfBroken {
		if len(rules) > 0 && found[name] == nil {
			t.Errorf("%s is not found, want %q", name, rules)
		}
	}
}

// functionAt returns the name of the function around a line of the repository.
func functionAt(t *testing.T, file string, line int) string {
	t.Helper()
	positions := token.NewFileSet()
	parsed, err := parser.ParseFile(positions, filepath.Join(repository, file), nil, parser.SkipObjectResolution)
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

// Facts travel from package to package in the go command's own files, and what
// is found makes it fail.
func TestGoVetFails(t *testing.T) {
	t.Parallel()
	path, err := command()
	if err != nil {
		t.Fatalf("build tenuto-vet: %v\n%s", err, path)
	}
	vet := exec.Command("go", "vet", "-vettool="+path, "./replay/vet/testdata/across")
	vet.Dir = repository
	output, err := vet.CombinedOutput()
	const want = "across.go:13:18: calls prices.Of, which calls hour (prices.go:7), which calls time.Now (prices.go:9): use ctx.Now(), which is the same on every replay"
	if err == nil || !strings.HasSuffix(strings.TrimSpace(string(output)), want) {
		t.Errorf("go vet says %v and\n%s\nnot\n%s", err, output, want)
	}
}
