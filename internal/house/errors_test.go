package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// troubleshootingGuide explains every error and what to do about it.
const troubleshootingGuide = "cluster/docs/troubleshooting.md"

// Every error that a user can name is explained.
func TestErrors_AreExplained(t *testing.T) {
	expectNoViolations(t, unexplainedErrors)
}

func unexplainedErrors(root string) ([]string, error) {
	guide, err := os.ReadFile(filepath.Join(root, troubleshootingGuide))
	if err != nil {
		return nil, err
	}
	var violations []string
	for _, dir := range []string{"replay", "cluster", "cluster/bulk", "cluster/filter", "cluster/operate", "cluster/schedule"} {
		names, err := exportedErrors(root, dir)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if !strings.Contains(string(guide), "### `"+name+"`") {
				violations = append(violations, fmt.Sprintf("%s does not explain %s", troubleshootingGuide, name))
			}
		}
	}
	return violations, nil
}

// exportedErrors lists the sentinels and error types of the package in dir, as users write them:
// "replay.ErrTimeout", "*replay.Mismatch".
func exportedErrors(root, dir string) ([]string, error) {
	files, err := sourceFiles(root)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, name := range files {
		if path.Dir(name) != dir {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, declared := range file.Decls {
			names = append(names, declaredErrors(file.Name.Name, declared)...)
		}
	}
	slices.Sort(names)
	return names, nil
}

func declaredErrors(pkg string, declared ast.Decl) []string {
	var names []string
	switch d := declared.(type) {
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			values, ok := spec.(*ast.ValueSpec)
			if !ok || d.Tok != token.VAR {
				continue
			}
			for _, name := range values.Names {
				if strings.HasPrefix(name.Name, "Err") {
					names = append(names, pkg+"."+name.Name)
				}
			}
		}
	case *ast.FuncDecl:
		if d.Name.Name != "Error" || d.Recv == nil || len(d.Type.Params.List) > 0 {
			break
		}
		star := ""
		receiver := d.Recv.List[0].Type
		if pointer, ok := receiver.(*ast.StarExpr); ok {
			star, receiver = "*", pointer.X
		}
		if name, ok := receiver.(*ast.Ident); ok && name.IsExported() {
			names = append(names, star+pkg+"."+name.Name)
		}
	}
	return names
}

func TestErrors_ReportsUnexplained(t *testing.T) {
	expectViolations(t, unexplainedErrors, map[string]string{
		troubleshootingGuide: "### `replay.ErrKnown`\n### `*cluster.KnownError`\nErrNew, NewError\n",
		"replay/a.go":        "package replay\nvar (\n\tErrKnown, ErrNew error\n\terrOwn error\n)\nconst ErrNone = 1\n",
		"cluster/a.go": `package cluster
func (e *KnownError) Error() string { return "" }
func (e *NewError) Error() string { return "" }
func (e PlainError) Error() string { return "" }
func (e *ownError) Error() string { return "" }
func (l *Log) Error(text string) {}
func Error() string { return "" }
`,
		"cluster/a_test.go": "package cluster\nvar ErrTest error\n",
	},
		"does not explain replay.ErrNew",
		"does not explain *cluster.NewError",
		"does not explain cluster.PlainError",
	)
}
