package replay

import "github.com/tenuto-dev/tenuto/replay/internal/host"

// A Definition is a handle bound to a body, for use by a node.
type Definition struct{ bound host.Definition }

// Host returns what the definition binds, for package engine.
func (d Definition) Host() host.Definition { return d.bound }

// Activity returns the name of the activity that the definition binds. ok is false if it binds
// none.
func (d Definition) Activity() (name string, ok bool) {
	if d.bound.Activity == nil {
		return "", false
	}
	return d.bound.Activity.Name, true
}

// Orchestration returns the name and version of the orchestration that the definition binds. ok is
// false if it binds none.
func (d Definition) Orchestration() (name, version string, ok bool) {
	if d.bound.Orchestration == nil {
		return "", "", false
	}
	return d.bound.Orchestration.Name, d.bound.Orchestration.Version, true
}
