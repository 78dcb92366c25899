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

// A change is a write to a variable or to what it holds.
type change struct {
	pos   token.Pos
	inner *ast.FuncLit // the innermost literal around the write, or nil
}

// collectChanges finds the changes of all variables, and exports which package variables change
// after initialization.
func (in *inspection) collectChanges() {
	for at := range in.root.Preorder((*ast.AssignStmt)(nil), (*ast.IncDecStmt)(nil), (*ast.RangeStmt)(nil), (*ast.CallExpr)(nil)) {
		for _, target := range in.writeTargets(at.Node()) {
			if root, variable := in.rootOf(target); variable != nil {
				in.targets[root] = true
				in.addChange(at, variable, root.Pos())
			}
		}
	}
	for variable, changes := range in.changes {
		if variable.Pkg() == in.Pkg && isPackageLevel(variable) {
			in.ExportObjectFact(variable, &changedFact{in.position(changes[0].pos)})
		}
	}
}

func (in *inspection) addChange(at inspector.Cursor, variable *types.Var, pos token.Pos) {
	found := change{pos: pos}
	for outer := range at.Enclosing((*ast.FuncLit)(nil), (*ast.FuncDecl)(nil)) {
		switch n := outer.Node().(type) {
		case *ast.FuncLit:
			if found.inner == nil {
				found.inner = n
			}
		case *ast.FuncDecl:
			if n.Recv == nil && n.Name.Name == "init" && found.inner == nil && isPackageLevel(variable) {
				return
			}
		}
	}
	// Tests replace package variables with fakes.
	if isPackageLevel(variable) && in.isTest(pos) && !in.isTest(variable.Pos()) {
		return
	}
	in.changes[variable] = append(in.changes[variable], found)
}

func (in *inspection) isTest(pos token.Pos) bool {
	return strings.HasSuffix(in.Fset.Position(pos).Filename, "_test.go")
}

// writeTargets returns the expressions to which a statement or call writes.
func (in *inspection) writeTargets(node ast.Node) []ast.Expr {
	switch n := node.(type) {
	case *ast.AssignStmt:
		return n.Lhs
	case *ast.IncDecStmt:
		return []ast.Expr{n.X}
	case *ast.RangeStmt:
		if n.Tok == token.ASSIGN {
			return slices.DeleteFunc([]ast.Expr{n.Key, n.Value}, func(e ast.Expr) bool { return e == nil })
		}
	case *ast.CallExpr:
		return in.callWriteTargets(n)
	}
	return nil
}

func (in *inspection) callWriteTargets(call *ast.CallExpr) []ast.Expr {
	if len(call.Args) == 0 {
		return nil
	}
	switch called := in.callee(call).(type) {
	case *types.Builtin:
		if slices.Contains([]string{"delete", "clear", "copy"}, called.Name()) {
			return call.Args[:1]
		}
	case *types.Func:
		// flag.StringVar(&variable, …)
		isFlag := called.Pkg() != nil && called.Pkg().Name() == "flag"
		if isFlag && strings.HasSuffix(called.Name(), "Var") {
			if address, ok := ast.Unparen(call.Args[0]).(*ast.UnaryExpr); ok && address.Op == token.AND {
				return []ast.Expr{address.X}
			}
		}
	}
	return nil
}

// rootOf returns the variable that contains the written expression, and its identifier: m for
// m[k].f. The variable is nil if the statement declares it.
func (in *inspection) rootOf(target ast.Expr) (*ast.Ident, *types.Var) {
	for {
		switch e := target.(type) {
		case *ast.Ident:
			variable, _ := origin(in.TypesInfo.Uses[e]).(*types.Var)
			return e, variable
		case *ast.SelectorExpr:
			if name, ok := e.X.(*ast.Ident); ok {
				if _, isPackage := in.TypesInfo.Uses[name].(*types.PkgName); isPackage {
					target = e.Sel
					continue
				}
			}
			target = e.X
		case *ast.IndexExpr:
			target = e.X
		case *ast.SliceExpr:
			target = e.X
		case *ast.StarExpr:
			target = e.X
		case *ast.ParenExpr:
			target = e.X
		default:
			return nil, nil
		}
	}
}

func isPackageLevel(v *types.Var) bool {
	return v.Pkg() != nil && v.Parent() == v.Pkg().Scope()
}

func (in *inspection) examineWrites(c *function, node ast.Node, yield func(finding)) {
	for _, target := range in.writeTargets(node) {
		in.examineWrite(c, target, yield)
	}
}

// examineWrite yields writes to package variables and to variables of the function around an
// orchestration. Tests may use the latter to watch their orchestrations.
func (in *inspection) examineWrite(c *function, target ast.Expr, yield func(finding)) {
	root, variable := in.rootOf(target)
	switch {
	case variable == nil:
	case isPackageLevel(variable):
		yield(finding{global, root.Pos(), "writes the package variable " + in.nameOf(variable), ""})
	case c.orchestration && !isDeclaredIn(variable, c.cursor.Node()) && !in.isTest(root.Pos()):
		yield(finding{shared, root.Pos(), "writes " + variable.Name() + ", which is declared outside of " + c.description, ""})
	}
}

