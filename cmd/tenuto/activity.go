package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
)

// pause is a paused activity as -o json shows it.
type pause struct {
	Activity  string    `json:"activity"`
	Principal string    `json:"principal,omitempty"`
	Reason    string    `json:"reason,omitempty"`
	Since     time.Time `json:"since"`
}

// activityCommand makes a command of a function that pauses or resumes an activity.
func activityCommand(do func(ctx context.Context, client *cluster.Client, activity, reason string) error, pauses bool) func(*flag.FlagSet) action {
	return func(flags *flag.FlagSet) action {
		reason, c := reasonFlag(flags), changeFlags(flags, confirmNever)
		return withSession(flags, func(ctx context.Context, s *session, names []string) error {
			return c.run(ctx, s, unique(names), func(ctx context.Context, name string) ([]changed, error) {
				paused, err := operate.Pauses(ctx, s.Client)
				if err != nil {
					return nil, err
				}
				isPaused := slices.ContainsFunc(paused, func(p operate.Pause) bool { return p.Activity == name })
				if !pauses && !isPaused {
					return nil, fmt.Errorf("%s %s: the activity is not paused; see tenuto activity list", c.verb, name)
				}
				result := changed{ID: name}
				if isPaused {
					result.detail = "it is paused"
				}
				if c.dryRun {
					return []changed{result}, nil
				}
				return single(result, do(ctx, s.Client, name, *reason))
			})
		})
	}
}

func listPauses(flags *flag.FlagSet) action {
	d := displayFlags(flags, output.Table, output.JSON, output.YAML, output.IDs)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, _ []string) error {
		paused, err := operate.Pauses(ctx, client)
		if err != nil {
			return err
		}
		times := d.times()
		printer := output.NewPrinter(s.out, d.format, []output.Column[pause]{
			{Name: "ACTIVITY", Cell: func(p pause) string { return output.Cell(p.Activity) }},
			{Name: "SINCE", Cell: func(p pause) string { return times.Cell(p.Since) }},
			{Name: "PRINCIPAL", Cell: func(p pause) string { return output.Cell(p.Principal) }},
			{Name: "REASON", Cell: func(p pause) string { return output.Cell(p.Reason) }},
		}, func(p pause) string { return p.Activity })
		for _, p := range paused {
			if err := printer.Write(pause{p.Activity, p.Principal, p.Reason, p.Since.UTC()}); err != nil {
				return err
			}
		}
		return printer.Flush()
	})
}
