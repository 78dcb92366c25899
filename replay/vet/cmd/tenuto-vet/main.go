// Command tenuto-vet reports orchestration code that is not deterministic:
//
//	go install github.com/tenuto-dev/tenuto/replay/vet/cmd/tenuto-vet@latest
//	go vet -vettool=$(which tenuto-vet) ./...
//
// Package replay/vet lists what it reports, and how to suppress a report.
package main

import (
	"runtime/debug"

	"golang.org/x/tools/go/analysis/unitchecker"

	"github.com/tenuto-dev/tenuto/replay/vet"
)

func main() {
	// The go command starts this once per package, including dependencies: less garbage collection
	// saves a third of the time.
	debug.SetGCPercent(400)
	unitchecker.Main(vet.Analyzer)
}
