package replay

import (
	"time"

	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// AttributeValue lists the types of attributes.
type AttributeValue interface {
	~string | ~bool | ~int | ~int64 | ~float64 | time.Time
}

// An AttributeHandle is the stable name of an attribute with the type of its value. An instance
// publishes attributes so that clients can find it: they are in its status, and lists can be
// filtered by them. Orchestration code cannot read them; see [KV] for values that it reads again.
//
// A codec does not encode attributes, so they must not hold secrets. An instance has at most 32.
// They remain visible after its end and across continue-as-new.
type AttributeHandle[T AttributeValue] struct{ name string }

// Attribute declares an attribute. Histories record the name. Each use checks that it has 1 to 128
// bytes.
func Attribute[T AttributeValue](name string) AttributeHandle[T] { return AttributeHandle[T]{name} }

// Name returns the name.
func (h AttributeHandle[T]) Name() string { return h.name }

// Set records the value of the attribute. Strings have at most 256 bytes of UTF-8, numbers are
// finite, and times are between the years 1678 and 2262. For another value, and for a 33rd
// attribute, the error is an [*InvalidError] and nothing is recorded.
//
// While a member does not speak protocol 4, the call is not recorded and the instance does not
// continue.
func (h AttributeHandle[T]) Set(ctx *Context, value T) error {
	return ctx.execution().SetAttribute(h.name, host.AttributeOf(value))
}

// Remove records that the instance does not have the attribute any more. It records nothing if the
// instance does not have it.
func (h AttributeHandle[T]) Remove(ctx *Context) error {
	return ctx.execution().SetAttribute(h.name, nil)
}

// Text returns a value as it appears in a status and in filters: a string unchanged, a time as
// RFC 3339 in UTC, a bool or a number as in Go.
func (h AttributeHandle[T]) Text(value T) string { return host.AttributeText(host.AttributeOf(value)) }

// In returns the attribute among those of a status. ok is false if it is missing, or if its text is
// not a T.
func (h AttributeHandle[T]) In(attributes map[string]string) (value T, ok bool) {
	text, ok := attributes[h.name]
	if !ok || !host.ParseAttribute(text, &value) {
		var zero T
		return zero, false
	}
	return value, true
}
