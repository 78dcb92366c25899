package api

import (
	"bytes"
	"encoding"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write openapi.json")

// parameters are those of paths and queries.
var parameters = map[string]string{
	"after":         "Where to continue: next of the page before; for a history, the event_id before the first one",
	"by":            "A dimension to count by: state, name, version, error, tag:KEY or attr:KEY. It may occur several times.",
	"cursor":        "The offset in the text, in UTF-16 code units (default: its end)",
	"event":         "An event_id",
	"execution":     "The number of an execution; 0 or absent: the latest",
	"filter":        "The text of a filter, as package cluster/filter describes it",
	"fresh":         "true: ask the leader instead of the node's replica (default: false)",
	"id":            "An ID: of an instance, a job, a schedule or a node",
	"input":         "The input of the query, JSON (default null)",
	"Last-Event-ID": "The id of the last event that the client has got: the stream continues after it, without loss or repeats",
	"limit":         "The most entries to answer with: 1 to 1,000, of a history 5,000 (default 100)",
	"max":           "Count to so many at most, without by: the answer may be some seconds old (1 to 10,000; default: all, now)",
	"name":          "The name of an event, an update, a query, a map or an activity",
	"partition":     "The number of a partition, from 0",
	"payloads":      "true: with payloads",
	"soon":          "true: do not wait for entries that do not answer soon; they are marked",
	"text":          "The text of a filter that is being typed",
	"token":         "A signed token of an attempt",
	"topics": "A topic: overview, cluster, code, instance:ID or list:FILTER. It may occur up to 20 times. " +
		"The events of a topic are TOPIC-state, of a list TOPIC-count too, of an instance TOPIC-events and TOPIC-changed, and TOPIC-error.",
}

// numeric are the parameters that are numbers. many may occur several times.
var numeric, many = []string{"cursor", "event", "execution", "limit", "max", "partition"}, []string{"by", "topics"}

type object = map[string]any

// TestDocument_IsUpToDate makes the document of the API and compares it with the file: a route, a
// field or a comment that only one of them has is an error.
func TestDocument_IsUpToDate(t *testing.T) {
	text := makeDocument(t)
	if *update {
		if err := os.WriteFile("openapi.json", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(document), text); diff != "" {
		t.Errorf("openapi.json is not that of the code (-file +code); go test -run TestDocument -update writes it:\n%s", diff)
	}
}

func TestDocument_IsServed(t *testing.T) {
	served := fetch[object](t, New(Config{}), "GET", "/openapi.json", "", http.StatusOK)
	if served["openapi"] != "3.1.0" || len(served["paths"].(object)) < 40 {
		t.Errorf("%v, %d paths", served["openapi"], len(served["paths"].(object)))
	}
}

// documenter collects the schemas of types.
type documenter struct {
	t        *testing.T
	comments map[string]string // by "type" and "type.field"
	schemas  object
}

func makeDocument(t *testing.T) string {
	d := &documenter{t: t, comments: commentsOf(t), schemas: object{}}
	paths, used := object{}, map[string]bool{}
	for _, of := range New(Config{}).routes() {
		d.addRoute(paths, of, used)
	}
	for _, pattern := range completionPatterns {
		d.addRoute(paths, completionRoute(pattern), used)
	}
	for name := range parameters {
		if !used[name] {
			t.Errorf("no route has the parameter %s", name)
		}
	}
	d.schemaOf(reflect.TypeFor[errorAnswer]())
	info := object{"title": "Tenuto", "version": "1", "description": "The API of a dashboard and gateway of a Tenuto cluster. " +
		"Paths are relative to where the dashboard is mounted, and api/."}
	return fmt.Sprintf("{\"openapi\":\"3.1.0\",\"info\":%s,\n\"paths\":%s,\n\"components\":{\"schemas\":%s}}\n",
		textOf(t, info), linesOf(t, paths), linesOf(t, d.schemas))
}

// linesOf returns an object with one line for each of its fields, in order.
func linesOf(t *testing.T, o object) string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(o)) {
		lines = append(lines, textOf(t, name)+":"+textOf(t, o[name]))
	}
	return "{\n" + strings.Join(lines, ",\n") + "\n}"
}

func textOf(t *testing.T, value any) string {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(text.String())
}

func completionRoute(pattern string) route {
	if strings.Contains(pattern, "/fail/") {
		return route{pattern: pattern, about: "Fails an activity by its signed token, which alone authorizes the call.", service: service{body: reflect.TypeFor[errorView]()}}
	}
	return route{pattern: pattern, about: "Completes an activity by its signed token, which alone authorizes the call. The body is the result.",
		service: service{body: reflect.TypeFor[json.RawMessage]()}}
}

var pathParameter = regexp.MustCompile(`\{(\w+)\}`)

