// Command reduce writes schema.json: the part of Kubernetes' OpenAPI schemas that manifestcheck
// uses. "make schemas" runs it.
//
// Its source is the module k8s.io/kubernetes, which the Go module proxy has, at the release that
// the module's k8s.io/api belongs to: v0.N of k8s.io/api is of Kubernetes 1.N. Two files are used:
//
//   - api/openapi-spec/v3 has types, required fields and references, but no enumerations.
//   - pkg/generated/openapi, from which API servers make their schemas, has the enumerations.
//
// Only the kinds below and what they refer to are kept, without descriptions.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// kinds are the kinds that manifests may have, by the file that defines them.
var kinds = map[string][]string{
	"api__v1_openapi.json":                     {"io.k8s.api.core.v1.Service"},
	"apis__apps__v1_openapi.json":              {"io.k8s.api.apps.v1.StatefulSet", "io.k8s.api.apps.v1.Deployment"},
	"apis__policy__v1_openapi.json":            {"io.k8s.api.policy.v1.PodDisruptionBudget"},
	"apis__networking.k8s.io__v1_openapi.json": {"io.k8s.api.networking.v1.NetworkPolicy"},
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: reduce schema.json")
	}
	if err := run(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(path string) error {
	m, err := download()
	if err != nil {
		return err
	}
	definitions := make(map[string]any)
	for file, names := range kinds {
		if err := collect(filepath.Join(m.Dir, "api/openapi-spec/v3", file), names, definitions); err != nil {
			return err
		}
	}
	all, err := readEnumerations(filepath.Join(m.Dir, "pkg/generated/openapi/zz_generated.openapi.go"))
	if err != nil {
		return err
	}
	if err := all.add(definitions); err != nil {
		return err
	}
	content, err := encode(m, definitions)
	if err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}

// A module is what the command go prints of one.
type module struct{ Path, Version, Dir, Sum, Error string }

// download returns the source of the Kubernetes release that k8s.io/api is of.
func download() (m module, err error) {
	version, err := command(".", "go", "list", "-m", "-f", "{{.Version}}", "k8s.io/api")
	if err != nil {
		return m, err
	}
	release, ok := strings.CutPrefix(strings.TrimSpace(string(version)), "v0.")
	if !ok {
		return m, fmt.Errorf("k8s.io/api has the version %s, which names no release", version)
	}
	// Outside of any module: this one does not depend on k8s.io/kubernetes.
	dir, err := os.MkdirTemp("", "reduce")
	if err != nil {
		return m, err
	}
	defer os.RemoveAll(dir)
	out, err := command(dir, "go", "mod", "download", "-json", "k8s.io/kubernetes@v1."+release)
	if err := errors.Join(err, json.Unmarshal(out, &m)); err != nil {
		return m, fmt.Errorf("%w: %s", err, m.Error)
	}
	return m, nil
}

func command(dir, name string, arguments ...string) ([]byte, error) {
	c := exec.Command(name, arguments...)
	c.Dir, c.Stderr = dir, os.Stderr
	out, err := c.Output()
	if err != nil {
		return out, fmt.Errorf("%s: %w", c, err)
	}
	return out, nil
}

const refPrefix = "#/components/schemas/"

// collect adds the schemas of some names in a file, and of all that they refer to, to definitions.
func collect(path string, names []string, definitions map[string]any) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var file struct {
		Components struct {
			Schemas map[string]map[string]any
		}
	}
	if err := json.Unmarshal(content, &file); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for missing := slices.Clone(names); len(missing) > 0; missing = missing[1:] {
		name := missing[0]
		if definitions[name] != nil {
			continue
		}
		schema, found := file.Components.Schemas[name]
		if !found {
			return fmt.Errorf("%s has no schema %s", path, name)
		}
		if definitions[name], err = reduce(schema, func(ref string) { missing = append(missing, ref) }); err != nil {
			return fmt.Errorf("%s: %s: %w", path, name, err)
		}
	}
	return nil
}

// reduce returns a schema with what validates values alone, as JSON Schema has it. refer is called
// with the name of each other schema that it refers to.
func reduce(schema map[string]any, refer func(name string)) (reduced map[string]any, err error) {
	reduced = make(map[string]any)
	for keyword, value := range schema {
		switch keyword {
		case "description", "default", "format":
		case "type", "required":
			reduced[keyword] = value
		case "$ref":
			name := strings.TrimPrefix(value.(string), refPrefix)
			refer(name)
			reduced[keyword] = "#/$defs/" + name
		case "items", "additionalProperties":
			reduced[keyword], err = reduce(value.(map[string]any), refer)
		case "properties":
			properties := make(map[string]any)
			for name, property := range value.(map[string]any) {
				if properties[name], err = reduce(property.(map[string]any), refer); err != nil {
					return nil, fmt.Errorf("%s: %w", name, err)
				}
			}
			reduced[keyword] = properties
		case "allOf", "oneOf":
			var all []any
			for _, one := range value.([]any) {
				r, err := reduce(one.(map[string]any), refer)
				if err != nil {
					return nil, err
				}
				all = append(all, r)
			}
			reduced[keyword] = all
		default:
			if !strings.HasPrefix(keyword, "x-kubernetes-") {
				return nil, fmt.Errorf("unknown keyword %s", keyword)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return reduced, nil
}

// encode returns a JSON schema with the definitions, one in each line.
func encode(m module, definitions map[string]any) ([]byte, error) {
	var out bytes.Buffer
	fmt.Fprintf(&out, "{\n\"$schema\": \"https://json-schema.org/draft/2020-12/schema\",\n")
	fmt.Fprintf(&out, "\"$comment\": \"Generated by reduce from %s %s %s (Apache License 2.0). Do not edit.\",\n", m.Path, m.Version, m.Sum)
	fmt.Fprintf(&out, "\"$defs\": {\n")
	names := make([]string, 0, len(definitions))
	for name := range definitions {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, name := range names {
		line, err := json.Marshal(definitions[name])
		if err != nil {
			return nil, err
		}
		separator := ","
		if i == len(names)-1 {
			separator = ""
		}
		fmt.Fprintf(&out, "%q: %s%s\n", name, line, separator)
	}
	fmt.Fprintf(&out, "}}\n")
	return out.Bytes(), nil
}
