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

// A BindOption configures how a body is bound to an orchestration.
type BindOption func(*host.Orchestration)

// Version binds the body to one version of the orchestration. An instance keeps the version that it
// was started with. Versions are compared part by part at their dots. Parts of digits compare as
// numbers and sort before other parts: "1.9" < "1.10" < "1.x". Defaults to "", which sorts first.
func Version(version string) BindOption { return func(o *host.Orchestration) { o.Version = version } }

// Pinned makes new instances use the bound version even if there are newer ones.
func Pinned() BindOption { return func(o *host.Orchestration) { o.Pinned = true } }