func isDeclaredIn(object types.Object, node ast.Node) bool {
	return node.Pos() <= object.Pos() && object.Pos() < node.End()
}

// examineVariable yields findings about the use of a variable that is not a field.
func (in *inspection) examineVariable(c *function, at inspector.Cursor, name *ast.Ident, v *types.Var, yield func(finding)) {
	switch {
	case in.belongsToOtherInstance(c, v):
		yield(finding{shared, name.Pos(), "uses " + in.nameOf(v) + ", which is declared outside of " + c.description + " and belongs to one instance", ""})
	case isPackageLevel(v):
		in.findingsOf(v, name.Pos(), verbOf(at), yield)
		if where := in.changedAt(v); where != "" && !in.targets[name] {
			yield(finding{global, name.Pos(), "reads the package variable " + in.nameOf(v) + ", which is changed at " + where, ""})
		}
	case !c.orchestration:
	case isContext(v.Type()):
		if !isDeclaredIn(v, in.enclosingFunction(c, at)) {
			yield(finding{captured, name.Pos(), "uses " + v.Name() + ", the *replay.Context of a function around this one", ""})
		}
	case isDeclaredIn(v, c.cursor.Node()):
	case isGoContext(v.Type()):
		yield(finding{goContext, name.Pos(), "uses " + v.Name() + ", a context.Context from outside of the orchestration", ""})
	case !in.targets[name] && !in.isTest(name.Pos()):
		if pos := in.changedLater(c, v); pos.IsValid() {
			yield(finding{sharedRead, name.Pos(), "reads " + v.Name() + ", which is changed outside of the orchestration (" + in.position(pos) + ")", ""})
		}
	}
}

// belongsToOtherInstance reports whether a variable outside the orchestration holds a value
// that is valid only in one instance.
func (in *inspection) belongsToOtherInstance(c *function, v *types.Var) bool {
	return c.orchestration && !isDeclaredIn(v, c.cursor.Node()) && !in.isTest(v.Pos()) &&
		(isFuture(v.Type()) || isReplayType(v.Type(), "Semaphore") || isReplayType(v.Type(), "Saga"))
}

func verbOf(at inspector.Cursor) string {
	if callOf(at) != nil {
		return "calls"
	}
	return "uses"
}

// changedAt returns where a package variable changes, or "".
func (in *inspection) changedAt(v *types.Var) string {
	if v.Pkg() == in.Pkg {
		if changes := in.changes[v]; len(changes) > 0 {
			return in.position(changes[0].pos)
		}
		return ""
	}
	found := new(changedFact)
	if in.ImportObjectFact(v, found) {
		return found.Where
	}
	return ""
}

// enclosingFunction returns the innermost function around a use that has a *replay.Context.
func (in *inspection) enclosingFunction(c *function, at inspector.Cursor) ast.Node {
	for outer := range at.Enclosing((*ast.FuncLit)(nil)) {
		if literal := outer.Node().(*ast.FuncLit); hasParameter(in.signature(literal), isContext) {
			return literal
		}
	}
	return c.cursor.Node()
}

// changedLater returns where a variable of the function around an orchestration may change while
// the orchestration runs. That is code after the orchestration, or in another function, which may
// run at any time.
func (in *inspection) changedLater(c *function, v *types.Var) token.Pos {
	node := c.cursor.Node()
	for _, change := range in.changes[v] {
		inside := node.Pos() <= change.pos && change.pos < node.End()
		inOtherFunction := change.inner != nil && (node.Pos() < change.inner.Pos() || node.End() > change.inner.End())
		if !inside && (inOtherFunction || change.pos > node.End()) {
			return change.pos
		}
	}
	return token.NoPos
}

// checkReceiver reports that the body of an orchestration writes to its receiver, which all
// instances on a node share.
func (in *inspection) checkReceiver(c *function) {
	fn, ok := c.object.(*types.Func)
	if !ok || !in.bound[fn] || fn.Signature().Recv() == nil {
		return
	}
	receiver := fn.Signature().Recv()
	if _, isPointer := types.Unalias(receiver.Type()).(*types.Pointer); !isPointer {
		return
	}
	for at := range c.cursor.Preorder((*ast.AssignStmt)(nil), (*ast.IncDecStmt)(nil), (*ast.RangeStmt)(nil), (*ast.CallExpr)(nil)) {
		for _, target := range in.writeTargets(at.Node()) {
			root, variable := in.rootOf(target)
			if variable == receiver && root != target {
				in.report(finding{shared, root.Pos(), "writes " + in.text(target) + " of the receiver of an orchestration", ""})
			}
		}
	}
}

// isBody reports whether a function is the body of an orchestration, whose result is recorded.
func (in *inspection) isBody(c *function) bool {
	if c.object != nil {
		return in.bound[c.object]
	}
	return c.cursor.ParentEdgeKind() == edge.CallExpr_Args && in.bound[c.cursor.Node()]
}
