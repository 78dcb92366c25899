package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
)

// enumerations are the values of the properties that have an enumeration: by the function of the
// generated code that returns the schema, and by the property.
type enumerations map[string]map[string][]string

// readEnumerations reads the enumerations in a file of generated code. It has a function for each
// schema, which returns a literal of it.
func readEnumerations(path string) (enumerations, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		return nil, err
	}
	all := make(enumerations)
	for _, declaration := range file.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if !ok {
			continue
		}
		properties := make(map[string][]string)
		all[function.Name.Name] = properties
		err := eachField(function.Body, "Properties", func(name string, schema ast.Expr) error {
			return eachField(schema, "Enum", func(_ string, value ast.Expr) error {
				text, err := literal(value)
				properties[name] = append(properties[name], text)
				return err
			})
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path, function.Name.Name, err)
		}
	}
	return all, nil
}

// eachField calls do for each element of the literals that fields of a name have in a tree. key is
// "" for an element without a key.
func eachField(tree ast.Node, field string, do func(key string, element ast.Expr) error) (err error) {
	ast.Inspect(tree, func(n ast.Node) bool {
		pair, ok := n.(*ast.KeyValueExpr)
		if !ok || err != nil {
			return err == nil
		}
		if name, ok := pair.Key.(*ast.Ident); !ok || name.Name != field {
			return true
		}
		list, ok := pair.Value.(*ast.CompositeLit)
		if !ok {
			err = fmt.Errorf("%s is no literal", field)
			return false
		}
		for _, element := range list.Elts {
			key := ""
			if keyed, ok := element.(*ast.KeyValueExpr); ok && err == nil {
				key, err = literal(keyed.Key)
				element = keyed.Value
			}
			if err == nil {
				err = do(key, element)
			}
		}
		return false
	})
	return err
}

// literal returns the text of a string literal.
func literal(e ast.Expr) (string, error) {
	basic, ok := e.(*ast.BasicLit)
	if !ok {
		return "", fmt.Errorf("%T instead of a string literal", e)
	}
	return strconv.Unquote(basic.Value)
}

// add adds the enumerations of the definitions to them.
func (all enumerations) add(definitions map[string]any) error {
	for name, schema := range definitions {
		suffix, ok := strings.CutPrefix(name, "io.k8s.api.")
		if !ok {
			continue // the types of k8s.io/apimachinery have no enumerations
		}
		properties, ok := all["schema_k8sio_api_"+strings.ReplaceAll(suffix, ".", "_")]
		if !ok {
			return fmt.Errorf("the generated code has no %s", name)
		}
		for property, values := range properties {
			fields, _ := schema.(map[string]any)["properties"].(map[string]any)
			target, _ := fields[property].(map[string]any)
			for _, keyword := range []string{"items", "additionalProperties"} {
				if element, ok := target[keyword].(map[string]any); ok {
					target = element
				}
			}
			if target["type"] != "string" {
				return fmt.Errorf("%s.%s has an enumeration, but no strings", name, property)
			}
			target["enum"] = values
		}
	}
	return nil
}
