// A module of its own, so that programs that use Tenuto do not depend on golang.org/x/tools. It
// must not replace: "go install" fails for a module that does.
module github.com/tenuto-dev/tenuto/replay/vet

go 1.26.0

require (
	github.com/golangci/plugin-module-register v0.1.2
	golang.org/x/tools v0.51.0
)

require (
	golang.org/x/mod v0.41.0 // indirect
	golang.org/x/sync v0.23.0 // indirect
)
