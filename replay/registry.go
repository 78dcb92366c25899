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

// A Definition is a handle bound to a body, for use by a node.
type Definition struct {
	orchestration *orchestration
	activity      *activity
	err           error
}

// Activity returns the name of the activity that the definition binds. ok is false if it binds
// none.
func (d Definition) Activity() (name string, ok bool) {
	if d.activity == nil {
		return "", false
	}
	return d.activity.name, true
}

// Orchestration returns the name and version of the orchestration that the definition binds. ok is
// false if it binds none.
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
	run  func(context.Context, PayloadConverter, *journalpb.Payload) (*journalpb.Payload, error)
}

// A BindOption configures how a body is bound to an orchestration.
type BindOption func(*orchestration)

// Version binds the body to one version of the orchestration. An instance keeps the version that it
// was started with. Versions are compared part by part at their dots. Parts of digits compare as
// numbers and sort before other parts: "1.9" < "1.10" < "1.x". Defaults to "", which sorts first.
func Version(version string) BindOption { return func(o *orchestration) { o.version = version } }

// Pinned makes new instances use the bound version even if there are newer ones.
func Pinned() BindOption { return func(o *orchestration) { o.pinned = true } }

type codeKey struct{ name, version string }

// A Registry holds the code of a node. It is immutable and safe for concurrent use.
type Registry struct {
	orchestrations map[codeKey]*orchestration
	newest         map[string]*orchestration // by name: the version for new instances
	activities     map[string]*activity
	payloads       PayloadConverter
}

// NewRegistry checks and collects definitions. It returns an error if a name is bound twice, empty
// or too long.
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

// WithPayloadConverter returns a registry of the same code that uses the given converter instead of
// the zero [PayloadConverter].
func (r *Registry) WithPayloadConverter(payloads PayloadConverter) *Registry {
	other := *r
	other.payloads = payloads
	return &other
}

// PayloadConverter returns the registry's payload converter.
func (r *Registry) PayloadConverter() PayloadConverter { return r.payloads }

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
	return fmt.Errorf("tenuto: empty definition: create it with Bind of a handle")
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
		return &NameError{Kind: "version of orchestration", Name: truncate(name), Bytes: len(version)}
	}
	return nil
}

// compareVersions returns a negative number if a sorts before b.
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

// Newest returns the version that new instances of an orchestration get: the pinned one, or else
// the highest; "" if there is no code for it.
func (r *Registry) Newest(name string) string {
	if o := r.newest[name]; o != nil {
		return o.version
	}
	return ""
}

// NewestVersion is recorded as the version of a child or chained instance that should get the
// newest one, if the node that started it had no code of that name. The first node that has code
// continues it as new, in that node's newest version.
const NewestVersion = "tenuto.newest"

// orchestration returns the code of a version.
func (r *Registry) orchestration(name, version string) (*orchestration, bool) {
	if newest := r.newest[name]; newest != nil && version == NewestVersion {
		return newest.continueToNewest(), true
	}
	o, ok := r.orchestrations[codeKey{name, version}]
	return o, ok
}

// continueToNewest returns the code of NewestVersion, which only continues as new in this version.
func (o *orchestration) continueToNewest() *orchestration {
	return &orchestration{name: o.name, version: NewestVersion, source: o.source,
		run: func(_ *Context, in *journalpb.Payload) (*journalpb.Payload, error) {
			return nil, &continuation{input: in, version: o.version}
		}}
}

// HasOrchestration reports whether there is code for that version of the orchestration.
func (r *Registry) HasOrchestration(name, version string) bool {
	_, ok := r.orchestration(name, version)
	return ok
}

// HasActivity reports whether there is code for the activity.
func (r *Registry) HasActivity(name string) bool { return r.activities[name] != nil }

// functionLine returns the file:line of a function, or the name of a method.
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
