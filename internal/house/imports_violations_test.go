package house

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
)

// importSource returns the source of a file of the package in dir.
func importSource(dir string, paths ...string) string {
	var source strings.Builder
	fmt.Fprintf(&source, "package %s\n", path.Base(dir))
	for _, path := range paths {
		if strings.HasPrefix(path, "./") {
			path = modulePath + path[1:]
		}
		fmt.Fprintf(&source, "import _ %q\n", path)
	}
	return source.String()
}

// Every pair of parts that allowedImports does not list is rejected.
func TestImports_UnlistedEdgesAreRejected(t *testing.T) {
	for from := range allowedImports {
		for to := range allowedImports {
			t.Run(from+" to "+to, func(t *testing.T) {
				var expected []string
				if from != to && !slices.Contains(allowedImports[from], to) {
					expected = []string{from + "/deep imports " + modulePath + "/" + to + "/low: " + from + " may not import " + to}
				}
				files := map[string]string{from + "/deep/deep.go": importSource("deep", "./"+to+"/low")}
				expectViolations(t, importViolations, files, expected...)
			})
		}
	}
}

// The allowed imports have no cycle.
func TestImports_HaveNoCycle(t *testing.T) {
	var visit func(part string, above []string)
	visit = func(part string, above []string) {
		if slices.Contains(above, part) {
			t.Fatalf("cycle: %s", strings.Join(append(above, part), " → "))
		}
		for _, below := range allowedImports[part] {
			visit(below, append(slices.Clone(above), part))
		}
	}
	for part := range allowedImports {
		visit(part, nil)
	}
}

func TestImports_Violations(t *testing.T) {
	cases := []struct {
		name     string
		files    map[string]string
		expected []string
	}{
		{"raft outside journal", map[string]string{
			"cluster/a.go": importSource("cluster", "github.com/hashicorp/raft"),
			"actors/a.go":  importSource("actors", "github.com/hashicorp/raft-boltdb/v2"),
			"bench/a.go":   importSource("bench", "github.com/boltdb/bolt"),
			"journal/a.go": importSource("journal", "github.com/hashicorp/raft", "github.com/hashicorp/raft-boltdb/v2", "go.etcd.io/bbolt"),
		}, []string{
			"cluster imports github.com/hashicorp/raft: only journal, bench may import it",
			"actors imports github.com/hashicorp/raft-boltdb/v2: only journal, bench may import it",
			"bench imports github.com/boltdb/bolt: only journal may import it",
		}},
		{"protoactor outside actors and cluster", map[string]string{
			"journal/a.go": importSource("journal", "github.com/asynkron/protoactor-go/actor"),
			"actors/a.go":  importSource("actors", "github.com/asynkron/protoactor-go/actor"),
			"cluster/a.go": importSource("cluster", "github.com/asynkron/protoactor-go/remote"),
		}, []string{
			"journal imports github.com/asynkron/protoactor-go/actor: only actors, actors/internal, cluster may import it",
		}},
		{"grpc outside cluster and the schemas", map[string]string{
			"actors/a.go":          importSource("actors", "google.golang.org/grpc/codes"),
			"examples/hello/a.go":  importSource("hello", "google.golang.org/grpc"),
			"cluster/a.go":         importSource("cluster", "google.golang.org/grpc"),
			"proto/clusterpb/a.go": importSource("clusterpb", "google.golang.org/grpc"),
		}, []string{
			"actors imports google.golang.org/grpc/codes: only cluster",
			"examples/hello imports google.golang.org/grpc: only cluster",
		}},
		{"packages of orchestrations", map[string]string{
			"replay/a.go":            importSource("replay", "time", "google.golang.org/protobuf/proto", "./replay/engine"),
			"replay/engine/a.go":     importSource("engine", "time", "google.golang.org/protobuf/proto", "./proto/journalpb", "./replay/internal/host"),
			"replay/replaytest/a.go": importSource("replaytest", "golang.org/x/sync/errgroup", "./replay"),
			"proto/journalpb/a.go":   importSource("journalpb", "google.golang.org/grpc"),
		}, []string{
			"replay imports google.golang.org/protobuf/proto: replay may import nothing from outside",
			"replay may not import replay/engine",
			"replay/replaytest imports golang.org/x/sync/errgroup: replay/replaytest may import only google.golang.org/protobuf",
			"proto/journalpb imports google.golang.org/grpc: proto/journalpb may import only",
		}},
		{"tests", map[string]string{
			"journal/a_test.go":        importSource("journal", "./actors"),
			"journal/b_test.go":        importSource("journal_test", "./replay"),
			"replay/engine/a_test.go":  importSource("engine", "github.com/google/go-cmp/cmp", "github.com/stretchr/testify/assert"),
			"cluster/a_test.go":        importSource("cluster_test", "./examples/hello", "github.com/hashicorp/raft"),
			"examples/hello/a_test.go": importSource("hello", "./journal"),
		}, []string{
			"tests of journal import " + modulePath + "/actors: journal may not import actors",
			"tests of journal import " + modulePath + "/replay: journal may not import replay",
			"tests of replay/engine import github.com/stretchr/testify/assert",
		}},
		{"a test's exception does not cover the package", map[string]string{
			"replay/engine/a.go": importSource("engine", "github.com/google/go-cmp/cmp"),
		}, []string{
			"replay/engine imports github.com/google/go-cmp/cmp",
		}},
		{"files excluded from the build", map[string]string{
			"replay/a_plan9.go": importSource("replay", "./journal"),
			"replay/b.go":       "//go:build never\n\n" + importSource("replay", "./actors"),
		}, []string{
			"replay may not import journal",
			"replay may not import actors",
		}},
		{"an unknown part", map[string]string{
			"storage/a.go": importSource("storage"),
			"a.go":         "package tenuto\n",
			"journal/a.go": importSource("journal", modulePath, "./storage"),
		}, []string{
			"storage belongs to no known part",
			". belongs to no known part",
			"journal imports " + modulePath + ": the module's root holds no package",
			"journal may not import storage",
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			expectViolations(t, importViolations, c.files, c.expected...)
		})
	}
}

func TestImports_UnreadableFileIsError(t *testing.T) {
	root := makeTree(t, map[string]string{"replay/a.go": "package replay\nimport (\n"})
	if _, err := importViolations(root); err == nil {
		t.Error("a file that does not parse was accepted")
	}
}
