package vet

import (
	"go/ast"
	"go/types"
	"slices"
)

// examineDynamic yields findings about what a call through an interface or a function value may
// call, as far as the package shows which values it uses.
func (in *inspection) examineDynamic(call *ast.CallExpr, called types.Object, yield func(finding)) {
	_, isStatic := called.(*types.Func)
	switch {
	case in.TypesInfo.Types[call.Fun].IsType(), isStatic && !isInterfaceMethod(called):
		return
	case called != nil && (ruleFor(called) != nil || in.effectsOf(called) != nil):
		return // examineName yields its findings
	}
	action := "calls " + in.text(call.Fun)
	for _, target := range in.targetsOf(call, called) {
		in.findingsOf(target, call.Pos(), "may call", func(f finding) {
			if f.rule.advice == "" {
				return // an unknown call with a *replay.Context is durable anyway
			}
			via := f.action
			if f.via != "" {
				via += ", which " + f.via
			}
			yield(finding{f.rule, f.pos, action, via})
		})
	}
}

// targetsOf returns the functions that a dynamic call may call.
func (in *inspection) targetsOf(call *ast.CallExpr, called types.Object) []types.Object {
	if found, known := in.resolved[call]; known {
		return found
	}
	r := &resolution{in: in, isTest: in.isTest(call.Pos()), seen: make(map[*types.Var]bool)}
	switch called.(type) {
	case nil, *types.Var:
		r.add = func(e ast.Expr) { r.addTarget(in.functionOf(e)) }
		r.values(call.Fun)
	case *types.Func:
		selector, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr)
		if !ok {
			break
		}
		selection := in.TypesInfo.Selections[selector]
		if selection == nil || selection.Kind() != types.MethodVal {
			break
		}
		r.add = func(e ast.Expr) { r.addTarget(in.methodOf(e, called.Name())) }
		if field := in.embeddedField(selection); field != nil {
			r.variable(field, r.values)
		} else {
			r.values(selector.X)
		}
	}
	in.resolved[call] = r.targets
	return r.targets
}

// functionOf returns the function that an expression names, or the object of a literal.
func (in *inspection) functionOf(e ast.Expr) types.Object {
	if literal, ok := e.(*ast.FuncLit); ok {
		if object := in.literals[literal]; object != nil {
			return object
		}
		return nil
	}
	if fn, ok := in.bodyOf(e).(*types.Func); ok && !isInterfaceMethod(fn) {
		return fn
	}
	return nil
}

// methodOf returns a method of the type of an expression.
func (in *inspection) methodOf(e ast.Expr, name string) types.Object {
	t := in.TypesInfo.TypeOf(e)
	if t == nil || types.IsInterface(t) {
		return nil
	}
	method, _, _ := types.LookupFieldOrMethod(t, true, in.Pkg, name)
	if fn, ok := method.(*types.Func); ok && !isInterfaceMethod(fn) {
		return fn.Origin()
	}
	return nil
}

// A resolution finds the values that an expression may have, by following the sources of variables.
// It ignores control flow.
type resolution struct {
	in      *inspection
	isTest  bool // the call is in a test
	seen    map[*types.Var]bool
	add     func(ast.Expr)
	targets []types.Object
}

func (r *resolution) addTarget(target types.Object) {
	if target != nil && !slices.Contains(r.targets, target) {
		r.targets = append(r.targets, target)
	}
}

// values adds the values that an expression may have.
func (r *resolution) values(e ast.Expr) {
	e = ast.Unparen(e)
	switch n := e.(type) {
	case *ast.CallExpr:
		if !r.in.TypesInfo.Types[n.Fun].IsType() {
			r.results(n, 0)
		} else if len(n.Args) == 1 {
			r.values(n.Args[0])
		}
	case *ast.TypeAssertExpr:
		if isDynamic(r.in.TypesInfo.TypeOf(n)) {
			r.values(n.X)
		}
	case *ast.IndexExpr:
		if isDynamic(elementOf(r.in.underlying(n.X))) {
			r.elements(n.X)
			return
		}
	}
	if v := r.in.variableOf(e); v != nil && isDynamic(v.Type()) {
		r.variable(v, r.values)
		return
	}
	r.add(e)
}

// elements adds the values that elements of a slice or map may have.
func (r *resolution) elements(e ast.Expr) {
	switch n := ast.Unparen(e).(type) {
	case *ast.CompositeLit:
		for _, element := range n.Elts {
			if pair, ok := element.(*ast.KeyValueExpr); ok {
				element = pair.Value
			}
			r.values(element)
		}
	case *ast.SliceExpr:
		r.elements(n.X)
	case *ast.CallExpr:
		if !r.in.isBuiltin(n, "append") {
			r.results(n, 0)
			return
		}
		for i, argument := range n.Args {
			if i == 0 || n.Ellipsis.IsValid() {
				r.elements(argument)
			} else {
				r.values(argument)
			}
		}
	default:
		if v := r.in.variableOf(n); v != nil {
			r.variable(v, r.elements)
		}
	}
}

// results follows a result of a call of a function of the package.
func (r *resolution) results(call *ast.CallExpr, index int) {
	fn, ok := r.in.callee(call).(*types.Func)
	if !ok || index >= fn.Signature().Results().Len() {
		return
	}
	result := fn.Signature().Results().At(index)
	if isDynamic(result.Type()) {
		r.variable(result, r.values)
	} else {
		r.variable(result, r.elements)
	}
}

// variable follows the sources of a variable. Values that orchestration code assigns hide the
// others, which are then for activities or tests.
func (r *resolution) variable(v *types.Var, follow func(ast.Expr)) {
	if r.seen[v] {
		return
	}
	r.seen[v] = true
	all := r.in.sources[v]
	hidden := slices.ContainsFunc(all, func(s source) bool { return s.inOrchestration })
	for _, s := range all {
		// Orchestration code that names a function is reported there.
		isReported := s.inOrchestration && isSignature(v.Type())
		if hidden && !s.inOrchestration || isReported || s.isTest && !r.isTest {
			continue
		}
		switch call, isCall := ast.Unparen(s.value).(*ast.CallExpr); {
		case s.from == fromElement:
			r.elements(s.value)
		case s.from == fromResult && isCall:
			r.results(call, s.result)
		case s.isElement:
			r.values(s.value)
		default:
			follow(s.value)
		}
	}
}
