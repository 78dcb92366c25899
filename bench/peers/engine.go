package main

import (
	"context"
)

// An engine runs durable orchestrations.
type engine interface {
	name() string
	// settings returns the version and the configuration.
	settings() string
	amounts() amounts
	// open starts the engine with its data in a directory.
	open(ctx context.Context, dir string) (instance, error)
}

// An instance is a running engine. Its orchestrations return the number of activities they
// have run.
type instance interface {
	// sequence runs activities one after another.
	sequence(ctx context.Context, id string, activities int) (int, error)
	// fanout runs activities concurrently.
	fanout(ctx context.Context, id string, activities int) (int, error)
	close() error
}

// amounts are the load of an engine. It takes the engine some seconds.
type amounts struct {
	hellos      int
	concurrency int
	steps       int
}
