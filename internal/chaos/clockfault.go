package main

import (
	"context"
	"errors"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

// steps are by how much a wall clock goes wrong.
var steps = []time.Duration{time.Hour, -time.Hour, 26 * time.Hour, -26 * time.Hour}

// stepClock sets one node's wall clock forwards or backwards, twice, and right again in
// the end. Every other time another leads then, which may be that one.
func stepClock(ctx context.Context, s *scene) error {
	node := s.fleet.nodes[s.random.IntN(len(s.fleet.nodes))]
	s.hits(node.id)
	set := func(ctx context.Context, by time.Duration) error {
		var state host.Node
		return s.fleet.post(ctx, node, host.ClockPath, by, &state)
	}
	s.later(func(ctx context.Context) error {
		err := set(ctx, 0)
		if errors.Is(err, errNoDoor) {
			return nil // the next process has the right time
		}
		return err
	})
	for range 2 {
		if err := set(ctx, steps[s.random.IntN(len(steps))]); err != nil {
			return err
		}
		rest(ctx, short)
	}
	if node.id != s.leader && s.random.IntN(2) == 0 {
		return s.kill(s.leader)
	}
	return nil
}
