// Command tenuto-vet checks orchestration code for what replays cannot repeat:
//
//	go install github.com/tenuto-dev/tenuto/cmd/tenuto-vet@latest
//	go vet -vettool=$(which tenuto-vet) ./...
//
// Package replay/vet says what it reports, and how to silence a line.
package main

import (
	"runtime/debug"

	"golang.org/x/tools/go/analysis/unitchecker"

	"github.com/tenuto-dev/tenuto/replay/vet"
)

func main() {
	// The go command starts this for one package after the other, dependencies
	// among them: collecting less saves a third of the time.
	debug.SetGCPercent(400)
	unitchecker.Main(vet.Analyzer)
}
