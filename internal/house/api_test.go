package house

import (
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/internal/shorttest"
)

// apiPackages are the packages that authors and hosts use. Generated code is not part of their API,
// so that a schema may change without breaking a program.
var apiPackages = []string{
	"replay", "replay/history", "replay/replaytest", "cluster", "cluster/backup", "cluster/bulk", "cluster/clustertest", "cluster/discovery", "cluster/filter", "cluster/operate", "cluster/proof", "cluster/prometheus", "cluster/recovery", "cluster/schedule",
}

// generatedPackages must not appear in an exported signature or field of those.
var generatedPackages = []string{modulePath + "/proto/journalpb", modulePath + "/proto/clusterpb", "google.golang.org/protobuf"}

func TestAPI_NamesNoGeneratedType(t *testing.T) {
	paths := modulePaths(apiPackages)
	exports, err := exportFiles(paths)
	if err != nil {
		t.Fatal(err)
	}
	from := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	var packages []*types.Package
	for _, path := range paths {
		pkg, err := from.Import(path)
		if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, pkg)
	}
	for _, violation := range generatedTypesIn(packages) {
		t.Error(violation)
	}
}

// exportFiles returns the files with type information of packages and of all that they import. This
// test binary imports the packages too, so the files are in the build cache.
func exportFiles(paths []string) (map[string]string, error) {
	flags := []string{"list", "-export", "-deps", "-f", "{{if .Export}}{{.ImportPath}} {{.Export}}{{end}}"}
	if shorttest.Race {
		flags = append(flags, "-race")
	}
	list := exec.Command("go", append(flags, paths...)...)
	list.Dir = repositoryRoot
	output, err := list.Output()
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			err = fmt.Errorf("%w: %s", err, failed.Stderr)
		}
		return nil, fmt.Errorf("list type information: %w", err)
	}
	files := make(map[string]string)
	for line := range strings.Lines(string(output)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[path] = file
	}
	return files, nil
}

// generatedTypesIn lists the exported names of packages whose types name a generated type.
func generatedTypesIn(packages []*types.Package) []string {
	c := &apiChecker{packages: packages, seen: make(map[types.Type]bool)}
	for _, pkg := range packages {
		for _, name := range pkg.Scope().Names() {
			object := pkg.Scope().Lookup(name)
			if !object.Exported() {
				continue
			}
			where := pkg.Name() + "." + name
			if _, isType := object.(*types.TypeName); isType {
				c.members(where, object.Type())
			} else {
				c.mention(where, object.Type())
			}
		}
	}
	slices.Sort(c.violations)
	return slices.Compact(c.violations)
}

// An apiChecker looks for generated types in what other packages can use.
type apiChecker struct {
	packages   []*types.Package
	seen       map[types.Type]bool // unexported types whose members were checked
	violations []string
}

// members checks the exported fields and methods of a declared type, with promoted ones. An alias
// has those of its target.
func (c *apiChecker) members(where string, t types.Type) {
	t = types.Unalias(t)
	named, ok := t.(*types.Named)
	if !ok {
		c.mention(where, t)
		return
	}
	if c.isGenerated(named) {
		c.mention(where, named)
		return
	}
	for i := range named.TypeParams().Len() {
		c.mention(where, named.TypeParams().At(i).Constraint())
	}
	c.mention(where, named.Underlying())
	methods := types.NewMethodSet(types.NewPointer(named))
	for i := range methods.Len() {
		if method := methods.At(i).Obj(); method.Exported() {
			c.mention(where+"."+method.Name(), method.Type())
		}
	}
}

