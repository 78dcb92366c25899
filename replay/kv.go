package replay

import "github.com/tenuto-dev/tenuto/replay/internal/host"

// A KVHandle is the stable name of a key-value map of an instance, with the type of its values. The
// map is recorded, carried over continue-as-new, and readable by clients with cluster.ReadKV, also
// after the instance has ended. Use it for state that clients read while no code runs, or that
// outlives an execution; for other state, use variables.
//
// All maps of an instance together have at most 100 keys and 256 KiB of names, keys and values; a
// value has at most 16 KiB. The bounds apply when a value is recorded: on replay it counts as
// recorded, also if today's encoding is larger.
type KVHandle[T any] struct{ name string }

// KV declares a key-value map. Histories record the name. Each use checks that it has 1 to 128
// bytes.
func KV[T any](name string) KVHandle[T] { return KVHandle[T]{name} }

// Name returns the name.
func (h KVHandle[T]) Name() string { return h.name }

// Set records the value of a key of 1 to 128 bytes of UTF-8. The error is an [*InvalidError] if a
// bound would be exceeded, or a [*PayloadError] if the value cannot be encoded. After an error,
// nothing is recorded.
//
// While a member does not speak protocol 4, the call is not recorded and the instance does not
// continue.
func (h KVHandle[T]) Set(ctx *Context, key string, value T) error {
	return ctx.execution().SetValue(h.name, key, host.ValueOf(value))
}

// Get returns the value that was set last, in this execution or an earlier one of the run. ok is
// false if there is none. The error is a [*PayloadError] if the value is not a T. Get and Keys may
// also be called in the functions of queries, of update validations, and of [Await].
func (h KVHandle[T]) Get(ctx *Context, key string) (value T, ok bool, err error) {
	ok, err = ctx.execution().GetValue(h.name, key, &value)
	if err != nil {
		var zero T
		return zero, ok, err
	}
	return value, ok, nil
}

// Delete records that a key has no value any more. It records nothing for a key without a value.
func (h KVHandle[T]) Delete(ctx *Context, key string) error {
	return ctx.execution().DeleteValue(h.name, key)
}

// Keys returns the keys that have values, in order.
func (h KVHandle[T]) Keys(ctx *Context) []string { return ctx.execution().Keys(h.name) }
