package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/tenuto-dev/tenuto/cluster"
)

var controlCommands = []command{
	{"cancel", "ID...", "cancel instances: their code may clean up", 0, -1, instanceIDs, true, controlCommand((*cluster.Client).Cancel, confirmSeveral, ""), ""},
	{"terminate", "ID...", "end instances at once, without running their code", 0, -1, instanceIDs, true, controlCommand((*cluster.Client).Terminate, confirmAlways, ""), ""},
	{"suspend", "ID...", "pause the code of instances", 0, -1, instanceIDs, true, controlCommand((*cluster.Client).Suspend, confirmNever, ""), ""},
	{"resume", "ID...", "continue suspended instances", 0, -1, instanceIDs, true, controlCommand((*cluster.Client).Resume, confirmNever, cluster.Suspended), ""},
	{"purge", "ID...", "delete instances that have ended, with their histories", 0, -1, instanceIDs, true, purge, ""},
}

// controlCommand makes a command of a method that controls an instance. With a dry run, the state
// of the instance must be that of only, if it is not "".
func controlCommand(control func(client *cluster.Client, ctx context.Context, id, reason string) error, confirm confirmation, only cluster.State) func(*flag.FlagSet) action {
	return func(flags *flag.FlagSet) action {
		reason := reasonFlag(flags)
		c := changeFlags(flags, confirm)
		usage := &usage{flags.Name(), "ID..."}
		return withSession(flags, func(ctx context.Context, s *session, args []string) error {
			ids, err := readIDs(usage, s.streams, args)
			if err != nil {
				return err
			}
			do := c.onRunning(s, func(ctx context.Context, id string) error { return control(s.Client, ctx, id, *reason) })
			if only == "" || !c.dryRun {
				return c.run(ctx, s, ids, do)
			}
			return c.run(ctx, s, ids, func(ctx context.Context, id string) ([]changed, error) {
				results, err := do(ctx, id)
				if err == nil && results[0].State != only {
					return nil, fmt.Errorf("%s %s: the instance is %s, not %s", c.verb, id, results[0].State, only)
				}
				return results, err
			})
		})
	}
}

// onRunning makes a changer of a function that changes a running instance.
func (c *change) onRunning(s *session, do func(ctx context.Context, id string) error) changer {
	return func(ctx context.Context, id string) ([]changed, error) {
		if !c.dryRun {
			return single(changed{ID: id}, do(ctx, id))
		}
		status, err := getRunning(ctx, s.Client, c.verb, id)
		if err != nil {
			return nil, err
		}
		return []changed{{ID: id, State: status.State}}, nil
	}
}

// getRunning returns the status of an instance, or an error if it has ended.
func getRunning(ctx context.Context, client *cluster.Client, verb, id string) (*cluster.Status, error) {
	status, err := client.Get(ctx, id)
	if err == nil && status.Ended() {
		return nil, fmt.Errorf("%s %s: %w: it is %s", verb, id, cluster.ErrEnded, status.State)
	}
	return status, err
}

func purge(flags *flag.FlagSet) action {
	c := changeFlags(flags, confirmAlways)
	usage := &usage{"purge", "ID..."}
	return withSession(flags, func(ctx context.Context, s *session, args []string) error {
		ids, err := readIDs(usage, s.streams, args)
		if err != nil {
			return err
		}
		return c.run(ctx, s, ids, func(ctx context.Context, id string) ([]changed, error) {
			if !c.dryRun {
				return single(changed{ID: id}, s.purge(ctx, id))
			}
			status, err := s.Get(ctx, id)
			if err != nil {
				return nil, err
			}
			return single(changed{ID: id, State: status.State}, errorIfRuns(status))
		})
	})
}

var errNeeded = errors.New("a relative needs it: a parent that has not recorded its end, or a running child")

// purge deletes an instance, or returns why it was not deleted.
func (s *session) purge(ctx context.Context, id string) error {
	if _, err := s.Get(ctx, id); err != nil {
		return err
	}
	n, err := s.Purge(ctx, id)
	if err != nil || n > 0 {
		return err
	}
	status, err := s.Get(ctx, id)
	switch {
	case errors.Is(err, cluster.ErrNotFound): // deleted by an attempt whose answer was lost
		return nil
	case err == nil:
		err = errorIfRuns(status)
	}
	return cmp.Or(err, fmt.Errorf("purge %s: %w", id, errNeeded))
}

func errorIfRuns(status *cluster.Status) error {
	if status.Ended() {
		return nil
	}
	return fmt.Errorf("purge %s: it has not ended: it is %s", status.InstanceID, status.State)
}
