package house

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
)

// importing is the source of one file of the package in dir.
func importing(dir string, paths ...string) string {
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

// Every pair of parts that mayImport does not name is refused, and so no edge
// of the picture stands there untested.
func TestEveryEdgeNotDrawnIsRefused(t *testing.T) {
	for from := range mayImport {
		for to := range mayImport {
			t.Run(from+" to "+to, func(t *testing.T) {
				var wanted []string
				if from != to && !slices.Contains(mayImport[from], to) {
					wanted = []string{from + "/deep imports " + modulePath + "/" + to + "/low: " + from + " may not import " + to}
				}
				files := map[string]string{from + "/deep/deep.go": importing("deep", "./"+to+"/low")}
				expectViolations(t, importViolations, files, wanted...)
			})
		}
	}
}

// The picture must stay one: a chain of allowed edges never comes back.
func TestPictureHasNoCycle(t *testing.T) {
	var visit func(part string, above []string)
	visit = func(part string, above []string) {
		if slices.Contains(above, part) {
			t.Fatalf("cycle: %s", strings.Join(append(above, part), " → "))
		}
		for _, below := range mayImport[part] {
			visit(below, append(slices.Clone(above), part))
		}
	}
	for part := range mayImport {
		visit(part, nil)
	}
}

func TestImportsRefused(t *testing.T) {
	cases := []struct {
		name   string
		files  map[string]string
		wanted []string
	}{
		{"raft outside journal", map[string]string{
			"cluster/a.go": importing("cluster", "github.com/hashicorp/raft"),
			"actors/a.go":  importing("actors", "github.com/hashicorp/raft-boltdb/v2"),
			"bench/a.go":   importing("bench", "github.com/boltdb/bolt"),
			"journal/a.go": importing("journal", "github.com/hashicorp/raft", "github.com/hashicorp/raft-boltdb/v2", "go.etcd.io/bbolt"),
		}, []string{
			"cluster imports github.com/hashicorp/raft: that is for journal, bench alone",
			"actors imports github.com/hashicorp/raft-boltdb/v2: that is for journal, bench alone",
			"bench imports github.com/boltdb/bolt: that is for journal alone",
		}},
		{"protoactor outside actors and cluster", map[string]string{
			"journal/a.go": importing("journal", "github.com/asynkron/protoactor-go/actor"),
			"actors/a.go":  importing("actors", "github.com/asynkron/protoactor-go/actor"),
			"cluster/a.go": importing("cluster", "github.com/asynkron/protoactor-go/remote"),
		}, []string{
			"journal imports github.com/asynkron/protoactor-go/actor: that is for actors, cluster alone",
		}},
		{"grpc outside cluster and the schemas", map[string]string{
			"actors/a.go":          importing("actors", "google.golang.org/grpc/codes"),
			"examples/hello/a.go":  importing("hello", "google.golang.org/grpc"),
			"cluster/a.go":         importing("cluster", "google.golang.org/grpc"),
			"proto/clusterpb/a.go": importing("clusterpb", "google.golang.org/grpc"),
		}, []string{
			"actors imports google.golang.org/grpc/codes: that is for cluster",
			"examples/hello imports google.golang.org/grpc: that is for cluster",
		}},
		{"what an author's package pulls in", map[string]string{
			"replay/a.go":            importing("replay", "time", "google.golang.org/protobuf/proto", "./proto/journalpb"),
			"replay/replaytest/a.go": importing("replaytest", "golang.org/x/sync/errgroup", "./replay"),
			"proto/journalpb/a.go":   importing("journalpb", "google.golang.org/grpc"),
		}, []string{
			"replay/replaytest imports golang.org/x/sync/errgroup: replay/replaytest may import only google.golang.org/protobuf",
			"proto/journalpb imports google.golang.org/grpc: proto/journalpb may import only",
		}},
		{"tests", map[string]string{
			"journal/a_test.go":        importing("journal", "./actors"),
			"journal/b_test.go":        importing("journal_test", "./replay"),
			"replay/a_test.go":         importing("replay", "github.com/google/go-cmp/cmp", "github.com/stretchr/testify/assert"),
			"cluster/a_test.go":        importing("cluster_test", "./examples/hello", "github.com/hashicorp/raft"),
			"examples/hello/a_test.go": importing("hello", "./journal"),
		}, []string{
			"tests of journal import " + modulePath + "/actors: journal may not import actors",
			"tests of journal import " + modulePath + "/replay: journal may not import replay",
			"tests of replay import github.com/stretchr/testify/assert",
		}},
		{"a test's exception does not cover the package", map[string]string{
			"replay/a.go": importing("replay", "github.com/google/go-cmp/cmp"),
		}, []string{
			"replay imports github.com/google/go-cmp/cmp",
		}},
		{"files that this system does not build", map[string]string{
			"replay/a_plan9.go": importing("replay", "./journal"),
			"replay/b.go":       "//go:build never\n\n" + importing("replay", "./actors"),
		}, []string{
			"replay may not import journal",
			"replay may not import actors",
		}},
		{"a part that nobody agreed on", map[string]string{
			"storage/a.go": importing("storage"),
			"a.go":         "package tenuto\n",
			"journal/a.go": importing("journal", modulePath, "./storage"),
		}, []string{
			"storage belongs to no known part",
			". belongs to no known part",
			"journal imports " + modulePath + ": the module's root holds no package",
			"journal may not import storage",
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			expectViolations(t, importViolations, c.files, c.wanted...)
		})
	}
}

func TestUnreadableImportsAreAnError(t *testing.T) {
	root := makeTree(t, map[string]string{"replay/a.go": "package replay\nimport (\n"})
	if _, err := importViolations(root); err == nil {
		t.Error("a file that does not parse passed")
	}
}
