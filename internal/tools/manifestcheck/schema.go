package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"
)

// schemaFile is what the command reduce has made of Kubernetes' OpenAPI schemas.
//
//go:embed schema.json
var schemaFile []byte

// schemas validate objects as Kubernetes' OpenAPI schemas say: required fields and the values of
// enumerations, which the types of k8s.io/api do not have.
type schemas struct{ compiler *jsonschema.Compiler }

const schemaURL = "tenuto:///schema.json"

// loadSchemas returns the schemas of schemaFile, which it decodes once.
var loadSchemas = sync.OnceValues(func() (*schemas, error) {
	content, err := jsonschema.UnmarshalJSON(bytes.NewReader(schemaFile))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	return &schemas{c}, c.AddResource(schemaURL, content)
})

// A model is a type of k8s.io/api.
type model interface{ OpenAPIModelName() string }

// validate returns an error that lists what the schema of a type does not allow in a document.
func (s *schemas) validate(document []byte, of model) error {
	schema, err := s.compiler.Compile(fmt.Sprintf("%s#/$defs/%s", schemaURL, of.OpenAPIModelName()))
	if err != nil {
		return err
	}
	encoded, err := yaml.YAMLToJSON(document)
	if err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(encoded))
	if err != nil {
		return err
	}
	return schema.Validate(value)
}
