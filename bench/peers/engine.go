package main

import (
	"context"
)

// An engine runs durable orchestrations.
type engine interface {
	name() string
	// settings says which version it is, and how it is set up.
	settings() string
	amounts() amounts
	// open starts it, with its data in a directory.
	open(ctx context.Context, dir string) (instance, error)
}

// An instance is an engine that runs. Its orchestrations return how many
// activities they have run.
type instance interface {
	// sequence runs so many activities, one after the other.
	sequence(ctx context.Context, id string, activities int) (int, error)
	// fanout runs so many activities at once.
	fanout(ctx context.Context, id string, activities int) (int, error)
	close() error
}

// amounts are how much an engine is given to do: what takes it some seconds.
type amounts struct {
	hellos  int
	atATime int
	steps   int
}
