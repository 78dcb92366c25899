package vet

import (
	"go/ast"
	"go/types"
	"slices"

	"golang.org/x/tools/go/types/typeutil"
)

const replayPath = "github.com/tenuto-dev/tenuto/replay"

// durableCalls do nothing but return ErrDehydrating while the instance is
// dropped from memory.
var durableCalls = []string{
	"ActivityHandle.Call", "ActivityHandle.Start",
	"OrchestrationHandle.Call", "OrchestrationHandle.Start", "OrchestrationHandle.Chain",
	"EventHandle.Subscribe", "EventHandle.Wait", "EventHandle.WaitFor",
	"Context.Sleep", "Context.Timer",
	"Future.Await", "Future.AwaitFor",
	"All", "AsCompleted", "AwaitUpdates", "Go", "Map", "Next", "Once", "Patched", "Race", "Retired", "SetStatus", "Settle",
	"Semaphore.Acquire", "WithTimeout",
}

// orderedCalls have an order that matters and are harmless when the instance is
// dropped: random numbers are drawn one after the other, clean-up runs backwards.
var orderedCalls = []string{
	"Context.OnClose", "Context.Random", "Context.UUID", "Future.Cancel", "Saga.Compensate", "Semaphore.Release", "UpdateHandle.Handle",
}

// spared lists the arguments that are not run as orchestration code is: by the
// function, which argument, and the rule for what it must not do all the same.
var spared = map[string]struct {
	argument int
	rule     *rule
	what     string
}{
	"Once":                {2, once, "the function that replay.Once calls"},
	"QueryHandle.Answer":  {1, query, "the function that answers a query"},
	"UpdateHandle.Handle": {1, query, "the function that validates an update"},
}

// api returns the name of a function of package replay, "Type.Method" or
// "Function"; "" for others.
func api(obj types.Object) string {
	fn, ok := obj.(*types.Func)
	if !ok || fn.Pkg() == nil || fn.Pkg().Path() != replayPath {
		return ""
	}
	if receiver := receiverName(fn); receiver != "" {
		return receiver + "." + fn.Name()
	}
	return fn.Name()
}

func isDurable(name string) bool { return slices.Contains(durableCalls, name) }
func isOrdered(name string) bool { return isDurable(name) || slices.Contains(orderedCalls, name) }

// callee returns the function, method or variable that a call calls; nil if it
// has no name.
func (p *inspection) callee(call *ast.CallExpr) types.Object {
	return origin(typeutil.Callee(p.TypesInfo, call))
}

// origin returns the generic function that obj is an instance of, or obj.
func origin(obj types.Object) types.Object {
	switch obj := obj.(type) {
	case *types.Func:
		return obj.Origin()
	case *types.Var:
		return obj.Origin()
	}
	return obj
}

// isReplay tells whether t is the named type of package replay, or a pointer to
// it.
func isReplay(t types.Type, name string) bool {
	if pointer, ok := types.Unalias(t).(*types.Pointer); ok {
		return isNamed(pointer.Elem(), replayPath, name)
	}
	return false
}

func isNamed(t types.Type, path, name string) bool {
	named, ok := types.Unalias(t).(*types.Named)
	if !ok {
		return false
	}
	obj := named.Obj()
	return obj.Name() == name && obj.Pkg() != nil && obj.Pkg().Path() == path
}

func isContext(t types.Type) bool { return isReplay(t, "Context") }
func isFuture(t types.Type) bool  { return isReplay(t, "Future") }

// isGoContext tells whether t is a context.Context.
func isGoContext(t types.Type) bool { return t != nil && isNamed(t, "context", "Context") }

// underlying returns what the type of an expression is made of. It is never nil:
// what cannot be typed has an invalid type.
func (p *inspection) underlying(e ast.Expr) types.Type {
	if t := p.TypesInfo.TypeOf(e); t != nil {
		return t.Underlying()
	}
	return types.Typ[types.Invalid]
}

// takes tells whether a function has a parameter of a kind.
func takes(signature *types.Signature, kind func(types.Type) bool) bool {
	for parameter := range signature.Params().Variables() {
		if kind(parameter.Type()) {
			return true
		}
	}
	return false
}
