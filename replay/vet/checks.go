package vet

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/ast/edge"
	"golang.org/x/tools/go/ast/inspector"
)

// checkFutures reports futures that are never awaited.
func (p *inspection) checkFutures(c *function) {
	for at := range c.cursor.Preorder((*ast.CallExpr)(nil)) {
		call := at.Node().(*ast.CallExpr)
		if t := p.TypesInfo.TypeOf(call); t == nil || !isFuture(t) || p.hasClosePolicy(call) {
			continue
		}
		if p.isDropped(c, at) {
			p.report(finding{unawaited, call.Pos(), "drops the future of " + p.text(call.Fun), ""})
		}
	}
}

// hasClosePolicy reports whether a child is started with a close policy.
func (p *inspection) hasClosePolicy(call *ast.CallExpr) bool {
	for _, argument := range call.Args {
		option, ok := ast.Unparen(argument).(*ast.CallExpr)
		if ok && replayFunction(p.callee(option)) == "OnParentClose" {
			return true
		}
	}
	return false
}

// isDropped reports whether a value is discarded, or stored only in a local variable that is
// never read.
func (p *inspection) isDropped(c *function, at inspector.Cursor) bool {
	switch at.ParentEdgeKind() {
	case edge.ExprStmt_X:
		return true
	case edge.AssignStmt_Rhs, edge.ValueSpec_Values:
		// "_ =" means that the coroutine is not awaited on purpose.
		if call, ok := at.Node().(*ast.CallExpr); ok && replayFunction(p.callee(call)) == "Go" {
			return false
		}
	case edge.CallExpr_Args:
		call := at.Parent()
		return p.isBuiltin(call.Node().(*ast.CallExpr), "append") && p.isDropped(c, call)
	default:
		return false
	}
	if name := targetOf(at); name != nil && name.Name == "_" {
		return true
	}
	v := p.assignedTo(at)
	return v != nil && isDeclaredIn(v, c.cursor.Node()) && !p.isRead(c, v)
}

// isRead reports whether a variable is used other than by assigning to it or appending to
// itself.
func (p *inspection) isRead(c *function, v *types.Var) bool {
	for at := range c.cursor.Preorder((*ast.Ident)(nil)) {
		if p.TypesInfo.Uses[at.Node().(*ast.Ident)] != v {
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
			if !p.isBuiltin(call.Node().(*ast.CallExpr), "append") || p.assignedTo(call) != v {
				return true
			}
		default:
			return true
		}
	}
	return false
}

// checkDefers reports deferred durable calls.
func (p *inspection) checkDefers(c *function) {
	for at := range c.cursor.Preorder((*ast.DeferStmt)(nil)) {
		call := at.Node().(*ast.DeferStmt).Call
		region := at.ChildAt(edge.DeferStmt_Call, -1).ChildAt(edge.CallExpr_Fun, -1)
		found := func(f finding) {
			if f.rule == durable {
				f.rule = deferred
				f.action += " in a deferred function"
				p.report(f)
			}
		}
		p.examine(c, region, found)
		if _, isLiteral := call.Fun.(*ast.FuncLit); !isLiteral && p.isUnknown(p.callee(call)) && p.passesContext(call) {
			found(finding{durable, call.Pos(), "calls " + p.text(call.Fun), ""})
		}
	}
}

// checkExempt reports the few things that functions of replay.SideEffect and queries must not
// do.
func (p *inspection) checkExempt(c *function) {
	for at := range c.cursor.Preorder((*ast.CallExpr)(nil)) {
		call := at.Node().(*ast.CallExpr)
		exemption, ok := exemptArguments[replayFunction(p.callee(call))]
		if !ok || len(call.Args) <= exemption.argument {
			continue
		}
		literal := at.ChildAt(edge.CallExpr_Args, exemption.argument)
		if _, ok := literal.Node().(*ast.FuncLit); !ok {
			continue
		}
		inner := &function{literal, nil, true, exemption.what}
		p.examine(inner, inner.cursor, func(f finding) {
			switch f.rule {
			case ordered:
				p.report(finding{exemption.rule, f.pos, f.action + " in " + exemption.what, f.via})
			case shared:
				p.report(finding{exemption.rule, f.pos, f.action, f.via})
			}
		})
	}
}

// checkReplaying reports ordered calls that depend on ctx.Replaying.
func (p *inspection) checkReplaying(c *function) {
	for at := range c.cursor.Preorder((*ast.IfStmt)(nil)) {
		statement := at.Node().(*ast.IfStmt)
		if !p.callsReplaying(at.ChildAt(edge.IfStmt_Cond, -1)) {
			continue
		}
		action := p.orderedIn(c, at.ChildAt(edge.IfStmt_Body, -1))
		if action == "" && statement.Else != nil {
			action = p.orderedIn(c, at.ChildAt(edge.IfStmt_Else, -1))
		}
		if action != "" {
			p.report(finding{replaying, statement.Pos(), action + " or not, as ctx.Replaying() says", ""})
		}
	}
}

func (p *inspection) callsReplaying(region inspector.Cursor) bool {
	for at := range region.Preorder((*ast.CallExpr)(nil)) {
		if replayFunction(p.callee(at.Node().(*ast.CallExpr))) == "Context.Replaying" {
			return true
		}
	}
	return false
}
