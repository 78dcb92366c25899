package vet

import (
	"go/types"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/tools/go/packages"
)

// Everything that the stubs export is in the real packages, with the same types.
func TestStub_MatchesReplayPackage(t *testing.T)  { expectMatch(t, replayPath) }
func TestStub_MatchesClusterPackage(t *testing.T) { expectMatch(t, clusterPath) }

func expectMatch(t *testing.T, path string) {
	t.Helper()
	stub := load(t, []string{path}, "GO111MODULE=off", "GOPATH="+gopath(t))[path]
	real := load(t, []string{path})[path]
	for _, name := range stub.Scope().Names() {
		object := stub.Scope().Lookup(name)
		if !object.Exported() {
			continue
		}
		other := real.Scope().Lookup(name)
		if other == nil {
			t.Errorf("%s is only in the stub", name)
			continue
		}
		expectSame(t, object, other)
	}
}

func expectSame(t *testing.T, stub, real types.Object) {
	t.Helper()
	named, isType := stub.Type().(*types.Named)
	if !isType {
		if types.ObjectString(stub, nil) != types.ObjectString(real, nil) {
			t.Errorf("the stub has\n\t%s\nand not\n\t%s", stub, real)
		}
		return
	}
	other, ok := real.Type().(*types.Named)
	if !ok {
		t.Errorf("the stub has %s, the real package %s", stub, real)
		return
	}
	_, isStruct := named.Underlying().(*types.Struct)
	_, isInterface := named.Underlying().(*types.Interface)
	if !isStruct && !isInterface && named.Underlying().String() != other.Underlying().String() {
		t.Errorf("the stub has\n\t%s\nand not\n\t%s", stub, real)
	}
	for method := range named.Methods() {
		if !method.Exported() {
			continue
		}
		found, _, _ := types.LookupFieldOrMethod(other, true, real.Pkg(), method.Name())
		if found == nil || types.ObjectString(method, nil) != types.ObjectString(found, nil) {
			t.Errorf("the stub has\n\t%s\nand not\n\t%v", method, found)
		}
	}
}

// load returns the exported types of packages, as the root module sees them.
func load(t testing.TB, paths []string, env ...string) map[string]*types.Package {
	t.Helper()
	config := &packages.Config{Mode: packages.NeedName | packages.NeedTypes, Dir: repoRoot, Env: append(os.Environ(), env...)}
	found, err := packages.Load(config, paths...)
	if err != nil {
		t.Fatal(err)
	}
	loaded := make(map[string]*types.Package)
	for _, p := range found {
		if len(p.Errors) > 0 {
			t.Fatalf("load %s: %v", p.PkgPath, p.Errors)
		}
		loaded[p.PkgPath] = p.Types
	}
	return loaded
}

func gopath(t testing.TB) string {
	t.Helper()
	path, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	return path
}
