package replay

import (
	"context"
	"fmt"
	"reflect"
	"runtime"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A Definition is a handle bound to a body, ready to be given to a node.
type Definition struct {
	orchestration *orchestration
	activity      *activity
	err           error
}

type orchestration struct {
	name    string
	version string
	source  string // file:line of the body
	run     func(*Context, *journalpb.Payload) (*journalpb.Payload, error)
}

type activity struct {
	name string
	run  func(context.Context, *journalpb.Payload) (*journalpb.Payload, error)
}

type codeKey struct{ name, version string }

// A Registry holds the code of a node. It is not changed after it is made and
// may be used concurrently.
type Registry struct {
	orchestrations map[codeKey]*orchestration
	activities     map[string]*activity
}

// NewRegistry checks and collects definitions. A name that is bound twice, or
// that is empty or too long, is an error.
func NewRegistry(definitions ...Definition) (*Registry, error) {
	r := &Registry{
		orchestrations: make(map[codeKey]*orchestration),
		activities:     make(map[string]*activity),
	}
	for _, d := range definitions {
		if err := r.add(d); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *Registry) add(d Definition) error {
	switch {
	case d.err != nil:
		return d.err
	case d.orchestration != nil:
		o := d.orchestration
		key := codeKey{o.name, o.version}
		if r.orchestrations[key] != nil {
			return fmt.Errorf("tenuto: orchestration %q is bound twice", o.name)
		}
		r.orchestrations[key] = o
		return checkName("orchestration", o.name)
	case d.activity != nil:
		a := d.activity
		if r.activities[a.name] != nil {
			return fmt.Errorf("tenuto: activity %q is bound twice", a.name)
		}
		r.activities[a.name] = a
		return checkName("activity", a.name)
	}
	return fmt.Errorf("tenuto: an empty Definition: use Bind of a handle")
}

func (r *Registry) orchestration(name, version string) (*orchestration, bool) {
	o, ok := r.orchestrations[codeKey{name, version}]
	return o, ok
}

// HasOrchestration tells whether there is code for the orchestration in that
// version.
func (r *Registry) HasOrchestration(name, version string) bool {
	_, ok := r.orchestration(name, version)
	return ok
}

// HasActivity tells whether there is code for the activity.
func (r *Registry) HasActivity(name string) bool { return r.activities[name] != nil }

// functionLine returns where a function is defined.
func functionLine(function any) string {
	f := runtime.FuncForPC(reflect.ValueOf(function).Pointer())
	if f == nil {
		return ""
	}
	return shortPath(f.FileLine(f.Entry()))
}