// mention checks a type that is part of an exported signature or field.
func (c *apiChecker) mention(where string, t types.Type) {
	switch t := t.(type) {
	case *types.Alias:
		c.mention(where, types.Unalias(t))
	case *types.Named:
		c.named(where, t)
	case *types.Struct:
		for i := range t.NumFields() {
			if field := t.Field(i); field.Exported() {
				c.mention(where+"."+field.Name(), field.Type())
			} else if field.Embedded() {
				c.embedded(where, field.Type())
			}
		}
	case *types.Signature:
		c.mention(where, t.Params())
		c.mention(where, t.Results())
		for i := range t.TypeParams().Len() {
			c.mention(where, t.TypeParams().At(i).Constraint())
		}
	case *types.Tuple:
		for i := range t.Len() {
			c.mention(where, t.At(i).Type())
		}
	case *types.Interface:
		for i := range t.NumMethods() {
			if method := t.Method(i); method.Exported() {
				c.mention(where+"."+method.Name(), method.Type())
			}
		}
		for i := range t.NumEmbeddeds() {
			c.mention(where, t.EmbeddedType(i))
		}
	case *types.Union:
		for i := range t.Len() {
			c.mention(where, t.Term(i).Type())
		}
	case *types.Map:
		c.mention(where, t.Key())
		c.mention(where, t.Elem())
	case interface{ Elem() types.Type }: // pointer, slice, array, channel
		c.mention(where, t.Elem())
	}
}

// named checks the use of a declared type. The members of an unexported one can be used too.
func (c *apiChecker) named(where string, t *types.Named) {
	for i := range t.TypeArgs().Len() {
		c.mention(where, t.TypeArgs().At(i))
	}
	switch {
	case c.isGenerated(t):
		c.violations = append(c.violations, fmt.Sprintf("%s names %s", where, types.TypeString(t, nil)))
	case !t.Obj().Exported() && slices.Contains(c.packages, t.Obj().Pkg()) && !c.seen[t.Origin()]:
		c.seen[t.Origin()] = true
		c.members(where, t.Origin())
	}
}

// embedded checks the fields that an embedded unexported type promotes.
func (c *apiChecker) embedded(where string, t types.Type) {
	if pointer, ok := types.Unalias(t).(*types.Pointer); ok {
		t = pointer.Elem()
	}
	c.mention(where, t.Underlying())
}

func (c *apiChecker) isGenerated(t *types.Named) bool {
	pkg := t.Obj().Pkg()
	return pkg != nil && slices.ContainsFunc(generatedPackages, func(path string) bool { return isWithin(pkg.Path(), path) })
}

// importerFunc is a types.Importer.
type importerFunc func(path string) (*types.Package, error)

func (f importerFunc) Import(path string) (*types.Package, error) { return f(path) }

func TestAPI_Violations(t *testing.T) {
	check := func(path, source string, imported *types.Package) *types.Package {
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path+".go", source, 0)
		if err != nil {
			t.Fatal(err)
		}
		config := types.Config{Importer: importerFunc(func(string) (*types.Package, error) { return imported, nil })}
		pkg, err := config.Check(path, files, []*ast.File{file}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return pkg
	}
	generated := check(modulePath+"/proto/journalpb", "package journalpb\ntype Event struct{}\nfunc (*Event) Body() *Event { return nil }", nil)
	got := generatedTypesIn([]*types.Package{check("a", `package a
import "`+modulePath+`/proto/journalpb"
type hidden struct { Promoted []journalpb.Event; Own *journalpb.Event }
func (hidden) Method() map[string]journalpb.Event { return nil }
type Fine struct { message *journalpb.Event; other int }
func (Fine) message2() *journalpb.Event { return nil }
type Embeds struct { hidden }
type Option func(*journalpb.Event)
type Alias = journalpb.Event
type Interface interface { Call(chan journalpb.Event); hidden() *journalpb.Event }
type Generic[T interface{ Body() *journalpb.Event }] struct{ Field T }
type List[T any] []T
var Variable List[journalpb.Event]
func Returned() (func() *journalpb.Event, error) { return nil, nil }
func Unexported() unexported { return unexported{} }
type unexported struct{ Field journalpb.Event }
func internal(journalpb.Event) {}
`, generated)})
	want := []string{
		"a.Alias", "a.Embeds.Method", "a.Embeds.Own", "a.Embeds.Promoted", "a.Generic.Body", "a.Interface.Call", "a.Option",
		"a.Returned", "a.Unexported.Field", "a.Variable",
	}
	for i := range want {
		want[i] += " names " + modulePath + "/proto/journalpb.Event"
	}
	if !slices.Equal(got, want) {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
