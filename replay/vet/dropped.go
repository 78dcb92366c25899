package vet

import (
	"go/ast"
	"go/types"
	"slices"

	"golang.org/x/tools/go/ast/edge"
	"golang.org/x/tools/go/ast/inspector"
)

// checkErrors reports waits whose error is dropped, and calls of ContinueAsNew whose error is not
// returned.
func (in *inspection) checkErrors(c *function) {
	for at := range c.cursor.Preorder((*ast.CallExpr)(nil)) {
		call := at.Node().(*ast.CallExpr)
		called := in.callee(call)
		action := "drops the error of " + in.text(call.Fun)
		switch {
		case in.isContinuing(called):
			if !in.mayReturn(c, at, nil) {
				in.report(finding{dropped, call.Pos(), action, in.continuingPath(called)})
			}
		case slices.Contains(waits, replayFunction(called)):
			if in.dropsError(at) && !in.isDeferred(c, at) && !in.hasHarmlessError(c, call) {
				in.report(finding{unchecked, call.Pos(), action, ""})
			}
		}
	}
}

const continueAsNew = "OrchestrationHandle.ContinueAsNew"

// isContinuing reports whether a function is ContinueAsNew, or returns what ContinueAsNew returns.
func (in *inspection) isContinuing(called types.Object) bool {
	return replayFunction(called) == continueAsNew || in.continuingPath(called) != ""
}

// continuingPath returns how a function comes to return the error of ContinueAsNew, or "".
func (in *inspection) continuingPath(called types.Object) string {
	if found := in.effectsOf(called); found != nil {
		for _, e := range found.Effects {
			if e.Rule == continuing.name {
				return e.Path
			}
		}
	}
	return ""
}

// findContinuing yields the calls of ContinueAsNew whose error the function returns as its own.
func (in *inspection) findContinuing(c *function, yield func(finding)) {
	if !c.orchestration {
		return
	}
	for at := range c.cursor.Preorder((*ast.CallExpr)(nil)) {
		call := at.Node().(*ast.CallExpr)
		called := in.callee(call)
		if isLastResult(at) && in.isContinuing(called) && in.returnsFrom(c, at) {
			yield(finding{continuing, call.Pos(), "returns " + in.text(call.Fun), in.continuingPath(called)})
		}
	}
}

func isLastResult(at inspector.Cursor) bool {
	statement, ok := at.Parent().Node().(*ast.ReturnStmt)
	return ok && at.ParentEdgeIndex() == len(statement.Results)-1
}

// mayReturn reports whether a value, an error, can leave the function: it has another use than
// comparisons, texts and logs. The variables in seen are already being followed.
func (in *inspection) mayReturn(c *function, at inspector.Cursor, seen []*types.Var) bool {
	for at.ParentEdgeKind() == edge.ParenExpr_X {
		at = at.Parent()
	}
	switch at.ParentEdgeKind() {
	case edge.ExprStmt_X, edge.DeferStmt_Call, edge.GoStmt_Call:
		return false
	case edge.BinaryExpr_X, edge.BinaryExpr_Y, edge.SwitchStmt_Tag, edge.CaseClause_List, edge.SelectorExpr_X:
		return false
	case edge.CallExpr_Args:
		return !in.onlyReads(at.Parent().Node().(*ast.CallExpr))
	case edge.AssignStmt_Rhs, edge.ValueSpec_Values:
		return in.mayReturnTarget(c, at, seen)
	}
	return true
}

// mayReturnTarget is mayReturn for a value that is assigned.
func (in *inspection) mayReturnTarget(c *function, at inspector.Cursor, seen []*types.Var) bool {
	name, ok := errorTarget(at).(*ast.Ident)
	if !ok {
		return true
	}
	if name.Name == "_" {
		return false
	}
	v, ok := in.TypesInfo.ObjectOf(name).(*types.Var)
	if !ok || v.Kind() == types.ResultVar || !isDeclaredIn(v, c.cursor.Node()) {
		return true
	}
	if slices.Contains(seen, v) {
		return false
	}
	seen = append(seen, v)
	for use := range c.cursor.Preorder((*ast.Ident)(nil)) {
		if in.TypesInfo.Uses[use.Node().(*ast.Ident)] != v || use.ParentEdgeKind() == edge.AssignStmt_Lhs {
			continue
		}
		if runsAfter(use, at) && in.mayReturn(c, use, seen) {
			return true
		}
	}
	return false
}

// runsAfter reports whether code can run after other code of the function: it is below, in the same
// loop, or in another function literal.
func runsAfter(use, at inspector.Cursor) bool {
	if use.Node().Pos() > at.Node().End() {
		return true
	}
	for outer := range at.Enclosing((*ast.ForStmt)(nil), (*ast.RangeStmt)(nil)) {
		if outer.Node().Pos() <= use.Node().Pos() && use.Node().End() <= outer.Node().End() {
			return true
		}
	}
	return innermostLiteral(use) != innermostLiteral(at)
}

