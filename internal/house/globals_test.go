package house

import (
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"log"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"

	_ "github.com/tenuto-dev/tenuto/actors"
	_ "github.com/tenuto-dev/tenuto/actors/activity"
	_ "github.com/tenuto-dev/tenuto/actors/session"
	_ "github.com/tenuto-dev/tenuto/actors/worker"
	_ "github.com/tenuto-dev/tenuto/cluster"
	_ "github.com/tenuto-dev/tenuto/cluster/backup"
	_ "github.com/tenuto-dev/tenuto/cluster/bulk"
	_ "github.com/tenuto-dev/tenuto/cluster/clustertest"
	_ "github.com/tenuto-dev/tenuto/cluster/dashboard"
	_ "github.com/tenuto-dev/tenuto/cluster/discovery"
	_ "github.com/tenuto-dev/tenuto/cluster/filter"
	_ "github.com/tenuto-dev/tenuto/cluster/operate"
	_ "github.com/tenuto-dev/tenuto/cluster/prometheus"
	_ "github.com/tenuto-dev/tenuto/cluster/proof"
	_ "github.com/tenuto-dev/tenuto/cluster/recovery"
	_ "github.com/tenuto-dev/tenuto/cluster/schedule"
	_ "github.com/tenuto-dev/tenuto/journal"
	_ "github.com/tenuto-dev/tenuto/journal/journaltest"
	_ "github.com/tenuto-dev/tenuto/journal/state"
	_ "github.com/tenuto-dev/tenuto/journal/state/index"
	_ "github.com/tenuto-dev/tenuto/journal/state/pebblestore"
	_ "github.com/tenuto-dev/tenuto/journal/state/store"
	_ "github.com/tenuto-dev/tenuto/proto/clusterpb"
	_ "github.com/tenuto-dev/tenuto/proto/journalpb"
	_ "github.com/tenuto-dev/tenuto/replay"
	_ "github.com/tenuto-dev/tenuto/replay/engine"
	_ "github.com/tenuto-dev/tenuto/replay/history"
	_ "github.com/tenuto-dev/tenuto/replay/replaytest"
)

// importableParts are the parts of the tree whose packages an application may import.
var importableParts = []string{"actors", "cluster", "journal", "proto", "replay"}

// otherModules are directories of those parts whose packages belong to modules of their own.
var otherModules = []string{"replay/vet", "cluster/backup/s3"}

// registeredByDependencies are patterns that dependencies register with http.DefaultServeMux in
// every program that imports them. They come from golang.org/x/net/trace, imported by gRPC (the
// build tag grpcnotrace omits it), and expvar, imported by Prometheus' client, which the actor
// library and the state store import. Only a program that serves http.DefaultServeMux shows them;
// SECURITY.md says so.
var registeredByDependencies = []string{"/debug/requests", "/debug/events", "GET /debug/vars"}

// standardError is what os.Stderr is when a program starts: go test -json replaces it later.
var standardError = os.Stderr

// TestGlobals_UnchangedByImports compares globals of the standard library with their values in a
// program that imports nothing else. This test binary imports every package that an application may
// import, so their init functions have run.
func TestGlobals_UnchangedByImports(t *testing.T) {
	if log.Flags() != log.LstdFlags || log.Prefix() != "" || log.Writer() != standardError {
		t.Errorf("package log: flags %d, prefix %q, writer %v; want %d, none, os.Stderr",
			log.Flags(), log.Prefix(), log.Writer(), log.LstdFlags)
	}
	if handler := slog.Default().Handler(); !isDefaultHandler(handler) {
		t.Errorf("slog.Default() has a %T", handler)
	}
	for _, pattern := range []string{"/", "/debug/vars", "/debug/pprof/", "/metrics", "/debug/requests", "/debug/events"} {
		_, found := http.DefaultServeMux.Handler(&http.Request{Method: "GET", URL: &url.URL{Path: pattern}})
		if found != "" && !slices.Contains(registeredByDependencies, found) {
			t.Errorf("http.DefaultServeMux serves %s", found)
		}
	}
	flag.VisitAll(func(f *flag.Flag) {
		if !strings.HasPrefix(f.Name, "test.") && !strings.HasPrefix(f.Name, "replaytest.") {
			t.Errorf("flag -%s is defined", f.Name)
		}
	})
	if os.Getenv("GOGC") == "" {
		percent := debug.SetGCPercent(100)
		debug.SetGCPercent(percent)
		if percent != 100 {
			t.Errorf("the garbage collector's percentage is %d, want 100", percent)
		}
	}
}

// isDefaultHandler reports whether a handler is the initial default handler of package slog.
func isDefaultHandler(handler slog.Handler) bool {
	return fmt.Sprintf("%T", handler) == "*slog.defaultHandler"
}

func TestGlobals_EveryPackageIsImported(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "globals_test.go", nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	var imported []string
	for _, spec := range file.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		imported = append(imported, strings.TrimPrefix(name, modulePath+"/"))
	}
	dirs, err := packageDirs(repositoryRoot)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		top, _, _ := strings.Cut(dir, "/")
		isInternal := slices.Contains(strings.Split(path.Clean(dir), "/"), "internal")
		isExcluded := slices.ContainsFunc(otherModules, func(p string) bool { return dir == p || strings.HasPrefix(dir, p+"/") })
		if slices.Contains(importableParts, top) && !isInternal && !isExcluded && !slices.Contains(imported, dir) {
			t.Errorf("globals_test.go does not import %s", dir)
		}
	}
}
