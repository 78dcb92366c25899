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

// Analyzer reports what orchestration code must not do. The category of a diagnostic is the
// name of the rule.
var Analyzer = &analysis.Analyzer{
	Name:      "tenuto",
	Doc:       "report code that makes durable orchestrations disagree with their history\n\nIt checks functions with a *replay.Context and what they call in the module.",
	URL:       "https://pkg.go.dev/github.com/tenuto-dev/tenuto/replay/vet",
	Requires:  []*analysis.Analyzer{inspect.Analyzer},
	FactTypes: []analysis.Fact{new(effects), new(changedFact)},
	Run:       run,
}

// An inspection is the analysis of one package.
type inspection struct {
	*analysis.Pass
	root    inspector.Cursor
	allowed allowances

	functions []*function // in file order
	effects   map[types.Object]*effects
	changes   map[*types.Var][]change
	exempt    map[ast.Node]bool   // functions that do not run as orchestration code
	bound     map[any]bool        // bodies of orchestrations: *ast.FuncLit or types.Object
	targets   map[*ast.Ident]bool // the root variables of writes
	reported  map[reportKey]bool

	activities map[any]bool                     // bodies of activities
	uncanceled map[*types.Var]bool              // variables that hold a *replay.Context without cancellation
	sources    map[*types.Var][]source          // what the package assigns
	literals   map[*ast.FuncLit]types.Object    // function literals that variables hold
	resolved   map[*ast.CallExpr][]types.Object // what dynamic calls may call
}

// A function is a unit of analysis: a declared function, the initial value of a package
// variable, a literal that is orchestration code inside other code, or one that a variable holds.
type function struct {
	cursor        inspector.Cursor // of *ast.FuncDecl, *ast.FuncLit or a variable's initial value
	object        types.Object     // nil for a literal of orchestration code
	orchestration bool
	description   string // the function in messages: "the orchestration"
}

const theOrchestration = "the orchestration"

func run(pass *analysis.Pass) (any, error) {
	if !isAnalyzed(pass) {
		return nil, nil
	}
	p := newInspection(pass)
	allowed, err := p.findAllowances()
	if err != nil {
		return nil, err
	}
	p.allowed = allowed
	p.collectCalls()
	p.collectChanges()
	p.collectSources()
	p.findFunctions()
	p.findEffects()
	for _, c := range p.functions {
		if c.orchestration {
			p.check(c)
		}
	}
	return nil, nil
}

func newInspection(pass *analysis.Pass) *inspection {
	return &inspection{
		Pass:       pass,
		root:       pass.ResultOf[inspect.Analyzer].(*inspector.Inspector).Root(),
		effects:    make(map[types.Object]*effects),
		changes:    make(map[*types.Var][]change),
		exempt:     make(map[ast.Node]bool),
		bound:      make(map[any]bool),
		targets:    make(map[*ast.Ident]bool),
		reported:   make(map[reportKey]bool),
		activities: make(map[any]bool),
		uncanceled: make(map[*types.Var]bool),
		sources:    make(map[*types.Var][]source),
		literals:   make(map[*ast.FuncLit]types.Object),
		resolved:   make(map[*ast.CallExpr][]types.Object),
	}
}

// isAnalyzed reports whether the package belongs to the main module, the workspace, or a
// directory that replaces a module. Package replay is exempt from its own rules.
func isAnalyzed(pass *analysis.Pass) bool {
	if pass.Pkg.Path() == replayPath {
		return false
	}
	m := pass.Module
	if m == nil || m.Path == "" {
		first, _, _ := strings.Cut(pass.Pkg.Path(), "/")
		return !slices.Contains(standardTopLevel, first)
	}
	return m.Path != "std" && (m.Version == "" || m.Main || m.Replace != nil && m.Replace.Version == "")
}

// collectCalls finds bound bodies, arguments of package replay's functions that are exempt, and
// contexts without cancellation.
func (in *inspection) collectCalls() {
	for c := range in.root.Preorder((*ast.CallExpr)(nil)) {
		call := c.Node().(*ast.CallExpr)
		name := replayFunction(in.callee(call))
		if exemption, ok := exemptArguments[name]; ok && len(call.Args) > exemption.argument {
			in.exempt[call.Args[exemption.argument]] = true
		}
		if name == "OrchestrationHandle.Bind" && len(call.Args) > 0 {
			in.bound[in.bodyOf(call.Args[0])] = true
		}
		if name == "ActivityHandle.Bind" && len(call.Args) > 0 {
			in.activities[in.bodyOf(call.Args[0])] = true
		}
		in.findUncanceled(c, name)
	}
}

