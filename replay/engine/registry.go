package engine

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/internal/goroutine"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

type codeKey struct{ name, version string }

// A Registry holds the code of a node. It is immutable and safe for concurrent use.
type Registry struct {
	orchestrations map[codeKey]*host.Orchestration
	newest         map[string]*host.Orchestration // by name: the version for new instances
	activities     map[string]*host.Activity
	payloads       PayloadConverter
	strict         bool
	declaresEvents bool // a binding does
	interceptors   interceptors
}

// interceptors run around the code of a registry, the first outermost.
type interceptors struct {
	orchestrations []host.OrchestrationInterceptor
	activities     []replay.ActivityInterceptor
}

// NewRegistry checks and collects definitions. It returns an error if a name is bound twice, empty
// or too long.
func NewRegistry(definitions ...replay.Definition) (*Registry, error) {
	r := &Registry{
		orchestrations: make(map[codeKey]*host.Orchestration),
		newest:         make(map[string]*host.Orchestration),
		activities:     make(map[string]*host.Activity),
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

// WithStrict returns a registry of the same code. If strict is set, replays compare inputs, outputs
// and statuses byte for byte, and all options; see [replay.Mismatch].
func (r *Registry) WithStrict(strict bool) *Registry {
	other := *r
	other.strict = strict
	return &other
}

// WithInterceptors returns a registry of the same code around which interceptors run, the first
// outermost. None may be nil.
func (r *Registry) WithInterceptors(orchestrations []replay.OrchestrationInterceptor, activities []replay.ActivityInterceptor) *Registry {
	other := *r
	other.interceptors = interceptors{activities: slices.Clone(activities)}
	for _, interceptor := range orchestrations {
		other.interceptors.orchestrations = append(other.interceptors.orchestrations, interceptor.Host())
	}
	return &other
}

// RecordedPayloadMax returns the bound of values that a new run records, in bytes of JSON; 0 for
// none.
func (r *Registry) RecordedPayloadMax() uint64 { return r.payloads.recordedMax() }

// PayloadConverter returns the registry's payload converter.
func (r *Registry) PayloadConverter() PayloadConverter { return r.payloads }

func (r *Registry) add(definition replay.Definition) error {
	d := definition.Host()
	switch {
	case d.Err != nil:
		return d.Err
	case d.Orchestration != nil:
		return r.addOrchestration(d.Orchestration)
	case d.Activity != nil:
		a := d.Activity
		if r.activities[a.Name] != nil {
			return fmt.Errorf("tenuto: activity %q is bound twice", a.Name)
		}
		r.activities[a.Name] = a
		return checkName("activity", a.Name)
	}
	return fmt.Errorf("tenuto: empty definition: create it with Bind of a handle")
}

func (r *Registry) addOrchestration(o *host.Orchestration) error {
	if o.Invalid != nil {
		return fmt.Errorf("bind orchestration %q: %w", truncate(o.Name), invalidOption(o.Invalid))
	}
	key := codeKey{o.Name, o.Version}
	if o.Version == NewestVersion {
		return fmt.Errorf("tenuto: orchestration %q is bound as version %q, which stands for the newest", o.Name, o.Version)
	}
	if r.orchestrations[key] != nil && o.Version != "" {
		return fmt.Errorf("tenuto: version %q of orchestration %q is bound twice", o.Version, o.Name)
	}
	if r.orchestrations[key] != nil {
		return fmt.Errorf("tenuto: orchestration %q is bound twice", o.Name)
	}
	if err := checkReceives(o); err != nil {
		return err
	}
	r.declaresEvents = r.declaresEvents || len(o.Receives) > 0
	r.orchestrations[key] = o
	newest := r.newest[o.Name]
	switch {
	case newest != nil && newest.Pinned && o.Pinned:
		return fmt.Errorf("tenuto: orchestration %q has two pinned versions, %q and %q", o.Name, newest.Version, o.Version)
	case newest == nil || o.Pinned || !newest.Pinned && compareVersions(o.Version, newest.Version) > 0:
		r.newest[o.Name] = o
	}
	if err := checkVersion(o.Name, o.Version); err != nil {
		return err
	}
	return checkName("orchestration", o.Name)
}

// checkReceives checks the names of the events that a binding declares.
func checkReceives(o *host.Orchestration) error {
	for _, event := range o.Receives {
		if err := checkName("event", event.Name); err != nil {
			return fmt.Errorf("bind orchestration %q: %w", truncate(o.Name), err)
		}
	}
	return nil
}

func checkVersion(name, version string) error {
	if len(version) > host.NameMax || !utf8.ValidString(version) {
		return invalidName("version of orchestration", name, version)
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
		return o.Version
	}
	return ""
}

// NewestVersion is recorded as the version of a child or chained instance that should get the
// newest one, if the node that started it had no code of that name. The first node that has code
// continues it as new, in that node's newest version.
const NewestVersion = "tenuto.newest"

// orchestration returns the code of a version. That of NewestVersion only continues as new in the
// newest version.
func (r *Registry) orchestration(name, version string) (*host.Orchestration, bool) {
	if newest := r.newest[name]; newest != nil && version == NewestVersion {
		return &host.Orchestration{Name: name, Version: NewestVersion, Body: newest.Body, Receives: newest.Receives}, true
	}
	o, ok := r.orchestrations[codeKey{name, version}]
	return o, ok
}

// HasOrchestration reports whether there is code for that version of the orchestration.
func (r *Registry) HasOrchestration(name, version string) bool {
	_, ok := r.orchestration(name, version)
	return ok
}

// DeclaresEvents reports whether any code declares the types of events that it receives.
func (r *Registry) DeclaresEvents() bool { return r.declaresEvents }

// CheckEvent returns a [*replay.PayloadError] if a version of an orchestration declares the event
// and the data decodes as none of its types; nil otherwise. It runs code of the author, which may
// block.
func (r *Registry) CheckEvent(name, version string, event *journalpb.ExternalEvent) error {
	code, ok := r.orchestration(name, version)
	if !ok {
		return nil
	}
	var room [dataTypesMax]reflect.Type
	return r.payloads.refusal(event, appendReceived(room[:0], code, event.Name))
}

// DeclaresEvent reports whether a version of an orchestration declares the type of an event. It
// runs no code of the author.
func (r *Registry) DeclaresEvent(name, version, event string) bool {
	code, ok := r.orchestration(name, version)
	return ok && slices.ContainsFunc(code.Receives, func(declared host.EventType) bool { return declared.Name == event })
}

// HasActivity reports whether there is code for the activity.
func (r *Registry) HasActivity(name string) bool { return r.activities[name] != nil }

// ActivityNames returns the names of the activities that there is code for, in no order.
func (r *Registry) ActivityNames() []string { return slices.Collect(maps.Keys(r.activities)) }

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

// Intercept calls interceptors around a body: number 0 by call(0, …), and so on; next calls the
// next one, and after the last the body. It returns the error of the first; see
// [replay.OrchestrationInterceptor]. An interceptor that returns nil must have called next, and
// next must have returned nil.
func Intercept[C any](ctx C, count int, call func(i int, ctx C, next func(C) error) error, body func(C) error) error {
	return interceptFrom(0, ctx, count, call, body)
}

func interceptFrom[C any](i int, ctx C, count int, call func(i int, ctx C, next func(C) error) error, body func(C) error) error {
	if i == count {
		return body(ctx)
	}
	next := nextCall{interceptor: i + 1, goroutine: goroutine.ID()}
	err := call(i, ctx, func(ctx C) error {
		if err := next.begin(); err != nil {
			return err
		}
		next.err = interceptFrom(i+1, ctx, count, call, body)
		next.state = nextReturned
		return next.err
	})
	return next.end(err)
}

// A nextCall is the call of next by an interceptor.
type nextCall struct {
	interceptor int     // its number, from 1
	goroutine   uintptr // of the interceptor; only it may use the fields below
	state       nextState
	err         error // what next has returned
}

type nextState uint8

const (
	nextNotCalled nextState = iota
	nextRunning
	nextReturned
	interceptorEnded
)

// begin begins the call, or returns why it is not allowed.
func (n *nextCall) begin() error {
	switch {
	case goroutine.ID() != n.goroutine:
		return fmt.Errorf("tenuto: interceptor %d has called next on another goroutine", n.interceptor)
	case n.state != nextNotCalled:
		return fmt.Errorf("tenuto: interceptor %d has called next twice, or after it returned", n.interceptor)
	}
	n.state = nextRunning
	return nil
}

// end returns the error for an interceptor that has returned err.
func (n *nextCall) end(err error) error {
	state := n.state
	n.state = interceptorEnded
	switch {
	case err != nil:
		return err
	case state == nextNotCalled:
		return fmt.Errorf("tenuto: interceptor %d returned nil without a call of next", n.interceptor)
	case state == nextRunning:
		return fmt.Errorf("tenuto: interceptor %d returned nil after a panic in next", n.interceptor)
	case n.err != nil:
		return fmt.Errorf("tenuto: interceptor %d returned nil after next failed: %w", n.interceptor, n.err)
	}
	return nil
}
