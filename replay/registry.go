package replay

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A Definition is a handle bound to a body, ready to be given to a node.
type Definition struct {
	orchestration *orchestration
	activity      *activity
	err           error
}

// Activity returns the name of the activity that the definition binds; ok is
// false if it binds an orchestration, or nothing.
func (d Definition) Activity() (name string, ok bool) {
	if d.activity == nil {
		return "", false
	}
	return d.activity.name, true
}

// Orchestration returns the name of the orchestration that the definition binds,
// and the version; ok is false if it binds an activity, or nothing.
func (d Definition) Orchestration() (name, version string, ok bool) {
	if d.orchestration == nil {
		return "", "", false
	}
	return d.orchestration.name, d.orchestration.version, true
}

type orchestration struct {
	name    string
	version string
	pinned  bool
	source  string // file:line of the body
	run     func(*Context, *journalpb.Payload) (*journalpb.Payload, error)
}

type activity struct {
	name string
	run  func(context.Context, Payloads, *journalpb.Payload) (*journalpb.Payload, error)
}

// A BindOption says how a body is bound to the name of an orchestration.
type BindOption func(*orchestration)

// Version binds the body to one version of the orchestration. An instance keeps
// the version that it was started with. Versions are compared part by part at
// their dots, parts of digits as numbers and before others: "1.9" comes before
// "1.10", and that before "1.x". Defaults to "", which comes before all others.
func Version(version string) BindOption { return func(o *orchestration) { o.version = version } }

// Pinned makes the bound version the one that new instances get, whatever newer
// ones there are.
func Pinned() BindOption { return func(o *orchestration) { o.pinned = true } }

type codeKey struct{ name, version string }

// A Registry holds the code of a node. It is not changed after it is made and
// may be used concurrently.
type Registry struct {
	orchestrations map[codeKey]*orchestration
	newest         map[string]*orchestration // by name: what new instances get
	activities     map[string]*activity
	payloads       Payloads
}

// NewRegistry checks and collects definitions. A name that is bound twice, or
// that is empty or too long, is an error.
func NewRegistry(definitions ...Definition) (*Registry, error) {
	r := &Registry{
		orchestrations: make(map[codeKey]*orchestration),
		newest:         make(map[string]*orchestration),
		activities:     make(map[string]*activity),
	}
	for _, d := range definitions {
		if err := r.add(d); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// WithPayloads returns a registry of the same code whose values become payloads
// in the given way, instead of that of the zero [Payloads].
func (r *Registry) WithPayloads(payloads Payloads) *Registry {
	other := *r
	other.payloads = payloads
	return &other
}

// Payloads returns how values become payloads.
func (r *Registry) Payloads() Payloads { return r.payloads }

func (r *Registry) add(d Definition) error {
	switch {
	case d.err != nil:
		return d.err
	case d.orchestration != nil:
		return r.addOrchestration(d.orchestration)
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

func (r *Registry) addOrchestration(o *orchestration) error {
	key := codeKey{o.name, o.version}
	if o.version == NewestVersion {
		return fmt.Errorf("tenuto: orchestration %q is bound as version %q, which stands for the newest", o.name, o.version)
	}
	if r.orchestrations[key] != nil && o.version != "" {
		return fmt.Errorf("tenuto: version %q of orchestration %q is bound twice", o.version, o.name)
	}
	if r.orchestrations[key] != nil {
		return fmt.Errorf("tenuto: orchestration %q is bound twice", o.name)
	}
	r.orchestrations[key] = o
	newest := r.newest[o.name]
	switch {
	case newest != nil && newest.pinned && o.pinned:
		return fmt.Errorf("tenuto: orchestration %q has two pinned versions, %q and %q", o.name, newest.version, o.version)
	case newest == nil || o.pinned || !newest.pinned && compareVersions(o.version, newest.version) > 0:
		r.newest[o.name] = o
	}
	if err := checkVersion(o.name, o.version); err != nil {
		return err
	}
	return checkName("orchestration", o.name)
}

func checkVersion(name, version string) error {
	if len(version) > nameMax || !utf8.ValidString(version) {
		return &NameError{Kind: "version of orchestration", Name: cut(name), Bytes: len(version)}
	}
	return nil
}

// compareVersions is negative if a comes before b.
func compareVersions(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		if order := compareParts(as[i], bs[i]); order != 0 {
			return order
		}
	}
	return cmp.Or(cmp.Compare(len(as), len(bs)), cmp.Compare(a, b))
}

func compareParts(a, b string) int {
	x, errX := strconv.ParseUint(a, 10, 64)
	y, errY := strconv.ParseUint(b, 10, 64)
	switch {
	case errX == nil && errY == nil:
		return cmp.Compare(x, y)
	case errX == nil && b != "":
		return -1
	case errY == nil && a != "":
		return 1
	}
	return cmp.Compare(a, b)
}

// Newest returns the version of an orchestration that a new instance gets: the
// pinned one, or else the highest; "" if there is no code for it.
func (r *Registry) Newest(name string) string {
	if o := r.newest[name]; o != nil {
		return o.version
	}
	return ""
}

// NewestVersion is recorded as the version of a child or chained instance that was to get
// the newest one, if the node that started it had no code of that name. The first node
// that has code continues it as new, in the newest version of its own.
const NewestVersion = "tenuto.newest"

// orchestration returns the code of a version.
func (r *Registry) orchestration(name, version string) (*orchestration, bool) {
	if newest := r.newest[name]; newest != nil && version == NewestVersion {
		return newest.choosing(), true
	}
	o, ok := r.orchestrations[codeKey{name, version}]
	return o, ok
}

// choosing returns the code of NewestVersion: it only continues as new in this version.
func (o *orchestration) choosing() *orchestration {
	return &orchestration{name: o.name, version: NewestVersion, source: o.source,
		run: func(_ *Context, in *journalpb.Payload) (*journalpb.Payload, error) {
			return nil, &continuation{input: in, version: o.version}
		}}
}

// HasOrchestration tells whether there is code for the orchestration in that
// version.
func (r *Registry) HasOrchestration(name, version string) bool {
	_, ok := r.orchestration(name, version)
	return ok
}

// HasActivity tells whether there is code for the activity.
func (r *Registry) HasActivity(name string) bool { return r.activities[name] != nil }

// functionLine returns where a function is defined, or the name of a method.
func functionLine(function any) string {
	f := runtime.FuncForPC(reflect.ValueOf(function).Pointer())
	if f == nil {
		return ""
	}
	file, line := f.FileLine(f.Entry())
	if file == "<autogenerated>" { // a method value
		return strings.TrimSuffix(path.Base(f.Name()), "-fm")
	}
	return shortPath(file, line)
}
