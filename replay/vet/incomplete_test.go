package vet

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
)

// Editors and some drivers run analyzers on incomplete code.
func TestIncompleteCode(t *testing.T) {
	t.Parallel()
	imports := importsOfRules(t)
	for _, statement := range incompleteStatements {
		analyze(t, imports, []byte(header+statement+"\n}\n"))
	}
	for _, name := range rulesFiles(t) {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		// A prime, so that cuts fall at all kinds of positions.
		for at := 0; at < len(content); at += 61 {
			analyze(t, imports, content[:at])
			end := min(at+17, len(content))
			analyze(t, imports, append(content[:at:at], content[end:]...))
		}
	}
}

const header = `package any

import (
	"flag"
	"maps"
	"slices"

	"github.com/tenuto-dev/tenuto/replay"
	"rules/shop"
)

var m map[string]int

func f(ctx *replay.Context, s []string) ([]string, error) {
`

// incompleteStatements lack parts that the analyzer expects.
var incompleteStatements = []string{
	"delete()", "clear()", "copy()", "close()", "append()", "flag.BoolVar()", "flag.BoolVar(&)", "x, y := shop.Charge.Start(ctx)",
	"_ = shop.Charge.Start()", "a, b = append(a, shop.Charge.Start(ctx, 1)), 1, 2", "var a, b = shop.Charge.Start(ctx, 1)",
	"defer", "defer func", "defer func() {", "defer ctx", "go", "go func() {", "replay.SideEffect()", "replay.SideEffect(ctx, 1, )",
	"replay.SideEffect(ctx, 1, func() {", "shop.Buy.Bind()", "shop.Buy.Bind(f[int])", "for range {", "for k := range m { s = append()",
	"for k := range m { s += k }; return s", "for s = range", "for s.x, m[1] = range m {}", "return slices.Collect(maps.Keys())",
	"return slices.Collect()", "if ctx.Replaying(", "if ctx.Replaying() { shop.Charge.Call(ctx) } else", "select { case <-", "select { case x := <-m: }",
	"m.x.y[1].(int) = 2", "f() = 1", "func() {}() = 2", "*&m = 2", "ctx.Log().Info(context.TODO(", "shop.State.Handle(ctx, m)", "m()(ctx)",
	"shop.Buy.ContinueAsNew()", "_ = shop.Buy.ContinueAsNew", "var _, _ = shop.Buy.ContinueAsNew(ctx), 1", "x, _, y := shop.Charge.Call(ctx, 1), 2",
	"ctx.OnClose()", "replay.NewSaga(ctx).Compensate(f)", "x := replay.WithoutCancel()", "_ = ctx.Sleep()", "var _ = ctx.Sleep",
	"var i interface{ M() } = ; i.M()", "var i interface{ M() } = struct{ T }{1, 2}; i.M()", "m[1]()()", "return f, func() {}, 1", "for _, g := range g { g() }",
	"type s struct { interface{ M() } }; s{s{}}.M()", "append()()", "var g = func() { g() }; g()", "h := []func(){h[0]}; h[0]()",
	"(ctx)(ctx)", "replay.Context(ctx)", "var v = func(ctx *replay.Context, ", "type t[P any] struct{ *replay.Context }",
}

func FuzzIncompleteCode(f *testing.F) {
	for _, name := range rulesFiles(f) {
		content, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	for _, statement := range incompleteStatements {
		f.Add([]byte(header + statement))
	}
	imports := importsOfRules(f)
	f.Fuzz(func(t *testing.T, content []byte) { analyze(t, imports, content) })
}

func rulesFiles(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/src/rules/*/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	return files
}

// importsOfRules returns the packages that the tests import.
func importsOfRules(t testing.TB) map[string]*types.Package {
	t.Helper()
	found := make(map[string]*types.Package)
	var add func(p *types.Package)
	add = func(p *types.Package) {
		if found[p.Path()] != nil {
			return
		}
		found[p.Path()] = p
		for _, imported := range p.Imports() {
			add(imported)
		}
	}
	loaded := load(t, []string{"rules/..."}, "GO111MODULE=off", "GOPATH="+gopath(t))
	for p := range maps.Values(loaded) {
		add(p)
	}
	return found
}

type importerFunc func(path string) (*types.Package, error)

func (f importerFunc) Import(path string) (*types.Package, error) { return f(path) }

// analyze runs the analyzer on a package of one file. It must only return.
func analyze(t testing.TB, imports map[string]*types.Package, content []byte) {
	t.Helper()
	files := token.NewFileSet()
	file, _ := parser.ParseFile(files, "any.go", content, parser.ParseComments|parser.SkipObjectResolution)
	if file == nil || file.Name == nil {
		return
	}
	info := &types.Info{
		Types: make(map[ast.Expr]types.TypeAndValue), Defs: make(map[*ast.Ident]types.Object), Uses: make(map[*ast.Ident]types.Object),
		Selections: make(map[*ast.SelectorExpr]*types.Selection), Instances: make(map[*ast.Ident]types.Instance),
	}
	config := types.Config{
		Error: func(error) {},
		Importer: importerFunc(func(path string) (*types.Package, error) {
			if p := imports[path]; p != nil {
				return p, nil
			}
			return nil, fmt.Errorf("no package %q", path)
		}),
	}
	pkg, _ := config.Check("any", files, []*ast.File{file}, info)
	pass := &analysis.Pass{
		Analyzer: Analyzer, Fset: files, Files: []*ast.File{file}, Pkg: pkg, TypesInfo: info, Module: &analysis.Module{Path: "any"},
		ResultOf:         map[*analysis.Analyzer]any{inspect.Analyzer: inspector.New([]*ast.File{file})},
		Report:           func(analysis.Diagnostic) {},
		ReadFile:         func(string) ([]byte, error) { return content, nil },
		ImportObjectFact: func(types.Object, analysis.Fact) bool { return false },
		ExportObjectFact: func(types.Object, analysis.Fact) {},
	}
	if _, err := Analyzer.Run(pass); err != nil {
		t.Error(err)
	}
}
