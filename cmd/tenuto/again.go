package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
	"github.com/tenuto-dev/tenuto/replay/history"
)

const whichPoint = `
-to N keeps events 1 to N. -before NAME stops before the first call of NAME, or before that of -call.`

var againCommands = []command{
	{"rerun", "ID...", "begin new runs with the same inputs; runs in progress are terminated", 0, -1, instanceIDs, true, rerun, ""},
	{"rewind", "ID...", "begin new runs that go on from a point; runs in progress are terminated", 0, -1, instanceIDs, true, rewind, whichPoint},
	{"fork", "ID [NEW-ID]", "begin a new instance that goes on from a point of another; writes its ID", 1, 2, instanceIDs, true, fork, whichPoint + `
-input requires -to 1, which is then the default.`},
}

// copyFlags are the flags of commands that begin a run from the history of another.
type copyFlags struct {
	*change
	reason        *string
	execution, to uint64
	before        string
	call          int
	dropEvents    bool
	requestID     string
}

func declareCopyFlags(flags *flag.FlagSet, confirm confirmation, hasPoint bool) *copyFlags {
	f := &copyFlags{change: changeFlags(flags, confirm), reason: reasonFlag(flags)}
	defaultExecution := "the first of the latest run"
	if hasPoint {
		defaultExecution = "the latest"
	}
	flags.Uint64Var(&f.execution, "execution", 0, "`number` of the execution to begin from (default "+defaultExecution+")")
	flags.StringVar(&f.requestID, "request-id", "", "`ID` of the request: repeated with the same ID, the command returns the first run")
	if hasPoint {
		flags.Uint64Var(&f.to, "to", 0, "`number` of the last event to keep")
		flags.StringVar(&f.before, "before", "", "`name` of the activity or child orchestration before whose call to begin")
		flags.IntVar(&f.call, "call", 1, "`number` of that call, counted from 1")
		flags.BoolVar(&f.dropEvents, "drop-events", false, "drop the external events after the point, instead of delivering them again")
	}
	return f
}

func (f *copyFlags) options() (options []operate.CopyOption) {
	if f.execution > 0 {
		options = append(options, operate.OfExecution(f.execution))
	}
	if f.requestID != "" {
		options = append(options, operate.CopyRequestID(f.requestID))
	}
	if f.dropEvents {
		options = append(options, operate.DropEvents())
	}
	return options
}

// point returns the point that the flags name.
func (f *copyFlags) point() (operate.Point, error) {
	switch {
	case (f.to == 0) == (f.before == ""):
		return operate.Point{}, &usageError{"give either -to or -before"}
	case f.to > 0:
		return operate.ToEvent(f.to), nil
	}
	return operate.BeforeCall(f.before, f.call), nil
}

// checkPoint returns the state of an instance, for a dry run. It is an error if the point does not
// exist. The cluster may still refuse the copy, because of what is open there.
func (f *copyFlags) checkPoint(ctx context.Context, client *cluster.Client, id string) (cluster.State, error) {
	status, err := client.Get(ctx, id)
	switch {
	case err != nil:
		return "", err
	case f.to == 0 && f.before == "":
		return status.State, nil
	}
	recorded, err := client.HistoryOf(ctx, id, f.execution)
	if err != nil {
		return "", err
	}
	calls := 0
	for _, event := range recorded.Events {
		isCall := event.Type == history.ActivityScheduled || event.Type == history.SubOrchestrationScheduled
		if isCall && event.Name == f.before {
			calls++
		}
	}
	last := len(recorded.Events)
	if last > 0 && recorded.Events[last-1].Type.EndsExecution() {
		last--
	}
	switch {
	case f.before != "" && calls < f.call:
		return "", fmt.Errorf("%s: execution %d has %d calls of %q, not %d", id, recorded.Execution, calls, f.before, f.call)
	case f.to > uint64(last):
		return "", fmt.Errorf("%s: execution %d can be copied up to event %d, not %d", id, recorded.Execution, last, f.to)
	}
	return status.State, nil
}

// runEach begins a run of each instance.
func (f *copyFlags) runEach(ctx context.Context, s *session, ids []string, do func(ctx context.Context, id string) (*operate.Run, error)) error {
	if f.requestID != "" && len(ids) > 1 {
		return &usageError{"-request-id is for one instance"}
	}
	return f.run(ctx, s, ids, func(ctx context.Context, id string) ([]changed, error) {
		if f.dryRun {
			state, err := f.checkPoint(ctx, s.Client, id)
			return single(changed{ID: id, State: state}, err)
		}
		run, err := do(ctx, id)
		if err != nil {
			return nil, err
		}
		return []changed{{ID: run.InstanceID, EventID: run.EventID}}, nil
	})
}

func rerun(flags *flag.FlagSet) action {
	f := declareCopyFlags(flags, confirmSeveral, false)
	usage := &usage{"rerun", "ID..."}
	return withSession(flags, func(ctx context.Context, s *session, args []string) error {
		ids, err := readIDs(usage, s.streams, args)
		if err != nil {
			return err
		}
		return f.runEach(ctx, s, ids, func(ctx context.Context, id string) (*operate.Run, error) {
			return operate.Rerun(ctx, s.Client, id, *f.reason, f.options()...)
		})
	})
}

func rewind(flags *flag.FlagSet) action {
	f := declareCopyFlags(flags, confirmSeveral, true)
	usage := &usage{"rewind", "ID..."}
	return withSession(flags, func(ctx context.Context, s *session, args []string) error {
		point, err := f.point()
		if err != nil {
			return err
		}
		ids, err := readIDs(usage, s.streams, args)
		if err != nil {
			return err
		}
		return f.runEach(ctx, s, ids, func(ctx context.Context, id string) (*operate.Run, error) {
			return operate.Rewind(ctx, s.Client, id, point, *f.reason, f.options()...)
		})
	})
}

func fork(flags *flag.FlagSet) action {
	f := declareCopyFlags(flags, confirmNever, true)
	input := flags.String("input", "", "another input, as `JSON`, @FILE, or - for the standard input")
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
		options := f.options()
		if *input != "" {
			value, err := readValue(s, "-input", *input)
			if err != nil {
				return err
			}
			options = append(options, operate.OtherInput(value))
			if f.to == 0 && f.before == "" {
				f.to = 1
			}
		}
		point, err := f.point()
		if err != nil {
			return err
		}
		if f.dryRun {
			state, err := f.checkPoint(ctx, client, args[0])
			if err != nil {
				return err
			}
			return f.report(s, changed{ID: args[0], State: state})
		}
		newID := ""
		if len(args) > 1 {
			newID = args[1]
		}
		run, err := operate.Fork(ctx, client, args[0], newID, point, *f.reason, options...)
		if err != nil {
			return err
		}
		if f.format == output.Table {
			_, err = fmt.Fprintln(s.out, run.InstanceID)
			return err
		}
		return f.report(s, changed{ID: run.InstanceID, EventID: run.EventID})
	})
}
