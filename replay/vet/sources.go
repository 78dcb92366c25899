package vet

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/ast/inspector"
)

// A source is an expression that the package assigns to a variable, field, parameter or result.
type source struct {
	value ast.Expr
	// from says what is assigned: the value, an element of it, or one of the results of a call.
	from   origins
	result int
	// isElement: the value becomes an element of the variable, which is a slice or map.
	isElement       bool
	isTest          bool
	inOrchestration bool
}

type origins int

const (
	fromValue origins = iota
	fromElement
	fromResult
)

// collectSources finds what the package assigns to variables that hold interfaces or functions.
func (in *inspection) collectSources() {
	in.root.Inspect([]ast.Node{(*ast.AssignStmt)(nil), (*ast.ValueSpec)(nil), (*ast.CompositeLit)(nil), (*ast.CallExpr)(nil),
		(*ast.ReturnStmt)(nil), (*ast.RangeStmt)(nil)}, func(at inspector.Cursor) bool {
		switch n := at.Node().(type) {
		case *ast.AssignStmt:
			in.addAssigned(at, n.Lhs, n.Rhs)
		case *ast.ValueSpec:
			in.addSpec(at, n)
		case *ast.CompositeLit:
			in.addFields(at, n)
		case *ast.CallExpr:
			in.addArguments(at, n)
		case *ast.ReturnStmt:
			in.addResults(at, n)
		case *ast.RangeStmt:
			if n.Value != nil {
				in.addSource(at, in.variableOf(n.Value), source{value: n.X, from: fromElement})
			}
		}
		return true
	})
}

// addSource adds a source to a variable. It ignores variables that are nil or hold other types.
func (in *inspection) addSource(at inspector.Cursor, v *types.Var, s source) {
	if v == nil || s.value == nil || !isDynamic(v.Type()) && !isDynamic(elementOf(v.Type())) {
		return
	}
	s.isTest = in.isTest(s.value.Pos())
	s.inOrchestration = in.isInOrchestration(at)
	in.sources[v] = append(in.sources[v], s)
	if !s.inOrchestration {
		in.addLiterals(at, s.value)
	}
}

// addLiterals adds the function literals that a value consists of.
func (in *inspection) addLiterals(at inspector.Cursor, value ast.Expr) {
	switch n := ast.Unparen(value).(type) {
	case *ast.FuncLit:
		in.addLiteral(at, n)
	case *ast.KeyValueExpr:
		in.addLiterals(at, n.Value)
	case *ast.CompositeLit:
		for _, element := range n.Elts {
			in.addLiterals(at, element)
		}
	case *ast.CallExpr:
		if in.isBuiltin(n, "append") {
			for _, argument := range n.Args {
				in.addLiterals(at, argument)
			}
		}
	}
}

// addLiteral makes a function literal that a variable holds a unit of analysis.
func (in *inspection) addLiteral(at inspector.Cursor, literal *ast.FuncLit) {
	cursor, found := at.FindNode(literal)
	if !found || in.literals[literal] != nil || hasParameter(in.signature(literal), isContext) {
		return
	}
	object := types.NewVar(literal.Pos(), in.Pkg, "the function at "+in.position(literal.Pos()), in.signature(literal))
	in.literals[literal] = object
	in.addFunction(&function{cursor, object, false, ""})
}

func (in *inspection) isInOrchestration(at inspector.Cursor) bool {
	for outer := range at.Enclosing((*ast.FuncDecl)(nil), (*ast.FuncLit)(nil)) {
		if hasParameter(in.signatureOf(outer.Node()), isContext) {
			return true
		}
	}
	return false
}

// isInActivity reports whether code is in a function that the package binds to an activity.
func (in *inspection) isInActivity(at inspector.Cursor) bool {
	for outer := range at.Enclosing((*ast.FuncDecl)(nil), (*ast.FuncLit)(nil)) {
		var key any = outer.Node()
		if declared, ok := outer.Node().(*ast.FuncDecl); ok {
			key = origin(in.TypesInfo.Defs[declared.Name])
		}
		if in.activities[key] {
			return true
		}
	}
	return false
}

// signatureOf returns the signature of a *ast.FuncDecl or *ast.FuncLit.
func (in *inspection) signatureOf(node ast.Node) *types.Signature {
	switch n := node.(type) {
	case *ast.FuncLit:
		return in.signature(n)
	case *ast.FuncDecl:
		if fn, ok := in.TypesInfo.Defs[n.Name].(*types.Func); ok {
			return fn.Signature()
		}
	}
	return new(types.Signature)
}

