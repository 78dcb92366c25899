// Crosscheck type-checks packages, and the declarations of all their imports, for other systems. It
// reads source and compiles nothing.
//
//	crosscheck -on os/arch,... package...
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	log.SetFlags(0)
	systems := flag.String("on", "", "check for the `systems`, each os/arch")
	flag.Parse()
	failed := false
	for system := range strings.SplitSeq(*systems, ",") {
		found, err := check(system, flag.Args())
		if err != nil {
			log.Fatal(err)
		}
		for _, e := range found {
			failed = true
			log.Printf("%s: %v", system, e)
		}
	}
	if failed {
		os.Exit(1)
	}
}

// check returns the errors that prevent packages from compiling for a system without cgo.
func check(system string, patterns []string) ([]packages.Error, error) {
	goos, goarch, ok := strings.Cut(system, "/")
	if !ok {
		return nil, fmt.Errorf("-on: %q is not os/arch", system)
	}
	const types = packages.NeedTypes | packages.NeedTypesInfo | packages.NeedSyntax
	roots, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps | types,
		Env:  append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0"),
	}, patterns...)
	if err != nil {
		return nil, fmt.Errorf("load packages for %s: %w", system, err)
	}
	var found []packages.Error
	packages.Visit(roots, nil, func(p *packages.Package) { found = append(found, p.Errors...) })
	return found, nil
}
