package house

import (
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// vagueNames are package names that do not say what a package is for.
var vagueNames = []string{"common", "proto", "types", "util", "utils"}

func TestPackages_NameAndDoc(t *testing.T) {
	expectNoViolations(t, packageViolations)
}

func packageViolations(root string) ([]string, error) {
	dirs, err := packageDirs(root)
	if err != nil {
		return nil, err
	}
	var violations []string
	for _, dir := range dirs {
		name, err := packageName(filepath.Join(root, dir))
		if err != nil {
			return nil, err
		}
		if slices.Contains(vagueNames, name) {
			violations = append(violations, fmt.Sprintf("%s: package %s needs a name that says something", dir, name))
		}
		violation, err := docViolation(root, dir, name)
		if err != nil {
			return nil, err
		}
		if violation != "" {
			violations = append(violations, violation)
		}
	}
	return violations, nil
}

// packageName returns the package name in the first file; the compiler checks that all agree.
func packageName(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	for _, entry := range entries {
		if !isGoFile(entry.Name()) {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, entry.Name()), nil, parser.PackageClauseOnly)
		if err != nil {
			return "", err
		}
		return strings.TrimSuffix(file.Name.Name, "_test"), nil
	}
	return "", fmt.Errorf("%s holds no Go file", dir)
}

func docViolation(root, dir, name string) (string, error) {
	docPath, beginning := "doc.go", "Package "+name+" "
	if name == "main" {
		docPath, beginning = "main.go", ""
	}
	docPath = path.Join(dir, docPath)
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, docPath), nil, parser.ParseComments|parser.PackageClauseOnly)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Sprintf("%s is missing; the package comment belongs there", docPath), nil
	}
	if err != nil {
		return "", err
	}
	comment := file.Doc.Text()
	if strings.TrimSpace(comment) == "" {
		return fmt.Sprintf("%s has no package comment", docPath), nil
	}
	if !strings.HasPrefix(strings.ReplaceAll(comment, "\n", " "), beginning) {
		return fmt.Sprintf("%s: the package comment begins with %q", docPath, beginning), nil
	}
	return "", nil
}

func TestPackages_Violations(t *testing.T) {
	expectViolations(t, packageViolations, map[string]string{
		"journal/doc.go":          "// Package journal\n// keeps.\npackage journal\n",
		"actors/doc.go":           "// License.\n\npackage actors\n",
		"replay/replay.go":        "// Package replay has it in the wrong file.\npackage replay\n",
		"cluster/doc.go":          "// Package clusters is misspelt.\npackage cluster\n",
		"bench/main.go":           "// The benchmark.\npackage main\n",
		"cmd/tenuto/main.go":      "package main\n",
		"examples/hello/hello.go": "// Command hello.\npackage main\n",
		"journal/bytes/doc.go":    "// Package util is vague.\npackage util\n",
		"journal/check/a_test.go": "package check_test\n",
	},
		"actors/doc.go has no package comment",
		"replay/doc.go is missing",
		`cluster/doc.go: the package comment begins with "Package cluster "`,
		"cmd/tenuto/main.go has no package comment",
		"examples/hello/main.go is missing",
		"journal/bytes: package util needs a name",
		"journal/check/doc.go is missing",
	)
	for _, name := range vagueNames {
		expectViolations(t, packageViolations, map[string]string{
			"journal/x/doc.go": fmt.Sprintf("// Package %s is vague.\npackage %[1]s\n", name),
		}, "journal/x: package "+name+" needs a name")
	}
}