func (d *documenter) addRoute(paths object, of route, used map[string]bool) {
	method, path, _ := strings.Cut(of.pattern, " ")
	if of.about == "" || !strings.HasSuffix(of.about, ".") {
		d.t.Errorf("%s: %q is no sentence", of.pattern, of.about)
	}
	var list []object
	for _, match := range pathParameter.FindAllStringSubmatch(path, -1) {
		list = append(list, d.parameter(match[1], "path", used))
	}
	for _, name := range strings.Fields(of.query) {
		list = append(list, d.parameter(name, "query", used))
	}
	if of.header != "" {
		list = append(list, d.parameter(of.header, "header", used))
	}
	answer := object{"description": "The answer"}
	status := "200"
	switch {
	case of.answer != nil:
		answer["content"] = contentOf(d.schemaOf(of.answer))
	case of.stream == nil:
		status = "204"
	case strings.HasSuffix(path, "/openapi.json"):
		answer["content"] = contentOf(object{"type": "object"})
	default:
		answer["content"] = object{"text/event-stream": object{"schema": object{"type": "string"}}}
	}
	operation := object{"summary": of.about, "responses": object{status: answer,
		"default": object{"description": "An error", "content": contentOf(reference("errorAnswer"))}}}
	if len(list) > 0 {
		operation["parameters"] = list
	}
	if of.body != nil {
		operation["requestBody"] = object{"content": contentOf(d.schemaOf(of.body))}
		if of.answer != nil {
			operation["parameters"] = append(list, object{"name": "Tenuto-Request", "in": "header", "required": true,
				"description": "Any value: pages of other sites cannot send it", "schema": object{"type": "string"}})
		}
	}
	if paths[path] == nil {
		paths[path] = object{}
	}
	paths[path].(object)[strings.ToLower(method)] = operation
}

func (d *documenter) parameter(name, in string, used map[string]bool) object {
	used[name] = true
	if parameters[name] == "" {
		d.t.Errorf("the parameter %s has no description", name)
	}
	schema := object{"type": "string"}
	if slices.Contains(numeric, name) {
		schema["type"] = "integer"
	}
	if slices.Contains(many, name) {
		schema = object{"type": "array", "items": schema}
	}
	return object{"name": name, "in": in, "required": in == "path", "description": parameters[name], "schema": schema}
}

func contentOf(schema object) object {
	return object{"application/json": object{"schema": schema}}
}

func reference(name string) object { return object{"$ref": "#/components/schemas/" + name} }

// schemaOf returns the schema of a type. Structs are components.
func (d *documenter) schemaOf(of reflect.Type) object {
	switch {
	case of.Kind() == reflect.Pointer:
		return d.schemaOf(of.Elem())
	case of == reflect.TypeFor[json.RawMessage]():
		return object{"description": "any JSON"}
	case of == reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case of == reflect.TypeFor[time.Duration]():
		return object{"type": "integer", "description": "nanoseconds"}
	case of == reflect.TypeFor[jsonNumber]():
		return object{"type": []string{"integer", "string"}}
	case of.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return object{"type": "string"}
	}
	switch of.Kind() {
	case reflect.Struct:
		return d.component(of)
	case reflect.Slice:
		return object{"type": "array", "items": d.schemaOf(of.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": d.schemaOf(of.Elem())}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float64, reflect.Float32:
		return object{"type": "number"}
	case reflect.Interface:
		return object{"description": "any JSON"}
	}
	if kind := of.Kind(); kind < reflect.Int || kind > reflect.Uint64 {
		d.t.Errorf("no schema for %v", of)
	}
	return object{"type": "integer"}
}

func (d *documenter) component(of reflect.Type) object {
	name := of.Name()
	if d.schemas[name] == nil {
		properties, schema := object{}, object{"type": "object"}
		d.schemas[name] = schema // before its fields, which may refer to it
		required := d.fields(of, properties, nil)
		schema["properties"] = properties
		if about := d.comments[name]; about != "" {
			schema["description"] = about
		}
		if !strings.HasSuffix(name, "Body") && len(required) > 0 {
			slices.Sort(required)
			schema["required"] = required
		}
	}
	return reference(name)
}

// fields adds the fields of a struct, also of those that it embeds.
func (d *documenter) fields(of reflect.Type, properties object, required []string) []string {
	for i := range of.NumField() {
		f := of.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			embedded := f.Type
			if embedded.Kind() == reflect.Pointer {
				d.fields(embedded.Elem(), properties, nil)
				continue
			}
			required = d.fields(embedded, properties, required)
			continue
		case !f.IsExported() || name == "-":
			continue
		case name == "":
			name = f.Name
		}
		schema := d.schemaOf(f.Type)
		optional := strings.Contains(options, "omit")
		if f.Type.Kind() == reflect.Pointer && !optional {
			schema = object{"anyOf": []object{schema, {"type": "null"}}}
		}
		if about := d.comments[of.Name()+"."+f.Name]; about != "" {
			schema["description"] = about
		}
		properties[name] = schema
		if !optional {
			required = append(required, name)
		}
	}
	return required
}

// commentsOf returns the comments of the types of this package and of their fields.
func commentsOf(t *testing.T) map[string]string {
	comments := map[string]string{}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			declared, ok := n.(*ast.GenDecl)
			if !ok || declared.Tok != token.TYPE {
				return true
			}
			for _, spec := range declared.Specs {
				addComments(comments, declared, spec.(*ast.TypeSpec))
			}
			return false
		})
	}
	return comments
}

func addComments(comments map[string]string, declared *ast.GenDecl, spec *ast.TypeSpec) {
	structure, ok := spec.Type.(*ast.StructType)
	if !ok {
		return
	}
	name := spec.Name.Name
	about := strings.TrimPrefix(oneLine(declared.Doc.Text()), name+" ")
	for _, verb := range []string{"is ", "are ", "says "} {
		about = strings.TrimPrefix(about, verb)
	}
	comments[name] = about
	for _, f := range structure.Fields.List {
		for _, field := range f.Names {
			if text := oneLine(f.Doc.Text() + " " + f.Comment.Text()); text != "" {
				comments[fmt.Sprint(name, ".", field.Name)] = text
			}
		}
	}
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
