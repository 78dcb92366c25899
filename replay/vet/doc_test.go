package vet

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"testing"
)

// The table in doc.go has a line for each rule.
func TestDoc_NamesEveryRule(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	names := ruleNames(t)
	if len(names) < 20 {
		t.Fatalf("only %d rules: %q", len(names), names)
	}
	for _, name := range names {
		if !regexp.MustCompile(`(?m)^//\t` + name + ` `).Match(doc) {
			t.Errorf("doc.go has no line for the rule %q", name)
		}
	}
}

// ruleNames reads the names of the reported rules from rule.go.
func ruleNames(t *testing.T) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "rule.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	ast.Inspect(file, func(n ast.Node) bool {
		literal, ok := n.(*ast.CompositeLit)
		if !ok || len(literal.Elts) != 3 {
			return true
		}
		if name, ok := literal.Elts[0].(*ast.BasicLit); ok && name.Kind == token.STRING {
			names = append(names, name.Value[1:len(name.Value)-1])
		}
		return true
	})
	return names
}
