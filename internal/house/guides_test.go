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

// guideDirs are the directories of the user guides.
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

// Code copied from a guide compiles. Each guide is a
// package, which exists for the compiler alone.
func TestGuides_CodeCompiles(t *testing.T) {
	guides, err := guidesUnder(repositoryRoot)
	if err != nil || len(guides) == 0 {
		t.Fatalf("%d guides: %v", len(guides), err)
	}
	root, err := filepath.Abs(repositoryRoot)
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

// wrapperParameters are the parameters of the function that wraps code without a declaration, by
// the word after "go" at the start of the code block.
var wrapperParameters = map[string]string{
	"":         "ctx *replay.Context",
	"activity": "ctx context.Context",
	"client":   "ctx context.Context, client *cluster.Client",
	"test":     "t *testing.T",
}

var declarationPattern = regexp.MustCompile(`(?m)\A(\s*//.*\n)*\s*(func|type|var|const|import)\b`)

// guideSource joins the code of a guide: the code blocks, and code in comments "<!--go", which hide
// what would distract. Positions are those in the guide.
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
			if !declarationPattern.MatchString(text) {
				text = fmt.Sprintf("func _(%s) error {\n//line %s:%d\n%s\nreturn nil\n}\n", wrapperParameters[kind], name, begin, text)
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

func TestGuides_Source(t *testing.T) {
	guide := strings.Join([]string{"# A guide", "<!--go", `import "fmt"`, "-->", "", "```go", "// One does.", "func f() {}", "```",
		"```sh", "rm -r .", "```", "```go activity", "f()", "```", ""}, "\n")
	want := strings.Join([]string{"package guide", "//line g.md:3", `import "fmt"`, "//line g.md:7", "// One does.", "func f() {}",
		"//line g.md:14", "func _(ctx context.Context) error {", "//line g.md:14", "f()", "", "return nil", "}", ""}, "\n")
	if got := guideSource("g.md", guide); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// codeBlockPattern matches code blocks and hidden code.
var codeBlockPattern = regexp.MustCompile("(?ms)^(```.*?^```|<!--go.*?^-->)$")

var linkPattern = regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)

// The README links every guide, and all links of the README and of the guides lead to an existing
// file.
func TestLinks(t *testing.T) {
	expectNoViolations(t, linkViolations)
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
		for _, match := range linkPattern.FindAllStringSubmatch(codeBlockPattern.ReplaceAllString(string(content), ""), -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			target := path.Join(path.Dir(document), match[1])
			if document == "README.md" {
				linked[target] = true
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				violations = append(violations, fmt.Sprintf("%s links %s, which does not exist", document, match[1]))
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

func TestLinks_Violations(t *testing.T) {
	expectViolations(t, linkViolations, map[string]string{
		"README.md":           "[a](replay/docs/a.md), [no](replay/docs/no.md), [web](https://example.org/x)",
		"replay/docs/a.md":    "[b](b.md#part), [up](../doc.go), [gone](gone.md)\n```go\nx := a[i](y)\n```\n<!--go\nx = a[i](z)\n-->\n",
		"replay/docs/b.md":    "[here](#here)",
		"replay/doc.go":       "package replay",
		"cluster/docs/old.md": "",
	},
		"README.md links replay/docs/no.md, which does not exist",
		"replay/docs/a.md links gone.md, which does not exist",
		"README.md does not link replay/docs/b.md",
		"README.md does not link cluster/docs/old.md",
	)
}
