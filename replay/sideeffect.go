package replay

import "fmt"

// SideEffect calls fn once and records its result under a label. On replay it returns the record
// without calling fn. Use it for values that are cheap, local and non-deterministic: a random
// choice, a configuration value, an environment variable. Use an activity for anything that can
// fail, block, be slow or have an external effect: a node that dies before the record is committed
// calls fn again. fn must not make durable calls. If fn is nil, the error is an [*InvalidError],
// and nothing is recorded.
func SideEffect[T any](ctx *Context, label string, fn func() (T, error)) (T, error) {
	var value T
	if fn == nil {
		ctx.execution().Check("SideEffect")
		return value, &InvalidError{Field: fmt.Sprintf("function of SideEffect %q", label), Reason: "is nil"}
	}
	err := ctx.scope.SideEffect(label, func() (any, error) { return fn() }, &value)
	if err != nil {
		var zero T
		return zero, err
	}
	return value, nil
}

// SetStatus sets the custom status, which clients can read. The last value remains visible after
// the instance has ended and across continue-as-new. The error is a [*PayloadError] if the value
// cannot be encoded.
func SetStatus[T any](ctx *Context, value T) error {
	return ctx.execution().SetStatus(value)
}

// Patched lets one function hold two branches: the old code for instances that have already passed
// this point, and the new code. It returns true where the instance reaches this point for the first
// time, and records that. On replay it returns the recorded decision. All calls with the same ID in
// one execution return the same value.
//
//	if replay.Patched(ctx, "check-stock") {
//		err = CheckStock.Call(ctx, order)
//	}
//
// When no instance remains that began before the change, remove the old branch and replace the call
// with [DeprecatePatch].
func Patched(ctx *Context, id string) bool { return ctx.execution().Patch(id, true) }

// DeprecatePatch replaces [Patched] when only the new branch is left. It accepts the records in
// existing histories and makes none. Remove it when no instance with such a record remains.
func DeprecatePatch(ctx *Context, id string) { ctx.execution().Patch(id, false) }