func innermostLiteral(at inspector.Cursor) ast.Node {
	for literal := range at.Enclosing((*ast.FuncLit)(nil)) {
		return literal.Node()
	}
	return nil
}

// onlyReads reports whether a call makes a text, a log record or a bool of an error.
func (in *inspection) onlyReads(call *ast.CallExpr) bool {
	fn, ok := in.callee(call).(*types.Func)
	if !ok || fn.Pkg() == nil {
		return false
	}
	switch fn.Pkg().Path() {
	case "log", "log/slog":
		return true
	case "fmt":
		return fn.Name() != "Errorf"
	case "errors":
		return fn.Name() == "Is"
	}
	return false
}

// errorTarget returns what the last result of a call is assigned to, nil if there is none.
func errorTarget(at inspector.Cursor) ast.Expr {
	pick := func(targets, values int) int {
		if values == 1 {
			return targets - 1
		}
		return at.ParentEdgeIndex()
	}
	switch n := at.Parent().Node().(type) {
	case *ast.AssignStmt:
		if i := pick(len(n.Lhs), len(n.Rhs)); 0 <= i && i < len(n.Lhs) {
			return n.Lhs[i]
		}
	case *ast.ValueSpec:
		if i := pick(len(n.Names), len(n.Values)); 0 <= i && i < len(n.Names) {
			return n.Names[i]
		}
	}
	return nil
}

// dropsError reports whether the last result of a call is ignored or assigned to the blank
// identifier.
func (in *inspection) dropsError(at inspector.Cursor) bool {
	for at.ParentEdgeKind() == edge.ParenExpr_X {
		at = at.Parent()
	}
	switch at.ParentEdgeKind() {
	case edge.ExprStmt_X:
		return true
	case edge.AssignStmt_Rhs, edge.ValueSpec_Values:
		name, ok := errorTarget(at).(*ast.Ident)
		return ok && name.Name == "_"
	}
	return false
}

// isDeferred reports whether a call is in a deferred function, which the rule "defer" reports.
func (in *inspection) isDeferred(c *function, at inspector.Cursor) bool {
	for outer := range at.Enclosing((*ast.DeferStmt)(nil)) {
		return isWithin(outer.Node(), c.cursor.Node())
	}
	return false
}

func isWithin(inner, outer ast.Node) bool {
	return outer.Pos() <= inner.Pos() && inner.End() <= outer.End()
}

// hasHarmlessError reports whether a wait may ignore its error: cancellation does not reach its
// *replay.Context, or the function has canceled the future that it awaits.
func (in *inspection) hasHarmlessError(c *function, call *ast.CallExpr) bool {
	receiver := in.receiverOf(call)
	for _, e := range append([]ast.Expr{receiver}, call.Args...) {
		if e == nil {
			continue
		}
		if t := in.TypesInfo.TypeOf(e); t != nil && isContext(t) && in.isUncanceled(e) {
			return true
		}
	}
	awaited := in.variableOf(receiver)
	if awaited == nil || !isFuture(awaited.Type()) {
		return false
	}
	for at := range c.cursor.Preorder((*ast.CallExpr)(nil)) {
		other := at.Node().(*ast.CallExpr)
		if other.Pos() < call.Pos() && replayFunction(in.callee(other)) == "Future.Cancel" && in.variableOf(in.receiverOf(other)) == awaited {
			return true
		}
	}
	return false
}

// receiverOf returns the x of x.f(), nil if there is none.
func (in *inspection) receiverOf(call *ast.CallExpr) ast.Expr {
	if selector, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok {
		return selector.X
	}
	return nil
}

// isUncanceled reports whether cancellation does not reach a *replay.Context.
func (in *inspection) isUncanceled(ctx ast.Expr) bool {
	if call, ok := ast.Unparen(ctx).(*ast.CallExpr); ok {
		return replayFunction(in.callee(call)) == "WithoutCancel"
	}
	v := in.variableOf(ctx)
	return v != nil && in.uncanceled[v]
}

// findUncanceled notes the variables to which cancellation does not reach: results of
// replay.WithoutCancel, and parameters of clean-up functions.
func (in *inspection) findUncanceled(at inspector.Cursor, name string) {
	switch name {
	case "WithoutCancel":
		if v := in.assignedTo(at); v != nil {
			in.uncanceled[v] = true
		}
	case "Context.OnClose", "Saga.Compensate":
		call := at.Node().(*ast.CallExpr)
		if len(call.Args) == 0 {
			return
		}
		signature := new(types.Signature)
		switch body := in.bodyOf(call.Args[len(call.Args)-1]).(type) {
		case *ast.FuncLit:
			signature = in.signature(body)
		case *types.Func:
			signature = body.Signature()
		}
		for parameter := range signature.Params().Variables() {
			in.uncanceled[parameter] = true
		}
	}
}
