package vet

import (
	"go/ast"
	"go/token"
	"go/types"

	"golang.org/x/tools/go/ast/edge"
	"golang.org/x/tools/go/ast/inspector"
)

// examine yields the findings in a region of a function. It skips functions that run
// elsewhere: activities, bodies of go statements, functions of replay.SideEffect, and
// orchestrations in other code.
func (in *inspection) examine(c *function, region inspector.Cursor, yield func(finding)) {
	region.Inspect(nil, func(at inspector.Cursor) bool {
		node := at.Node()
		if in.exempt[node] && node != c.cursor.Node() {
			return false
		}
		switch n := node.(type) {
		case *ast.FuncLit:
			return n == c.cursor.Node() || in.runsHere(c, n)
		case *ast.GoStmt:
			yield(finding{goroutine, n.Pos(), "starts a goroutine", ""})
			return false
		case *ast.CallExpr:
			in.examineCall(c, n, yield)
		case *ast.Ident:
			in.examineName(c, at, n, yield)
		default:
			in.examineChannel(at, yield)
			in.examineWrites(c, node, yield)
		}
		return true
	})
}

// runsHere reports whether a literal belongs to the function around it.
func (in *inspection) runsHere(c *function, literal *ast.FuncLit) bool {
	signature := in.signature(literal)
	if hasParameter(signature, isContext) {
		return c.orchestration
	}
	return !hasParameter(signature, isGoContext)
}

func (in *inspection) examineChannel(at inspector.Cursor, yield func(finding)) {
	found := func(action string) { yield(finding{channel, at.Node().Pos(), action, ""}) }
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
		if _, isChannel := in.underlying(n.X).(*types.Chan); isChannel {
			found("receives from a channel")
		}
	}
}

// examineCall yields findings about a call as a whole.
func (in *inspection) examineCall(c *function, call *ast.CallExpr, yield func(finding)) {
	in.examineWrites(c, call, yield)
	if in.isBuiltin(call, "close") {
		yield(finding{channel, call.Pos(), "closes a channel", ""})
	}
	called := in.callee(call)
	if _, ok := called.(*types.Builtin); ok {
		return
	}
	if r := in.TypesInfo.TypeOf(call); isGoContext(r) && (called == nil || ruleFor(called) == nil) {
		yield(finding{goContext, call.Pos(), "calls " + in.text(call.Fun) + " for a context.Context", ""})
	}
	if in.isAtomicWrite(call, called) {
		in.examineWrite(c, call.Fun.(*ast.SelectorExpr).X, yield)
	}
	in.examineDynamic(call, called, yield)
	if in.isUnknown(called) && in.passesContext(call) {
		action := "calls " + in.text(call.Fun)
		yield(finding{durable, call.Pos(), action, ""})
		yield(finding{ordered, call.Pos(), action, ""})
	}
}

// isAtomicWrite reports whether a call changes its receiver from package sync/atomic, or a
// sync.Map.
func (in *inspection) isAtomicWrite(call *ast.CallExpr, called types.Object) bool {
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

// isUnknown reports whether the called function was not analyzed, such as a function value, an
// interface method or a function of another module.
func (in *inspection) isUnknown(called types.Object) bool {
	return replayFunction(called) == "" && (called == nil || in.effectsOf(called) == nil)
}

// passesContext reports whether an argument is a *replay.Context.
func (in *inspection) passesContext(call *ast.CallExpr) bool {
	if in.TypesInfo.Types[call.Fun].IsType() {
		return false
	}
	for _, argument := range call.Args {
		if t := in.TypesInfo.TypeOf(argument); t != nil && isContext(t) {
			return true
		}
	}
	return false
}

// examineName yields findings about the use of a function or variable.
func (in *inspection) examineName(c *function, at inspector.Cursor, name *ast.Ident, yield func(finding)) {
	switch object := origin(in.TypesInfo.Uses[name]).(type) {
	case *types.Func:
		in.examineFunction(at, name, object, yield)
	case *types.Var:
		if object.IsField() {
			in.examineField(at, name, object, yield)
		} else {
			in.examineVariable(c, at, name, object, yield)
		}
	}
}

func (in *inspection) examineFunction(at inspector.Cursor, name *ast.Ident, fn *types.Func, yield func(finding)) {
	call := callOf(at)
	if called := replayFunction(fn); called != "" {
		action := "calls " + in.text(qualifiedName(at))
		if isDurable(called) {
			yield(finding{durable, name.Pos(), action, ""})
		}
		if isOrdered(called) {
			yield(finding{ordered, name.Pos(), action, ""})
		}
		return
	}
	switch {
	case call != nil:
		if ruleFor(fn) == goContext && isForLog(in, at) {
			return
		}
		in.findingsOf(fn, name.Pos(), "calls", yield)
	case !hasParameter(fn.Signature(), isGoContext): // naming an activity does not run it
		in.findingsOf(fn, name.Pos(), "uses", yield)
	}
}

// isForLog reports whether a context.Context is an argument of package log/slog, which
// requires one.
func isForLog(p *inspection, at inspector.Cursor) bool {
	for outer := range at.Enclosing((*ast.CallExpr)(nil)) {
		fn, ok := p.callee(outer.Node().(*ast.CallExpr)).(*types.Func)
		if ok && fn.Pkg() != nil && fn.Pkg().Path() == "log/slog" {
			return true
		}
	}
	return false
}

func (in *inspection) examineField(at inspector.Cursor, name *ast.Ident, field *types.Var, yield func(finding)) {
	if at.ParentEdgeKind() == edge.SelectorExpr_Sel && isGoContext(field.Type()) {
		yield(finding{goContext, name.Pos(), "uses " + in.text(qualifiedName(at)) + ", a context.Context", ""})
	}
}

// callOf returns the call whose function is the name at a cursor, nil if there is none.
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

// qualifiedName returns the selector that ends in a name, or the name.
func qualifiedName(at inspector.Cursor) ast.Expr {
	if at.ParentEdgeKind() == edge.SelectorExpr_Sel {
		at = at.Parent()
	}
	return at.Node().(ast.Expr)
}

// text returns the source of an expression, shortened to 40 bytes.
func (in *inspection) text(e ast.Expr) string {
	const textMax = 40
	text := types.ExprString(e)
	if len(text) > textMax {
		text = "…" + text[len(text)-textMax:]
	}
	return text
}
