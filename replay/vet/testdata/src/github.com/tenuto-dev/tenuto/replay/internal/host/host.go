// Package host stands in for the real one.
package host

type (
	ActivityOptions struct{}
	ChildOptions    struct{}
	Orchestration   struct{}
)
