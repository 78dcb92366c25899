package vet

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/ast/edge"
	"golang.org/x/tools/go/ast/inspector"
)

// checkFutures reports futures that are never awaited.
func (in *inspection) checkFutures(c *function) {
	for at := range c.cursor.Preorder((*ast.CallExpr)(nil)) {
		call := at.Node().(*ast.CallExpr)
		if t := in.TypesInfo.TypeOf(call); t == nil || !isFuture(t) || in.hasClosePolicy(call) {
			continue
		}
		if in.isDropped(c, at) {
			in.report(finding{unawaited, call.Pos(), "drops the future of " + in.text(call.Fun), ""})
		}
	}
}

// hasClosePolicy reports whether a child is started with a close policy.
func (in *inspection) hasClosePolicy(call *ast.CallExpr) bool {
	for _, argument := range call.Args {
		option, ok := ast.Unparen(argument).(*ast.CallExpr)
		if ok && replayFunction(in.callee(option)) == "OnParentClose" {
			return true
		}
	}
	return false
}

// isDropped reports whether a value is discarded, or stored only in a local variable that is
// never read.
func (in *inspection) isDropped(c *function, at inspector.Cursor) bool {
	switch at.ParentEdgeKind() {
	case edge.ExprStmt_X:
		return true
	case edge.AssignStmt_Rhs, edge.ValueSpec_Values:
		// "_ =" means that the coroutine is not awaited on purpose.
		if call, ok := at.Node().(*ast.CallExpr); ok && replayFunction(in.callee(call)) == "Go" {
			return false
		}
	case edge.CallExpr_Args:
		call := at.Parent()
		return in.isBuiltin(call.Node().(*ast.CallExpr), "append") && in.isDropped(c, call)
	default:
		return false
	}
	if name := targetOf(at); name != nil && name.Name == "_" {
		return true
	}
	v := in.assignedTo(at)
	return v != nil && isDeclaredIn(v, c.cursor.Node()) && !in.isRead(c, v)
}

// isRead reports whether a variable is used other than by assigning to it or appending to
// itself.
func (in *inspection) isRead(c *function, v *types.Var) bool {
	for at := range c.cursor.Preorder((*ast.Ident)(nil)) {
		if in.TypesInfo.Uses[at.Node().(*ast.Ident)] != v {
			continue
		}
		switch at.ParentEdgeKind() {
		case edge.AssignStmt_Lhs:
		case edge.AssignStmt_Rhs:
			if name := targetOf(at); name == nil || name.Name != "_" {
				return true
			}
		case edge.CallExpr_Args:
			call := at.Parent()
			if !in.isBuiltin(call.Node().(*ast.CallExpr), "append") || in.assignedTo(call) != v {
				return true
			}
		default:
			return true
		}
	}
	return false
}

// checkDefers reports deferred durable calls.
func (in *inspection) checkDefers(c *function) {
	for at := range c.cursor.Preorder((*ast.DeferStmt)(nil)) {
		call := at.Node().(*ast.DeferStmt).Call
		region := at.ChildAt(edge.DeferStmt_Call, -1).ChildAt(edge.CallExpr_Fun, -1)
		found := func(f finding) {
			if f.rule == durable {
				f.rule = deferred
				f.action += " in a deferred function"
				in.report(f)
			}
		}
		in.examine(c, region, found)
		if _, isLiteral := call.Fun.(*ast.FuncLit); !isLiteral && in.isUnknown(in.callee(call)) && in.passesContext(call) {
			found(finding{durable, call.Pos(), "calls " + in.text(call.Fun), ""})
		}
	}
}

// checkExempt reports the few things that functions of replay.SideEffect and queries must not
// do.
func (in *inspection) checkExempt(c *function) {
	for at := range c.cursor.Preorder((*ast.CallExpr)(nil)) {
		call := at.Node().(*ast.CallExpr)
		exemption, ok := exemptArguments[replayFunction(in.callee(call))]
		if !ok || len(call.Args) <= exemption.argument {
			continue
		}
		literal := at.ChildAt(edge.CallExpr_Args, exemption.argument)
		if _, ok := literal.Node().(*ast.FuncLit); !ok {
			continue
		}
		inner := &function{literal, nil, true, exemption.what}
		in.examine(inner, inner.cursor, func(f finding) {
			switch f.rule {
			case ordered:
				in.report(finding{exemption.rule, f.pos, f.action + " in " + exemption.what, f.via})
			case shared:
				in.report(finding{exemption.rule, f.pos, f.action, f.via})
			}
		})
	}
}

// checkReplaying reports ordered calls that depend on ctx.Replaying.
func (in *inspection) checkReplaying(c *function) {
	for at := range c.cursor.Preorder((*ast.IfStmt)(nil)) {
		statement := at.Node().(*ast.IfStmt)
		if !in.callsReplaying(at.ChildAt(edge.IfStmt_Cond, -1)) {
			continue
		}
		action := in.orderedIn(c, at.ChildAt(edge.IfStmt_Body, -1))
		if action == "" && statement.Else != nil {
			action = in.orderedIn(c, at.ChildAt(edge.IfStmt_Else, -1))
		}
		if action != "" {
			in.report(finding{replaying, statement.Pos(), action + ", depending on ctx.Replaying()", ""})
		}
	}
}

func (in *inspection) callsReplaying(region inspector.Cursor) bool {
	for at := range region.Preorder((*ast.CallExpr)(nil)) {
		if replayFunction(in.callee(at.Node().(*ast.CallExpr))) == "Context.Replaying" {
			return true
		}
	}
	return false
}
