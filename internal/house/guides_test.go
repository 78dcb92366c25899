package house

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// guideDirs are where the guides for users are.
var guideDirs = []string{"replay/docs", "cluster/docs"}

// guidesUnder lists the guides, relative to root.
func guidesUnder(root string) ([]string, error) {
	var guides []string
	for _, dir := range guideDirs {
		found, err := filepath.Glob(filepath.Join(root, dir, "*.md"))
		if err != nil {
			return nil, err
		}
		for _, name := range found {
			guides = append(guides, path.Join(dir, filepath.Base(name)))
		}
	}
	return guides, nil
}

// Whoever copies code out of a guide gets code that compiles. Each guide is a
// package, which exists for the compiler alone.
func TestCodeInGuidesCompiles(t *testing.T) {
	guides, err := guidesUnder(repository)
	if err != nil || len(guides) == 0 {
		t.Fatalf("%d guides: %v", len(guides), err)
	}
	root, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	temporary, replaced, build := t.TempDir(), make(map[string]string), []string{"build", "-overlay"}
	overlay := filepath.Join(temporary, "overlay.json")
	build = append(build, overlay)
	for i, guide := range guides {
		content, err := os.ReadFile(filepath.Join(root, guide))
		if err != nil {
			t.Fatal(err)
		}
		source := filepath.Join(temporary, fmt.Sprintf("guide%d.go", i))
		if err := os.WriteFile(source, []byte(guideSource(filepath.Join(root, guide), string(content))), 0o600); err != nil {
			t.Fatal(err)
		}
		dir := strings.TrimSuffix(guide, ".md")
		replaced[filepath.Join(root, dir, "guide.go")] = source
		build = append(build, "./"+dir)
	}
	encoded, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, encoded, 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("go", build...)
	command.Dir = root
	if output, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}

// The parameters of the function that is put around code which is no declaration,
// by what stands behind "go" where the code begins.
var around = map[string]string{
	"":         "ctx *replay.Context",
	"activity": "ctx context.Context",
	"client":   "ctx context.Context, client *cluster.Client",
	"test":     "t *testing.T",
}

var declaration = regexp.MustCompile(`(?m)\A(\s*//.*\n)*\s*(func|type|var|const|import)\b`)

// guideSource puts the code of a guide together: what is shown, and what a
// comment "<!--go" hides because it would distract. Places are those in the guide.
func guideSource(name, guide string) string {
	var source, block strings.Builder
	source.WriteString("package guide\n")
	var end, kind string
	begin := 0
	for n, line := range strings.Split(guide, "\n") {
		shown, isShown := strings.CutPrefix(line, "```go")
		switch {
		case end == "" && isShown && (shown == "" || shown[0] == ' '):
			end, kind, begin = "```", strings.TrimSpace(shown), n+2
		case end == "" && line == "<!--go":
			end, kind, begin = "-->", "", n+2
		case end != "" && line == end:
			text := block.String()
			if !declaration.MatchString(text) {
				text = fmt.Sprintf("func _(%s) error {\n//line %s:%d\n%s\nreturn nil\n}\n", around[kind], name, begin, text)
			}
			fmt.Fprintf(&source, "//line %s:%d\n%s", name, begin, text)
			block.Reset()
			end = ""
		case end != "":
			block.WriteString(line + "\n")
		}
	}
	return source.String()
}

func TestGuideSource(t *testing.T) {
	guide := strings.Join([]string{"# A guide", "<!--go", `import "fmt"`, "-->", "", "```go", "// One does.", "func f() {}", "```",
		"```sh", "rm -r .", "```", "```go activity", "f()", "```", ""}, "\n")
	want := strings.Join([]string{"package guide", "//line g.md:3", `import "fmt"`, "//line g.md:7", "// One does.", "func f() {}",
		"//line g.md:14", "func _(ctx context.Context) error {", "//line g.md:14", "f()", "", "return nil", "}", ""}, "\n")
	if got := guideSource("g.md", guide); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// code is what stands in a document between fences, or hidden.
var code = regexp.MustCompile("(?ms)^(```.*?^```|<!--go.*?^-->)$")

var link = regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)

// Every guide can be reached from the README, and no link of theirs, or of the
// README's, leads nowhere.
func TestLinks(t *testing.T) {
	expectNone(t, linkViolations)
}

func linkViolations(root string) ([]string, error) {
	guides, err := guidesUnder(root)
	if err != nil {
		return nil, err
	}
	linked := make(map[string]bool)
	var violations []string
	for _, document := range append([]string{"README.md"}, guides...) {
		content, err := os.ReadFile(filepath.Join(root, document))
		if err != nil {
			return nil, err
		}
		for _, match := range link.FindAllStringSubmatch(code.ReplaceAllString(string(content), ""), -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			target := path.Join(path.Dir(document), match[1])
			if document == "README.md" {
				linked[target] = true
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				violations = append(violations, fmt.Sprintf("%s links %s, which is not there", document, match[1]))
			}
		}
	}
	for _, guide := range guides {
		if !linked[guide] {
			violations = append(violations, "README.md does not link "+guide)
		}
	}
	return violations, nil
}

func TestLinkViolations(t *testing.T) {
	expectViolations(t, linkViolations, map[string]string{
		"README.md":           "[a](replay/docs/a.md), [no](replay/docs/no.md), [web](https://example.org/x)",
		"replay/docs/a.md":    "[b](b.md#part), [up](../doc.go), [gone](gone.md)\n```go\nx := a[i](y)\n```\n<!--go\nx = a[i](z)\n-->\n",
		"replay/docs/b.md":    "[here](#here)",
		"replay/doc.go":       "package replay",
		"cluster/docs/old.md": "",
	},
		"README.md links replay/docs/no.md, which is not there",
		"replay/docs/a.md links gone.md, which is not there",
		"README.md does not link replay/docs/b.md",
		"README.md does not link cluster/docs/old.md",
	)
}
