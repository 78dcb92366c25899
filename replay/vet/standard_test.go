package vet

import (
	"go/types"
	"slices"
	"strings"
	"testing"
)

// harmless are calls with a *replay.Context that do not affect the history.
var harmless = []string{
	"Context.Err", "Context.Execution", "Context.InstanceID", "Context.Log", "Context.Now", "Context.Replaying",
	"Context.ShouldContinueAsNew", "Context.Tags", "Context.Version",
	"NewSaga", "OrchestrationHandle.ContinueAsNew", "QueryHandle.Handle", "WithCancel", "WithoutCancel",
}

// Every call of package replay must be classified, and every classified call must exist.
func TestReplayAPI_EveryCallIsClassified(t *testing.T) {
	classified := slices.Concat(durableCalls, orderedCalls, harmless)
	found := contextCalls(t)
	for _, name := range found {
		if !slices.Contains(classified, name) {
			t.Errorf("%s is neither durable, ordered nor harmless", name)
		}
	}
	for _, name := range classified {
		if !slices.Contains(found, name) {
			t.Errorf("package replay has no %s", name)
		}
	}
	for name := range exemptArguments {
		if !slices.Contains(found, name) {
			t.Errorf("package replay has no %s", name)
		}
	}
	slices.Sort(classified)
	if len(slices.Compact(slices.Clone(classified))) != len(classified) {
		t.Errorf("classified twice: %q", classified)
	}
}

// contextCalls lists the exported functions and methods of package replay with a *Context.
func contextCalls(t *testing.T) []string {
	t.Helper()
	real := load(t, []string{replayPath})[replayPath]
	var names []string
	add := func(fn *types.Func) {
		if fn.Exported() && (hasParameter(fn.Signature(), isContext) || receiverName(fn) == "Context") {
			names = append(names, replayFunction(fn))
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

// A misspelled name would silently allow the use.
func TestStandardRules_NamesExist(t *testing.T) {
	var paths []string
	for path := range standardRules {
		if first, _, _ := strings.Cut(path, "/"); !strings.Contains(first, ".") {
			paths = append(paths, path)
		}
	}
	for path, pkg := range load(t, paths) {
		for name := range standardRules[path] {
			if name != "*" && !exists(pkg, name) {
				t.Errorf("%s has no %s", path, name)
			}
		}
	}
}

// exists reports whether a package has a "Name", "Type.Method" or "Type.*".
func exists(pkg *types.Package, name string) bool {
	outer, inner, isMember := strings.Cut(name, ".")
	object := pkg.Scope().Lookup(outer)
	if object == nil || !isMember || inner == "*" {
		return object != nil
	}
	member, _, _ := types.LookupFieldOrMethod(object.Type(), true, pkg, inner)
	return member != nil
}
