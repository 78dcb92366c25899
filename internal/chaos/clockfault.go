package main

import (
	"context"
	"errors"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

// steps are by how much a wall clock goes wrong.
var steps = []time.Duration{time.Hour, -time.Hour, 26 * time.Hour, -26 * time.Hour}

// setClock has a node's wall clock be wrong by a while.
func (s *scene) setClock(ctx context.Context, node *process, by time.Duration) error {
	var state host.Node
	return s.fleet.post(ctx, node, host.ClockPath, by, &state)
}

// setRight has a node's wall clock be right.
func (s *scene) setRight(ctx context.Context, node *process) error {
	err := s.setClock(ctx, node, 0)
	if errors.Is(err, errNoDoor) {
		return nil // the next process has the right time
	}
	return err
}

// stepClock sets one node's wall clock forwards or backwards, twice, and right again in
// the end. Every other time another leads then, which may be that one.
func stepClock(ctx context.Context, s *scene) error {
	node := s.fleet.nodes[s.random.IntN(len(s.fleet.nodes))]
	s.hits(node.id)
	s.later(func(ctx context.Context) error { return s.setRight(ctx, node) })
	for range 2 {
		if err := s.setClock(ctx, node, steps[s.random.IntN(len(steps))]); err != nil {
			return err
		}
		rest(ctx, short)
	}
	if node.id != s.leader && s.random.IntN(2) == 0 {
		return s.kill(s.leader)
	}
	return nil
}

// killAllStepClock ends all nodes. When they are started again the wall clock of one
// is wrong, and right again when somebody leads. Every other time it was wrong before,
// and is right when it is started.
func killAllStepClock(ctx context.Context, s *scene) error {
	node := s.fleet.nodes[s.random.IntN(len(s.fleet.nodes))]
	by := steps[s.random.IntN(len(steps))]
	if s.random.IntN(2) == 0 {
		if err := s.setClock(ctx, node, by); err != nil {
			return err
		}
		rest(ctx, long) // so that the node has noted it
		return s.kill(s.fleet.others()...)
	}
	right := node.settings()
	wrong := right
	wrong.WallClockBy = by
	s.later(func(ctx context.Context) error {
		node.become(right)
		if _, err := s.fleet.awaitLeaders(ctx); err != nil {
			return err
		}
		return s.setRight(ctx, node)
	})
	err := s.kill(s.fleet.others()...)
	node.become(wrong)
	return err
}
