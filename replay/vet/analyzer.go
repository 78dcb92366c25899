package vet

import (
	"go/ast"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/edge"
	"golang.org/x/tools/go/ast/inspector"
)

// Analyzer reports what orchestration code must not do. The category of a
// diagnostic is the name of the rule.
var Analyzer = &analysis.Analyzer{
	Name:      "tenuto",
	Doc:       "report what makes durable orchestrations disagree with their history\n\nIt looks at functions that take a *replay.Context and at what they call in the module.",
	URL:       "https://pkg.go.dev/github.com/tenuto-dev/tenuto/replay/vet",
	Requires:  []*analysis.Analyzer{inspect.Analyzer},
	FactTypes: []analysis.Fact{new(reach), new(changed)},
	Run:       run,
}

// An inspection is the analysis of one package.
type inspection struct {
	*analysis.Pass
	root    inspector.Cursor
	allowed allowances

	codes   []*code // in the order of the files
	reaches map[types.Object]*reach
	changes map[*types.Var][]change
	spared  map[ast.Node]bool   // functions that are not run as orchestration code is
	bound   map[any]bool        // bodies of orchestrations: *ast.FuncLit or types.Object
	targets map[*ast.Ident]bool // variables at the root of what is written
	told    map[telling]bool
}

// A code is a function that is looked at as a whole: declared, or a literal
// that is orchestration code in code that is not, or in a package variable.
type code struct {
	cursor        inspector.Cursor // of *ast.FuncDecl, *ast.FuncLit or a variable's initial value
	object        types.Object     // nil for a literal
	orchestration bool
	what          string // "the orchestration"; of what is outside
}

const theOrchestration = "the orchestration"

func run(pass *analysis.Pass) (any, error) {
	if !isOurs(pass) {
		return nil, nil
	}
	p := &inspection{
		Pass:    pass,
		root:    pass.ResultOf[inspect.Analyzer].(*inspector.Inspector).Root(),
		reaches: make(map[types.Object]*reach),
		changes: make(map[*types.Var][]change),
		spared:  make(map[ast.Node]bool),
		bound:   make(map[any]bool),
		targets: make(map[*ast.Ident]bool),
		told:    make(map[telling]bool),
	}
	allowed, err := p.findAllowances()
	if err != nil {
		return nil, err
	}
	p.allowed = allowed
	p.noteCalls()
	p.noteChanges()
	p.findCodes()
	p.findReaches()
	for _, c := range p.codes {
		if c.orchestration {
			p.check(c)
		}
	}
	return nil, nil
}

// isOurs tells whether the package is looked into: one of the main module, of
// the workspace or of a directory that replaces a module. Package replay is not
// written by its own rules.
func isOurs(pass *analysis.Pass) bool {
	if pass.Pkg.Path() == replayPath {
		return false
	}
	m := pass.Module
	if m == nil || m.Path == "" {
		first, _, _ := strings.Cut(pass.Pkg.Path(), "/")
		return !slices.Contains(topOfStandard, first)
	}
	return m.Path != "std" && (m.Version == "" || m.Main || m.Replace != nil && m.Replace.Version == "")
}

// noteCalls finds the functions that calls of package replay treat in a way of
// their own.
func (p *inspection) noteCalls() {
	for c := range p.root.Preorder((*ast.CallExpr)(nil)) {
		call := c.Node().(*ast.CallExpr)
		name := api(p.callee(call))
		if sparing, ok := spared[name]; ok && len(call.Args) > sparing.argument {
			p.spared[call.Args[sparing.argument]] = true
		}
		if name == "OrchestrationHandle.Bind" && len(call.Args) > 0 {
			p.bound[p.bodyOf(call.Args[0])] = true
		}
	}
}

// bodyOf returns the literal or the object that an argument refers to.
func (p *inspection) bodyOf(argument ast.Expr) any {
	switch e := ast.Unparen(argument).(type) {
	case *ast.FuncLit:
		return e
	case *ast.Ident:
		return origin(p.TypesInfo.Uses[e])
	case *ast.SelectorExpr:
		return origin(p.TypesInfo.Uses[e.Sel])
	case *ast.IndexExpr:
		return p.bodyOf(e.X)
	}
	return nil
}

// findCodes lists the functions of the package.
func (p *inspection) findCodes() {
	p.root.Inspect([]ast.Node{(*ast.FuncDecl)(nil), (*ast.FuncLit)(nil), (*ast.ValueSpec)(nil)}, func(c inspector.Cursor) bool {
		switch n := c.Node().(type) {
		case *ast.FuncDecl:
			object := origin(p.TypesInfo.Defs[n.Name])
			if object == nil || n.Body == nil {
				return false
			}
			orchestration := takes(object.Type().(*types.Signature), isContext)
			p.addCode(&code{c, object, orchestration, theOrchestration})
			return !orchestration
		case *ast.FuncLit:
			if takes(p.signature(n), isContext) {
				p.addCode(&code{c, nil, true, theOrchestration})
				return false
			}
		case *ast.ValueSpec:
			p.addVariables(c, n)
		}
		return true
	})
}

func (p *inspection) addCode(c *code) {
	p.codes = append(p.codes, c)
	if c.object != nil {
		p.reaches[c.object] = new(reach)
	}
}

// addVariables takes package variables that are functions, such as
// "var now = time.Now", for what they begin as.
func (p *inspection) addVariables(c inspector.Cursor, spec *ast.ValueSpec) {
	if len(spec.Names) != len(spec.Values) {
		return
	}
	for i, name := range spec.Names {
		object := p.TypesInfo.Defs[name]
		if object == nil || object.Parent() != p.Pkg.Scope() {
			continue
		}
		if signature, ok := object.Type().Underlying().(*types.Signature); ok && !takes(signature, isContext) {
			p.addCode(&code{c.ChildAt(edge.ValueSpec_Values, i), object, false, ""})
		}
	}
}

func (p *inspection) signature(literal *ast.FuncLit) *types.Signature {
	if t, ok := p.TypesInfo.TypeOf(literal).(*types.Signature); ok {
		return t
	}
	return new(types.Signature)
}

// check reports what one piece of orchestration code does.
func (p *inspection) check(c *code) {
	p.examine(c, c.cursor, func(f finding) { p.report(f) })
	p.checkRanges(c)
	p.checkOrder(c)
	p.checkFutures(c)
	p.checkDefers(c)
	p.checkSpared(c)
	p.checkReplaying(c)
	p.checkReceiver(c)
}

// A finding is something that code does, and where.
type finding struct {
	rule *rule
	pos  token.Pos
	does string // "calls price"
	via  string // "calls time.Now (price.go:12)"; "" when done right here
}

// A telling is a diagnostic: none is given twice.
type telling struct {
	pos     token.Pos
	message string
}

func (p *inspection) report(f finding) {
	if f.rule.cure == "" || p.allowed.at(p.Fset, f.pos) {
		return
	}
	message := f.does
	if f.via != "" {
		message += ", which " + f.via
	}
	message += ": " + f.rule.cure
	if key := (telling{f.pos, message}); !p.told[key] {
		p.told[key] = true
		p.Report(analysis.Diagnostic{Pos: f.pos, Category: f.rule.name, Message: message})
	}
}

// place returns "file.go:12".
func (p *inspection) place(pos token.Pos) string {
	at := p.Fset.Position(pos)
	return filepath.Base(at.Filename) + ":" + strconv.Itoa(at.Line)
}
