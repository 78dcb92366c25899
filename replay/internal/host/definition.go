package host

import (
	"context"
	"reflect"
)

// A Definition is a handle bound to a body. At most one field is set.
type Definition struct {
	Orchestration *Orchestration
	Activity      *Activity
	Err           error // the binding is invalid
}

// A Decoder decodes the value that a function of user code receives, and stores it in the variable
// that into points to.
type Decoder interface{ Decode(into any) error }

// An Orchestration is one version of the code of an orchestration.
type Orchestration struct {
	Name    string
	Version string
	Pinned  bool
	Invalid *InvalidOption // an option that does not apply
	Body    any            // the function, for messages about it
	// OutputType is the type of the output, according to the handle.
	OutputType reflect.Type
	// Run calls the body and returns its output, which the engine encodes.
	Run func(s Scope, input Decoder) (output any, err error)
	// Receives are the events whose types the binding declares.
	Receives []EventType
}

// An EventType is the name of an event and the type of its data.
type EventType struct {
	Name string
	Data reflect.Type
}

// SetVersion implements [Versioned].
func (o *Orchestration) SetVersion(version string) { o.Version = version }

// An OrchestrationInterceptor runs around the body of an orchestration, which next calls in a
// scope.
type OrchestrationInterceptor func(s Scope, next func(s Scope) error) error

// An Activity is the code of an activity.
type Activity struct {
	Name string
	Run  func(ctx context.Context, input Decoder) (output any, err error)
}

// A Handler answers a query.
type Handler func(input Decoder) (output any, err error)

// An UpdateHandler checks and executes an update.
type UpdateHandler struct {
	Validate func(input Decoder) error
	Run      func(s Scope, input Decoder) (output any, err error)
}