// bodyOf returns the literal or the object to which an argument refers.
func (in *inspection) bodyOf(argument ast.Expr) any {
	switch e := ast.Unparen(argument).(type) {
	case *ast.FuncLit:
		return e
	case *ast.Ident:
		return origin(in.TypesInfo.Uses[e])
	case *ast.SelectorExpr:
		return origin(in.TypesInfo.Uses[e.Sel])
	case *ast.IndexExpr:
		return in.bodyOf(e.X)
	}
	return nil
}

// findFunctions lists the functions of the package.
func (in *inspection) findFunctions() {
	in.root.Inspect([]ast.Node{(*ast.FuncDecl)(nil), (*ast.FuncLit)(nil), (*ast.ValueSpec)(nil)}, func(c inspector.Cursor) bool {
		switch n := c.Node().(type) {
		case *ast.FuncDecl:
			object := origin(in.TypesInfo.Defs[n.Name])
			if object == nil || n.Body == nil {
				return false
			}
			orchestration := hasParameter(object.Type().(*types.Signature), isContext)
			in.addFunction(&function{c, object, orchestration, theOrchestration})
			return !orchestration
		case *ast.FuncLit:
			if hasParameter(in.signature(n), isContext) {
				in.addFunction(&function{c, nil, true, theOrchestration})
				return false
			}
		case *ast.ValueSpec:
			in.addVariables(c, n)
		}
		return true
	})
}

func (in *inspection) addFunction(c *function) {
	in.functions = append(in.functions, c)
	if c.object != nil {
		in.effects[c.object] = new(effects)
	}
}

// addVariables adds package variables that begin as a function, such as "var now = time.Now".
func (in *inspection) addVariables(c inspector.Cursor, spec *ast.ValueSpec) {
	if len(spec.Names) != len(spec.Values) {
		return
	}
	for i, name := range spec.Names {
		object := in.TypesInfo.Defs[name]
		if object == nil || object.Parent() != in.Pkg.Scope() {
			continue
		}
		if signature, ok := object.Type().Underlying().(*types.Signature); ok && !hasParameter(signature, isContext) {
			in.addFunction(&function{c.ChildAt(edge.ValueSpec_Values, i), object, false, ""})
		}
	}
}

func (in *inspection) signature(literal *ast.FuncLit) *types.Signature {
	if t, ok := in.TypesInfo.TypeOf(literal).(*types.Signature); ok {
		return t
	}
	return new(types.Signature)
}

// check reports what one function of orchestration code does.
func (in *inspection) check(c *function) {
	in.examine(c, c.cursor, func(f finding) { in.report(f) })
	in.checkRanges(c)
	in.checkOrder(c)
	in.checkFutures(c)
	in.checkErrors(c)
	in.checkDefers(c)
	in.checkExempt(c)
	in.checkReplaying(c)
	in.checkReceiver(c)
}

// A finding is something that code does at a position, and the rule that it concerns.
type finding struct {
	rule   *rule
	pos    token.Pos
	action string // "calls price"
	via    string // "calls time.Now (price.go:12)"; "" if done directly
}

// A reportKey identifies a diagnostic, so that none is reported twice.
type reportKey struct {
	pos     token.Pos
	message string
}

func (in *inspection) report(f finding) {
	if f.rule.advice == "" || in.allowed.covers(in.Fset, f.pos) {
		return
	}
	message := f.action
	if f.via != "" {
		message += ", which " + f.via
	}
	message += ": " + f.rule.advice
	if key := (reportKey{f.pos, message}); !in.reported[key] {
		in.reported[key] = true
		in.Report(analysis.Diagnostic{Pos: f.pos, Category: f.rule.name, Message: message})
	}
}

// position returns "file.go:12".
func (in *inspection) position(pos token.Pos) string {
	at := in.Fset.Position(pos)
	return filepath.Base(at.Filename) + ":" + strconv.Itoa(at.Line)
}
