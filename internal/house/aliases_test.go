package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// documentedPackages are the packages whose documentation users read. "go doc" shows no fields of a
// type that is an alias of a type of another package.
var documentedPackages = []string{"cluster", "cluster/bulk", "cluster/schedule", "replay"}

// TestAliases_DocNamesFields requires that the comment of an exported alias of a struct of this
// module names each exported field.
func TestAliases_DocNamesFields(t *testing.T) {
	checked := 0
	for _, dir := range documentedPackages {
		for _, spec := range aliasesOf(t, dir) {
			target := spec.spec.Type.(*ast.SelectorExpr)
			for _, field := range fieldsOf(t, target.X.(*ast.Ident).Name, target.Sel.Name) {
				checked++
				if !strings.Contains(spec.doc, field) {
					t.Errorf("%s: the comment of %s does not name its field %s", dir, spec.spec.Name.Name, field)
				}
			}
		}
	}
	if checked == 0 {
		t.Error("no fields were checked")
	}
}

type alias struct {
	spec *ast.TypeSpec
	doc  string
}

// aliasesOf lists the exported aliases in a package of types of another package.
func aliasesOf(t *testing.T, dir string) []alias {
	t.Helper()
	var found []alias
	eachTypeSpec(t, dir, func(spec *ast.TypeSpec, doc string) {
		if _, other := spec.Type.(*ast.SelectorExpr); other && spec.Assign.IsValid() && spec.Name.IsExported() {
			found = append(found, alias{spec, doc})
		}
	})
	return found
}

// fieldsOf lists the exported fields of a struct of a package of the module, or none if the type is
// not a struct. The package's name must be its last directory.
func fieldsOf(t *testing.T, name, typeName string) []string {
	t.Helper()
	dir := name
	switch name {
	case "journalpb", "clusterpb":
		dir = "proto/" + name
	case "activity":
		dir = "actors/" + name
	case "bulk", "schedules":
		dir = "cluster/internal/" + name
	}
	var fields []string
	eachTypeSpec(t, dir, func(spec *ast.TypeSpec, _ string) {
		body, ok := spec.Type.(*ast.StructType)
		if !ok || spec.Name.Name != typeName {
			return
		}
		for _, field := range body.Fields.List {
			for _, ident := range field.Names {
				if ident.IsExported() {
					fields = append(fields, ident.Name)
				}
			}
		}
	})
	return fields
}

func eachTypeSpec(t *testing.T, dir string, visit func(spec *ast.TypeSpec, doc string)) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(repositoryRoot, dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", dir, len(files), err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			group, ok := decl.(*ast.GenDecl)
			if !ok || group.Tok != token.TYPE {
				continue
			}
			for _, spec := range group.Specs {
				visit(spec.(*ast.TypeSpec), group.Doc.Text()+spec.(*ast.TypeSpec).Doc.Text())
			}
		}
	}
}
