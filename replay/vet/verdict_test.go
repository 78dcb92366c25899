package vet

import (
	"go/types"
	"slices"
	"strings"
	"testing"
)

// harmless are the calls that take or are made on a *replay.Context and change
// nothing in the history.
var harmless = []string{
	"Context.Err", "Context.Execution", "Context.InstanceID", "Context.Log", "Context.Now", "Context.Replaying",
	"Context.ShouldContinueAsNew", "Context.Tags", "Context.Version",
	"NewSaga", "OrchestrationHandle.ContinueAsNew", "QueryHandle.Answer", "WithCancel", "WithoutCancel",
}

// What is added to package replay must be judged, and what is judged must be
// there.
func TestEveryCallOfReplayIsJudged(t *testing.T) {
	judged := slices.Concat(durableCalls, orderedCalls, harmless)
	found := contextCalls(t)
	for _, name := range found {
		if !slices.Contains(judged, name) {
			t.Errorf("%s is neither durable, ordered nor harmless", name)
		}
	}
	for _, name := range judged {
		if !slices.Contains(found, name) {
			t.Errorf("there is no %s in package replay", name)
		}
	}
	for name := range spared {
		if !slices.Contains(found, name) {
			t.Errorf("there is no %s in package replay", name)
		}
	}
	slices.Sort(judged)
	if len(slices.Compact(slices.Clone(judged))) != len(judged) {
		t.Errorf("judged twice: %q", judged)
	}
}

// contextCalls lists the exported functions and methods of package replay that
// have to do with a *Context.
func contextCalls(t *testing.T) []string {
	t.Helper()
	real := load(t, []string{replayPath})[replayPath]
	var names []string
	add := func(fn *types.Func) {
		if fn.Exported() && (takes(fn.Signature(), isContext) || receiverName(fn) == "Context") {
			names = append(names, api(fn))
		}
	}
	for _, name := range real.Scope().Names() {
		switch object := real.Scope().Lookup(name).(type) {
		case *types.Func:
			add(object)
		case *types.TypeName:
			if named, ok := object.Type().(*types.Named); ok {
				for method := range named.Methods() {
					add(method)
				}
			}
		}
	}
	return names
}

// A misspelt name would acquit silently.
func TestVerdictsNameWhatExists(t *testing.T) {
	var paths []string
	for path := range verdicts {
		if first, _, _ := strings.Cut(path, "/"); !strings.Contains(first, ".") {
			paths = append(paths, path)
		}
	}
	for path, pkg := range load(t, paths) {
		for name := range verdicts[path] {
			if name != "*" && !exists(pkg, name) {
				t.Errorf("%s has no %s", path, name)
			}
		}
	}
}

// exists tells whether a package has a name, "Name" or "Type.Method" or
// "Type.*".
func exists(pkg *types.Package, name string) bool {
	outer, inner, isMember := strings.Cut(name, ".")
	object := pkg.Scope().Lookup(outer)
	if object == nil || !isMember || inner == "*" {
		return object != nil
	}
	member, _, _ := types.LookupFieldOrMethod(object.Type(), true, pkg, inner)
	return member != nil
}
