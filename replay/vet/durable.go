package vet

import (
	"go/ast"
	"go/types"
	"slices"

	"golang.org/x/tools/go/types/typeutil"
)

const replayPath = "github.com/tenuto-dev/tenuto/replay"

// durableCalls only return ErrEvicting while the instance is evicted.
var durableCalls = []string{
	"ActivityHandle.Call", "ActivityHandle.Start",
	"OrchestrationHandle.Call", "OrchestrationHandle.Start", "OrchestrationHandle.Chain",
	"EventHandle.Subscribe", "EventHandle.Wait", "EventHandle.WaitFor", "EventHandle.SendTo", "CancelInstance",
	"Context.Sleep", "Context.Timer",
	"Future.Await", "Future.AwaitFor",
	"All", "AsCompleted", "Await", "AwaitFor", "AwaitUpdates", "Go", "Map", "Next", "SideEffect", "Patched", "Race", "DeprecatePatch",
	"SetStatus", "AttributeHandle.Set", "AttributeHandle.Remove", "KVHandle.Set", "KVHandle.Delete",
	"AllResults", "Channel.Receive", "Channel.Send", "Semaphore.Acquire", "WithTimeout",
}

// orderedCalls must have a fixed order and are harmless during eviction: random numbers are
// drawn in sequence, clean-up runs in reverse.
var orderedCalls = []string{
	"Context.OnClose", "Context.Random", "Context.UUID", "Future.Cancel", "Saga.Compensate", "Semaphore.Release", "Channel.Close",
	"UpdateHandle.Handle",
}

// waits block until something happens or the scope of their context ends. Their last result is an
// error, which says that. SideEffect, Chain, SetStatus and Handle do not wait.
var waits = []string{
	"ActivityHandle.Call", "OrchestrationHandle.Call", "EventHandle.Wait", "EventHandle.WaitFor", "EventHandle.SendTo", "CancelInstance", "Context.Sleep",
	"Future.Await", "Future.AwaitFor", "All", "AllResults", "Await", "AwaitFor", "AwaitUpdates", "Map", "Next", "Race",
	"Channel.Receive", "Channel.Send", "Semaphore.Acquire",
}

// exemptArguments lists function arguments that do not run as orchestration code, by the called
// function: the index of the argument, the rule that it can still break, and its description.
var exemptArguments = map[string]struct {
	argument int
	rule     *rule
	what     string
}{
	"SideEffect":          {2, sideEffect, "the function that replay.SideEffect calls"},
	"QueryHandle.Handle":  {1, query, "the function that answers a query"},
	"UpdateHandle.Handle": {1, query, "the function that validates an update"},
}

// replayFunction returns the name of a function of package replay, "Type.Method" or "Function", or
// "" for others.
func replayFunction(obj types.Object) string {
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

// callee returns the called function, method or variable; nil if it has no name.
func (in *inspection) callee(call *ast.CallExpr) types.Object {
	return origin(typeutil.Callee(in.TypesInfo, call))
}

// origin returns the generic declaration of which obj is an instance, or obj.
func origin(obj types.Object) types.Object {
	switch obj := obj.(type) {
	case *types.Func:
		return obj.Origin()
	case *types.Var:
		return obj.Origin()
	}
	return obj
}

// isReplayType reports whether t is a pointer to the named type of package replay.
func isReplayType(t types.Type, name string) bool {
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

func isContext(t types.Type) bool { return isReplayType(t, "Context") }
func isFuture(t types.Type) bool  { return isReplayType(t, "Future") }

// isGoContext reports whether t is a context.Context.
func isGoContext(t types.Type) bool { return t != nil && isNamed(t, "context", "Context") }

// underlying returns the underlying type of an expression, never nil: the invalid type if it
// has none.
func (in *inspection) underlying(e ast.Expr) types.Type {
	if t := in.TypesInfo.TypeOf(e); t != nil {
		return t.Underlying()
	}
	return types.Typ[types.Invalid]
}

// hasParameter reports whether a function has a parameter of a kind.
func hasParameter(signature *types.Signature, kind func(types.Type) bool) bool {
	for parameter := range signature.Params().Variables() {
		if kind(parameter.Type()) {
			return true
		}
	}
	return false
}
