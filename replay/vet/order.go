package vet

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ast/edge"
	"golang.org/x/tools/go/ast/inspector"
)

// checkRanges reports loops over maps that make ordered calls.
func (in *inspection) checkRanges(c *function) {
	for at := range c.cursor.Preorder((*ast.RangeStmt)(nil)) {
		loop := at.Node().(*ast.RangeStmt)
		if !in.isMapRange(loop) {
			continue
		}
		if action := in.orderedIn(c, at.ChildAt(edge.RangeStmt_Body, -1)); action != "" {
			in.report(finding{mapOrder, loop.Pos(), "ranges over a map and " + action, ""})
		}
	}
}

// orderedIn returns the first ordered call in a region, or "".
func (in *inspection) orderedIn(c *function, region inspector.Cursor) string {
	action := ""
	in.examine(c, region, func(f finding) {
		if f.rule == ordered && action == "" {
			action = f.action
			if f.via != "" {
				action += ", which " + f.via
			}
		}
	})
	return action
}

// isMapRange reports whether a loop runs in map order.
func (in *inspection) isMapRange(loop *ast.RangeStmt) bool {
	if call, ok := ast.Unparen(loop.X).(*ast.CallExpr); ok && isMapSequence(in.callee(call)) {
		return true
	}
	_, isMap := in.underlying(loop.X).(*types.Map)
	return isMap
}

// expMaps is the package maps whose functions Keys and Values return slices.
const expMaps = "golang.org/x/exp/maps"

func isMapSequence(called types.Object) bool {
	fn, ok := called.(*types.Func)
	return ok && fn.Pkg() != nil && (fn.Pkg().Path() == "maps" || fn.Pkg().Path() == expMaps) &&
		slices.Contains([]string{"All", "Keys", "Values"}, fn.Name())
}

// An orderUse is a use of a slice or string that was filled in map order and whose order matters.
type orderUse struct {
	pos      token.Pos
	action   string
	returned bool
}

// checkOrder reports values in map order that reach the history.
func (in *inspection) checkOrder(c *function) {
	in.trackOrder(c, func(use orderUse) {
		if !use.returned || in.isBody(c) {
			in.report(finding{mapOrder, use.pos, use.action, ""})
		}
	})
}

// trackOrder follows values in map order from their creation until they are sorted or their
// order matters.
func (in *inspection) trackOrder(c *function, yield func(orderUse)) {
	for at := range c.cursor.Preorder((*ast.RangeStmt)(nil), (*ast.CallExpr)(nil)) {
		switch n := at.Node().(type) {
		case *ast.RangeStmt:
			if in.isMapRange(n) {
				for _, v := range in.filledVariables(at) {
					in.trackVariable(c, v, n.End(), "fills "+v.Name()+" in the order of a map ("+in.position(n.Pos())+")", yield)
				}
			}
		case *ast.CallExpr:
			if cause := in.unorderedCall(n); cause != "" {
				if v := in.assignedTo(at); v != nil {
					in.trackVariable(c, v, n.End(), cause, yield)
				} else if use, ok := in.orderUseOf(c, at, cause); ok {
					yield(use)
				}
			}
		}
	}
}

// filledVariables returns the outer variables to which a loop appends.
func (in *inspection) filledVariables(loop inspector.Cursor) []*types.Var {
	var variables []*types.Var
	for at := range loop.ChildAt(edge.RangeStmt_Body, -1).Preorder((*ast.AssignStmt)(nil)) {
		assign := at.Node().(*ast.AssignStmt)
		if len(assign.Lhs) != 1 || len(assign.Rhs) != 1 {
			continue
		}
		name, ok := assign.Lhs[0].(*ast.Ident)
		if !ok || !in.isAppend(assign) {
			continue
		}
		v, ok := in.TypesInfo.Uses[name].(*types.Var)
		if ok && !isDeclaredIn(v, loop.Node()) && !slices.Contains(variables, v) {
			variables = append(variables, v)
		}
	}
	return variables
}

// isAppend reports whether an assignment is an append, or += of a string.
func (in *inspection) isAppend(assign *ast.AssignStmt) bool {
	if assign.Tok == token.ADD_ASSIGN {
		t, ok := in.underlying(assign.Lhs[0]).(*types.Basic)
		return ok && t.Info()&types.IsString != 0
	}
	call, ok := ast.Unparen(assign.Rhs[0]).(*ast.CallExpr)
	return ok && in.isBuiltin(call, "append")
}

func (in *inspection) isBuiltin(call *ast.CallExpr, name string) bool {
	builtin, ok := in.callee(call).(*types.Builtin)
	return ok && builtin.Name() == name
}

// unorderedCall describes why a call returns something in map order; "" if it does not.
func (in *inspection) unorderedCall(call *ast.CallExpr) string {
	called := in.callee(call)
	fn, ok := called.(*types.Func)
	if !ok || fn.Pkg() == nil {
		return ""
	}
	if fn.Pkg().Path() == expMaps && isMapSequence(fn) {
		return "calls " + in.nameOf(fn)
	}
	if fn.Pkg().Path() == "slices" && fn.Name() == "Collect" && len(call.Args) == 1 {
		inner, ok := ast.Unparen(call.Args[0]).(*ast.CallExpr)
		if ok && isMapSequence(in.callee(inner)) {
			return "collects " + in.text(inner)
		}
	}
	if found := in.effectsOf(called); found != nil {
		for _, e := range found.Effects {
			if e.Rule == unordered.name {
				return "calls " + in.nameOf(fn) + ", which " + e.Path
			}
		}
	}
	return ""
}

