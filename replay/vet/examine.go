package vet

import (
	"go/ast"
	"go/token"
	"go/types"

	"golang.org/x/tools/go/ast/edge"
	"golang.org/x/tools/go/ast/inspector"
)

// examine yields what a region of some code does that a rule speaks of. It
// leaves out functions that run elsewhere: activities, the bodies of go
// statements, what replay.Once records, and orchestrations in other code.
func (p *inspection) examine(c *code, region inspector.Cursor, yield func(finding)) {
	region.Inspect(nil, func(at inspector.Cursor) bool {
		node := at.Node()
		if p.spared[node] && node != c.cursor.Node() {
			return false
		}
		switch n := node.(type) {
		case *ast.FuncLit:
			return n == c.cursor.Node() || p.runsHere(c, n)
		case *ast.GoStmt:
			yield(finding{goroutine, n.Pos(), "starts a goroutine", ""})
			return false
		case *ast.CallExpr:
			p.examineCall(c, n, yield)
		case *ast.Ident:
			p.examineName(c, at, n, yield)
		default:
			p.examineChannel(at, yield)
			p.examineWrites(c, node, yield)
		}
		return true
	})
}

// runsHere tells whether a literal in some code belongs to it.
func (p *inspection) runsHere(c *code, literal *ast.FuncLit) bool {
	signature := p.signature(literal)
	if takes(signature, isContext) {
		return c.orchestration
	}
	return !takes(signature, isGoContext)
}

func (p *inspection) examineChannel(at inspector.Cursor, yield func(finding)) {
	found := func(does string) { yield(finding{channel, at.Node().Pos(), does, ""}) }
	switch n := at.Node().(type) {
	case *ast.SelectStmt:
		found("selects among channels")
	case *ast.SendStmt:
		if at.ParentEdgeKind() != edge.CommClause_Comm {
			found("sends on a channel")
		}
	case *ast.UnaryExpr:
		if n.Op == token.ARROW && at.Parent().ParentEdgeKind() != edge.CommClause_Comm {
			found("receives from a channel")
		}
	case *ast.RangeStmt:
		if _, isChannel := p.underlying(n.X).(*types.Chan); isChannel {
			found("receives from a channel")
		}
	}
}

// examineCall looks at what only a call as a whole shows.
func (p *inspection) examineCall(c *code, call *ast.CallExpr, yield func(finding)) {
	p.examineWrites(c, call, yield)
	if p.isBuiltin(call, "close") {
		yield(finding{channel, call.Pos(), "closes a channel", ""})
	}
	called := p.callee(call)
	if _, ok := called.(*types.Builtin); ok {
		return
	}
	if r := p.TypesInfo.TypeOf(call); isGoContext(r) && (called == nil || judge(called) == nil) {
		yield(finding{foreign, call.Pos(), "calls " + p.text(call.Fun) + " for a context.Context", ""})
	}
	if p.isAtomicWrite(call, called) {
		p.examineWrite(c, call.Fun.(*ast.SelectorExpr).X, yield)
	}
	if p.isUnknown(called) && p.isGivenContext(call) {
		does := "calls " + p.text(call.Fun)
		yield(finding{durable, call.Pos(), does, ""})
		yield(finding{ordered, call.Pos(), does, ""})
	}
}

// isAtomicWrite tells whether a call changes its receiver from package
// sync/atomic, or a sync.Map.
func (p *inspection) isAtomicWrite(call *ast.CallExpr, called types.Object) bool {
	fn, ok := called.(*types.Func)
	if _, isSelector := call.Fun.(*ast.SelectorExpr); !ok || !isSelector || fn.Pkg() == nil {
		return false
	}
	switch receiver := receiverName(fn); fn.Pkg().Path() {
	case "sync/atomic":
		return receiver != "" && fn.Name() != "Load"
	case "sync":
		return receiver == "Map" && fn.Name() != "Load" && fn.Name() != "Range"
	}
	return false
}

// isUnknown tells whether nothing can be said of what a call calls: a function
// value, a method of an interface, a function that was not looked at.
func (p *inspection) isUnknown(called types.Object) bool {
	return api(called) == "" && (called == nil || p.reachOf(called) == nil)
}

// isGivenContext tells whether a *replay.Context is among the arguments.
func (p *inspection) isGivenContext(call *ast.CallExpr) bool {
	if p.TypesInfo.Types[call.Fun].IsType() {
		return false
	}
	for _, argument := range call.Args {
		if t := p.TypesInfo.TypeOf(argument); t != nil && isContext(t) {
			return true
		}
	}
	return false
}

// examineName looks at the use of a function or variable.
func (p *inspection) examineName(c *code, at inspector.Cursor, name *ast.Ident, yield func(finding)) {
	switch object := origin(p.TypesInfo.Uses[name]).(type) {
	case *types.Func:
		p.examineFunction(at, name, object, yield)
	case *types.Var:
		if object.IsField() {
			p.examineField(at, name, object, yield)
		} else {
			p.examineVariable(c, at, name, object, yield)
		}
	}
}

func (p *inspection) examineFunction(at inspector.Cursor, name *ast.Ident, fn *types.Func, yield func(finding)) {
	call := callOf(at)
	if called := api(fn); called != "" {
		does := "calls " + p.text(wholeName(at))
		if isDurable(called) {
			yield(finding{durable, name.Pos(), does, ""})
		}
		if isOrdered(called) {
			yield(finding{ordered, name.Pos(), does, ""})
		}
		return
	}
	switch {
	case call != nil:
		if judge(fn) == foreign && isForLog(p, at) {
			return
		}
		p.findingsOf(fn, name.Pos(), "calls", yield)
	case !takes(fn.Signature(), isGoContext): // an activity that is only named is not run
		p.findingsOf(fn, name.Pos(), "uses", yield)
	}
}

// isForLog tells whether a context.Context is made for a method of
// slog.Logger, which asks for one.
func isForLog(p *inspection, at inspector.Cursor) bool {
	for outer := range at.Enclosing((*ast.CallExpr)(nil)) {
		fn, ok := p.callee(outer.Node().(*ast.CallExpr)).(*types.Func)
		if ok && fn.Pkg() != nil && fn.Pkg().Path() == "log/slog" {
			return true
		}
	}
	return false
}

func (p *inspection) examineField(at inspector.Cursor, name *ast.Ident, field *types.Var, yield func(finding)) {
	if at.ParentEdgeKind() == edge.SelectorExpr_Sel && isGoContext(field.Type()) {
		yield(finding{foreign, name.Pos(), "uses " + p.text(wholeName(at)) + ", a context.Context", ""})
	}
}

// callOf returns the call that a name is called in, nil if it is only named.
func callOf(at inspector.Cursor) *ast.CallExpr {
	for {
		switch at.ParentEdgeKind() {
		case edge.CallExpr_Fun:
			return at.Parent().Node().(*ast.CallExpr)
		case edge.SelectorExpr_Sel, edge.ParenExpr_X, edge.IndexExpr_X, edge.IndexListExpr_X:
			at = at.Parent()
		default:
			return nil
		}
	}
}

// wholeName returns the selector that a name ends, or the name.
func wholeName(at inspector.Cursor) ast.Expr {
	if at.ParentEdgeKind() == edge.SelectorExpr_Sel {
		at = at.Parent()
	}
	return at.Node().(ast.Expr)
}

// text returns an expression as it stands in the source, cut if it is long.
func (p *inspection) text(e ast.Expr) string {
	const max = 40
	text := types.ExprString(e)
	if len(text) > max {
		text = "…" + text[len(text)-max:]
	}
	return text
}