// isDynamic reports whether a call of a value, or of a method of it, depends on the value.
func isDynamic(t types.Type) bool {
	if t == nil || t == types.Universe.Lookup("error").Type() {
		return false
	}
	switch t.Underlying().(type) {
	case *types.Interface, *types.Signature:
		return true
	}
	return false
}

// elementOf returns the type of the elements of a slice, array or map, nil for others.
func elementOf(t types.Type) types.Type {
	if container, ok := t.Underlying().(interface{ Elem() types.Type }); ok {
		return container.Elem()
	}
	return nil
}

// variableOf returns the variable or field to which an expression refers, nil if there is none.
func (in *inspection) variableOf(e ast.Expr) *types.Var {
	var object types.Object
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		object = in.TypesInfo.ObjectOf(e)
	case *ast.SelectorExpr:
		object = in.TypesInfo.ObjectOf(e.Sel)
	}
	v, _ := origin(object).(*types.Var)
	return v
}

func (in *inspection) addAssigned(at inspector.Cursor, targets, values []ast.Expr) {
	for i, target := range targets {
		s := source{}
		if index, ok := ast.Unparen(target).(*ast.IndexExpr); ok {
			target, s.isElement = index.X, true
		}
		switch {
		case len(values) == len(targets):
			s.value = values[i]
		case len(values) == 1:
			s.value, s.from, s.result = values[0], fromResult, i
		}
		in.addSource(at, in.variableOf(target), s)
	}
}

// addSpec skips package variables that begin as a function: addVariables handles them.
func (in *inspection) addSpec(at inspector.Cursor, spec *ast.ValueSpec) {
	var names []ast.Expr
	for _, name := range spec.Names {
		if v := in.variableOf(name); v != nil && isPackageLevel(v) && isSignature(v.Type()) {
			return
		}
		names = append(names, name)
	}
	in.addAssigned(at, names, spec.Values)
}

func isSignature(t types.Type) bool {
	_, ok := t.Underlying().(*types.Signature)
	return ok
}

func (in *inspection) addFields(at inspector.Cursor, literal *ast.CompositeLit) {
	fields, isStruct := in.underlying(literal).(*types.Struct)
	if !isStruct {
		return
	}
	for i, element := range literal.Elts {
		if pair, ok := element.(*ast.KeyValueExpr); ok {
			in.addSource(at, in.variableOf(pair.Key), source{value: pair.Value})
		} else if i < fields.NumFields() {
			in.addSource(at, fields.Field(i).Origin(), source{value: element})
		}
	}
}

// addArguments adds what a call passes to a function of the package. It skips functions that other
// packages may call with other values, and calls from activities.
func (in *inspection) addArguments(at inspector.Cursor, call *ast.CallExpr) {
	fn, ok := in.callee(call).(*types.Func)
	if !ok || fn.Pkg() != in.Pkg || fn.Exported() && in.Pkg.Name() != "main" || in.isInActivity(at) {
		return
	}
	parameters := fn.Signature().Params()
	for i, argument := range call.Args {
		last := parameters.Len() - 1
		s := source{value: argument, isElement: fn.Signature().Variadic() && i >= last && !call.Ellipsis.IsValid()}
		if i = min(i, last); i >= 0 {
			in.addSource(at, parameters.At(i), s)
		}
	}
}

func (in *inspection) addResults(at inspector.Cursor, statement *ast.ReturnStmt) {
	for outer := range at.Enclosing((*ast.FuncDecl)(nil), (*ast.FuncLit)(nil)) {
		results := in.signatureOf(outer.Node()).Results()
		for i := range results.Len() {
			switch len(statement.Results) {
			case results.Len():
				in.addSource(at, results.At(i), source{value: statement.Results[i]})
			case 1:
				in.addSource(at, results.At(i), source{value: statement.Results[0], from: fromResult, result: i})
			}
		}
		return
	}
}

// isInterfaceMethod reports whether a function is a method of an interface or type parameter.
func isInterfaceMethod(object types.Object) bool {
	fn, ok := object.(*types.Func)
	return ok && fn.Signature().Recv() != nil && types.IsInterface(fn.Signature().Recv().Type())
}

// embeddedField returns the embedded interface whose method a selector names, nil if the method is
// that of the operand itself.
func (in *inspection) embeddedField(selection *types.Selection) *types.Var {
	var field *types.Var
	t, path := selection.Recv(), selection.Index()
	for _, index := range path[:len(path)-1] {
		if pointer, ok := t.Underlying().(*types.Pointer); ok {
			t = pointer.Elem()
		}
		fields, ok := t.Underlying().(*types.Struct)
		if !ok || index >= fields.NumFields() {
			return nil
		}
		field = fields.Field(index).Origin()
		t = field.Type()
	}
	return field
}
