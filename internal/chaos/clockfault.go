package main

import (
	"context"
	"errors"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

// clockSteps are the errors that a wall clock gets.
var clockSteps = []time.Duration{time.Hour, -time.Hour, 26 * time.Hour, -26 * time.Hour}

// setClock sets the error of a node's wall clock.
func (inj *injection) setClock(ctx context.Context, node *process, by time.Duration) error {
	var state host.NodeStatus
	return inj.fleet.post(ctx, node, host.ClockPath, by, &state)
}

// resetClock corrects a node's wall clock.
func (inj *injection) resetClock(ctx context.Context, node *process) error {
	err := inj.setClock(ctx, node, 0)
	if errors.Is(err, errNotRunning) {
		return nil // the next process starts with the right time
	}
	return err
}

// stepClock sets one node's wall clock forward or back, twice, and corrects it when healed. If that
// node is not the leader, half of the injections also kill the leader.
func stepClock(ctx context.Context, s *injection) error {
	node := s.fleet.nodes[s.random.IntN(len(s.fleet.nodes))]
	s.addNodes(node.id)
	s.onHeal(func(ctx context.Context) error { return s.resetClock(ctx, node) })
	for range 2 {
		if err := s.setClock(ctx, node, clockSteps[s.random.IntN(len(clockSteps))]); err != nil {
			return err
		}
		sleep(ctx, shortTime)
	}
	if node.id != s.leader && s.random.IntN(2) == 0 {
		return s.kill(s.leader)
	}
	return nil
}

// killAllStepClock kills all nodes. In half of the injections the wall clock of one node is wrong
// after the restart, until there is a leader. In the other half it is wrong before the kill and
// right after the restart.
func killAllStepClock(ctx context.Context, s *injection) error {
	node := s.fleet.nodes[s.random.IntN(len(s.fleet.nodes))]
	by := clockSteps[s.random.IntN(len(clockSteps))]
	if s.random.IntN(2) == 0 {
		if err := s.setClock(ctx, node, by); err != nil {
			return err
		}
		sleep(ctx, longTime) // until the node has written a clock sample
		return s.kill(s.fleet.nodeIDsExcept()...)
	}
	original := node.settings()
	skewed := original
	skewed.WallClockOffset = by
	s.onHeal(func(ctx context.Context) error {
		node.setConfig(original)
		if _, err := s.fleet.awaitLeaders(ctx); err != nil {
			return err
		}
		return s.resetClock(ctx, node)
	})
	err := s.kill(s.fleet.nodeIDsExcept()...)
	node.setConfig(skewed)
	return err
}
