package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const head = `# It adds wrongly.
# Breaks: S1
# Caught by: ./sum TestSum
`

const breakSum = `--- a/sum/sum.go
+++ b/sum/sum.go
@@ -2,2 +2,2 @@
 
-func Sum(a, b int) int { return a + b }
+func Sum(a, b int) int { return a - b }
`

// makeTree writes a module with one package and a test of it.
func makeTree(t *testing.T, test string) string {
	t.Helper()
	if _, err := exec.LookPath("patch"); err != nil {
		t.Skip("no patch command")
	}
	tree := t.TempDir()
	for name, content := range map[string]string{
		"go.mod":          "module example.org/sum\n\ngo 1.26\n",
		"sum/sum.go":      "package sum\n\nfunc Sum(a, b int) int { return a + b }\n",
		"sum/sum_test.go": "package sum\n\nimport \"testing\"\n\n" + test,
	} {
		name = filepath.Join(tree, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return tree
}

func TestMutant_Outcomes(t *testing.T) {
	good := "func TestSum(t *testing.T) {\n\tif Sum(1, 2) != 3 {\n\t\tt.Error()\n\t}\n}\n"
	for name, c := range map[string]struct {
		test, patch string
		want        outcome
	}{
		"its test fails":                {good, breakSum, caught},
		"its test panics":               {strings.Replace(good, "t.Error()", "panic(1)", 1), breakSum, caught},
		"its test sees nothing":         {"func TestSum(t *testing.T) { Sum(1, 0) }\n", breakSum, notCaught},
		"the code is another now":       {good, strings.Replace(breakSum, "-func Sum(a, b", "-func Add(a, b", 1), patchStale},
		"what stands around is another": {good, strings.Replace(breakSum, "@@\n \n", "@@\n // Sum adds.\n", 1), patchStale},
		"what it makes is no Go":        {good, strings.Replace(breakSum, "return a - b", "return a -", 1), buildFailed},
		"its test is gone":              {"func TestOther(t *testing.T) {}\n", breakSum, testUseless},
		"its test fails without it":     {"func TestSum(t *testing.T) { t.Error(Sum(1, 2)) }\n", breakSum, testUseless},
		"its test cannot be run here":   {"func TestSum(t *testing.T) { t.Skip() }\n", breakSum, skipped},
	} {
		t.Run(name, func(t *testing.T) {
			tree := makeTree(t, c.test)
			m, err := parseMutant("sum", []byte(head+c.patch))
			if err != nil {
				t.Fatal(err)
			}
			if got, out := m.try(tree); got != c.want {
				t.Errorf("%s; want %s\n%s", got, c.want, out)
			}
			source, err := os.ReadFile(filepath.Join(tree, "sum/sum.go"))
			if err != nil || !strings.Contains(string(source), "a + b") {
				t.Errorf("the tree was not restored: %s, %v", source, err)
			}
		})
	}
}

func TestMutants_HaveHeaders(t *testing.T) {
	mutants, err := readMutants(".")
	if err != nil {
		t.Fatal(err)
	}
	if len(mutants) < 8 {
		t.Errorf("%d mutants", len(mutants))
	}
	for _, m := range mutants {
		if !strings.Contains(string(m.patch), "\n--- a/") || !strings.HasPrefix(m.test, "Test") || !strings.HasPrefix(m.dir, "./") {
			t.Errorf("%s: %+v", m.name, m)
		}
	}
	if _, err := parseMutant("headless", []byte(breakSum)); err == nil {
		t.Error("a patch without a header was read")
	}
	if _, err := readMutants(t.TempDir()); err == nil {
		t.Error("a directory without patches was read")
	}
}

// A patch that does not apply breaks nothing and so proves nothing.
func TestMutants_PatchesApply(t *testing.T) {
	if _, err := exec.LookPath("patch"); err != nil {
		t.Skip("no patch command")
	}
	mutants, err := readMutants(".")
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join("..", "..", "..")
	for _, m := range mutants {
		if out, err := m.apply(root, "--dry-run"); err != nil {
			t.Errorf("%s: %v\n%s", m.name, err, out)
		}
		// The go command caches a result by the files that the test itself opens, but patch opens
		// them in another process.
		for line := range strings.Lines(string(m.patch)) {
			if name, ok := strings.CutPrefix(line, "--- a/"); ok {
				if _, err := os.Stat(filepath.Join(root, strings.TrimSpace(name))); err != nil {
					t.Errorf("%s: %v", m.name, err)
				}
			}
		}
	}
}
