package vet

import (
	"go/types"
	"slices"
	"strings"
	"testing"
)

// harmless are calls with a *replay.Context that do not affect the history.
var harmless = []string{
	"Context.Attempt", "Context.Err", "Context.Execution", "Context.InstanceID", "Context.Log", "Context.Name", "Context.Now", "Context.Replaying",
	"Context.ShouldContinueAsNew", "Context.Tags", "Context.Version",
	"HeaderKey.Value", "KVHandle.Get", "KVHandle.Keys", "NewSaga", "OrchestrationHandle.ContinueAsNew", "QueryHandle.Handle",
	"WithCancel", "WithoutCancel",
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
	var names []string
	for _, fn := range exportedFunctions(load(t, []string{replayPath})[replayPath]) {
		if hasParameter(fn.Signature(), isContext) || receiverName(fn) == "Context" {
			names = append(names, replayFunction(fn))
		}
	}
	return names
}

// exportedFunctions returns the exported functions and methods of a package.
func exportedFunctions(pkg *types.Package) []*types.Func {
	var functions []*types.Func
	for _, name := range pkg.Scope().Names() {
		switch object := pkg.Scope().Lookup(name).(type) {
		case *types.Func:
			functions = append(functions, object)
		case *types.TypeName:
			if named, ok := object.Type().(*types.Named); ok {
				functions = slices.AppendSeq(functions, named.Methods())
			}
		}
	}
	return slices.DeleteFunc(functions, func(fn *types.Func) bool { return !fn.Exported() })
}

// waits are the durable calls that return an error and wait.
func TestReplayAPI_WaitsReturnErrors(t *testing.T) {
	noWaits := []string{"OrchestrationHandle.Chain", "SetStatus", "SideEffect", "AttributeHandle.Set", "AttributeHandle.Remove", "KVHandle.Set", "KVHandle.Delete"}
	for _, fn := range exportedFunctions(load(t, []string{replayPath})[replayPath]) {
		name := replayFunction(fn)
		results := fn.Signature().Results()
		fails := results.Len() > 0 && results.At(results.Len()-1).Type() == types.Universe.Lookup("error").Type()
		if want := fails && isDurable(name) && !slices.Contains(noWaits, name); slices.Contains(waits, name) != want {
			t.Errorf("%s is a wait: %v, want %v", name, !want, want)
		}
	}
}

// Every call of packages bulk, cluster, operate and schedule with a context.Context does I/O,
// except these.
func TestStandardRules_CoverCluster(t *testing.T) {
	expectRules(t, clusterPath, "ClientFrom", "WithoutBusyRetries", "SpanIDs.NewIDs", "SpanIDs.NewSpanID")
	expectRules(t, operatePath, "WithPrincipal", "WithReason")
	expectRules(t, schedulePath)
	expectRules(t, bulkPath)
}

func expectRules(t *testing.T, path string, harmless ...string) {
	t.Helper()
	pkg := load(t, []string{path})[path]
	for _, fn := range exportedFunctions(pkg) {
		name := fn.Name()
		if receiver := receiverName(fn); receiver != "" {
			name = receiver + "." + name
		}
		if hasParameter(fn.Signature(), isGoContext) && ruleFor(fn) == nil && !slices.Contains(harmless, name) {
			t.Errorf("no rule for %s.%s", pkg.Name(), name)
		}
	}
	for name := range standardRules[path] {
		if !exists(pkg, name) {
			t.Errorf("package %s has no %s", pkg.Name(), name)
		}
	}
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