// assignedTo returns the variable to which an expression, or its first value, is assigned; nil
// if there is none.
func (in *inspection) assignedTo(at inspector.Cursor) *types.Var {
	if name := targetOf(at); name != nil {
		v, _ := in.TypesInfo.ObjectOf(name).(*types.Var)
		return v
	}
	return nil
}

// targetOf returns the name to which an expression is assigned, nil if there is none.
func targetOf(at inspector.Cursor) *ast.Ident {
	index := at.ParentEdgeIndex()
	switch at.ParentEdgeKind() {
	case edge.AssignStmt_Rhs:
		if targets := at.Parent().Node().(*ast.AssignStmt).Lhs; index < len(targets) {
			name, _ := targets[index].(*ast.Ident)
			return name
		}
	case edge.ValueSpec_Values:
		if names := at.Parent().Node().(*ast.ValueSpec).Names; index < len(names) {
			return names[index]
		}
	}
	return nil
}

// trackVariable yields the first use of a variable, after a position, for which its order matters.
// It yields nothing if the variable is sorted before that use.
func (in *inspection) trackVariable(c *function, v *types.Var, after token.Pos, cause string, yield func(orderUse)) {
	for at := range c.cursor.Preorder((*ast.Ident)(nil)) {
		name := at.Node().(*ast.Ident)
		if name.Pos() < after || in.TypesInfo.Uses[name] != v {
			continue
		}
		if in.isSorted(at) {
			return
		}
		if use, ok := in.orderUseOf(c, at, cause); ok {
			yield(use)
			return
		}
	}
}

// isSorted reports whether a value is passed to a function, or receives a method call, whose name
// says that it sorts.
func (in *inspection) isSorted(at inspector.Cursor) bool {
	for outer := range at.Enclosing((*ast.CallExpr)(nil)) {
		called := in.callee(outer.Node().(*ast.CallExpr))
		if called == nil {
			continue
		}
		name := called.Name()
		inSort := called.Pkg() != nil && called.Pkg().Path() == "sort"
		if inSort && slices.Contains(sorting, name) ||
			(strings.HasPrefix(name, "sort") || strings.Contains(name, "Sort")) && !strings.HasPrefix(strings.ToLower(name), "is") {
			return true
		}
	}
	return false
}

// sorting are the functions of package sort that sort and whose names do not say so.
var sorting = []string{"Ints", "Strings", "Float64s", "Slice", "SliceStable", "Stable"}

// orderPreserving are functions whose result has the order of their arguments.
var orderPreserving = []string{
	"strings.Join", "slices.Clone", "slices.Concat", "slices.Values", "slices.All", "slices.Compact",
	"fmt.Sprint", "fmt.Sprintf", "fmt.Sprintln", "fmt.Errorf",
}

// orderUseOf reports whether the order of a value matters, and why: it reaches a durable call,
// is returned, or a loop over it makes ordered calls.
func (in *inspection) orderUseOf(c *function, at inspector.Cursor, cause string) (orderUse, bool) {
	pos := at.Node().Pos()
	for {
		switch at.ParentEdgeKind() {
		case edge.ParenExpr_X, edge.CompositeLit_Elts, edge.KeyValueExpr_Value, edge.UnaryExpr_X, edge.SliceExpr_X:
			at = at.Parent()
		case edge.ReturnStmt_Results:
			if in.returnsFrom(c, at) {
				return orderUse{pos, cause + " and returns it", true}, true
			}
			return orderUse{}, false
		case edge.RangeStmt_X:
			body := at.Parent().ChildAt(edge.RangeStmt_Body, -1)
			if action := in.orderedIn(c, body); action != "" {
				return orderUse{pos, cause + ", ranges over it and " + action, false}, true
			}
			return orderUse{}, false
		case edge.CallExpr_Args:
			at = at.Parent()
			call := at.Node().(*ast.CallExpr)
			if in.preservesOrder(call) {
				continue
			}
			if action := in.orderedCall(c, call); action != "" {
				return orderUse{pos, cause + " and " + action + " with it", false}, true
			}
			return orderUse{}, false
		default:
			return orderUse{}, false
		}
	}
}

// returnsFrom reports whether a return statement ends the function itself and not a literal
// inside it.
func (in *inspection) returnsFrom(c *function, at inspector.Cursor) bool {
	for outer := range at.Enclosing((*ast.FuncLit)(nil), (*ast.FuncDecl)(nil)) {
		return outer.Node() == c.cursor.Node()
	}
	return false
}

// preservesOrder reports whether the result of a call has the order of an argument.
func (in *inspection) preservesOrder(call *ast.CallExpr) bool {
	if in.TypesInfo.Types[call.Fun].IsType() || in.isBuiltin(call, "append") {
		return true
	}
	called := in.callee(call)
	return called != nil && slices.Contains(orderPreserving, in.nameOf(called))
}

// orderedCall describes an ordered call, or returns "". Arguments do not count.
func (in *inspection) orderedCall(c *function, call *ast.CallExpr) string {
	at, ok := c.cursor.FindNode(call.Fun)
	if !ok {
		return ""
	}
	if action := in.orderedIn(c, at); action != "" {
		return action
	}
	if in.isUnknown(in.callee(call)) && in.passesContext(call) {
		return "calls " + in.text(call.Fun)
	}
	return ""
}
