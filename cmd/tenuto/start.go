package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
	"github.com/tenuto-dev/tenuto/replay"
)

var callCommands = []command{
	{"start", "NAME ID [INPUT]", "start an instance of the orchestration NAME", 2, 3, noNames, true, start, `
INPUT is JSON: the text itself, @FILE, or - for the standard input; null if missing. The output is
the ID or, with -wait, the output of the instance.`},
	{"send", "ID EVENT [DATA]", "send an event to an instance; ID may be -, for IDs on the standard input", 2, 3, instanceIDs, true, send, `
DATA is JSON like the input of start. Events that the code does not wait for yet are kept.`},
	{"query", "ID QUERY [INPUT]", "call a query of an instance and write its answer", 2, 3, instanceIDs, false, query, ""},
	{"update", "ID UPDATE [INPUT]", "execute an update on an instance and write its result", 2, 3, instanceIDs, true, update, ""},
	{"wait", "ID...", "wait until instances have ended; status 1 if one has not completed", 0, -1, instanceIDs, false, wait, ""},
}

// started is the result of a start as -o json shows it.
type started struct {
	ID       string          `json:"id"`
	Attached bool            `json:"attached,omitempty"` // to an existing run
	DryRun   bool            `json:"dryRun,omitempty"`
	Output   json.RawMessage `json:"output,omitempty"` // with -wait
}

// startFlags are the flags that become options of a start.
type startFlags struct {
	version, summary, requestID string
	tags                        map[string]string
	at, deadline                time.Time
	attach                      bool
	reuse                       string
}

func declareStartFlags(flags *flag.FlagSet) *startFlags {
	f := &startFlags{tags: make(map[string]string)}
	flags.StringVar(&f.version, "version", "", "`version` of the orchestration (default the newest)")
	flags.StringVar(&f.summary, "summary", "", "`text` about the run")
	flags.StringVar(&f.requestID, "request-id", "", "`ID` of the request: repeated with it, the command starts nothing else")
	flags.Func("tag", "tag `key=value`; may be repeated", func(tag string) error { return addTag(f.tags, tag) })
	flags.Func("at", "`time` at which the code begins, like 2006-01-02T15:04:05Z", parseMoment(&f.at))
	flags.Func("deadline", "`time` at which the run is canceled", parseMoment(&f.deadline))
	flags.BoolVar(&f.attach, "attach", false, "if the ID exists, take that run instead of an error")
	flags.Var(&choice{[]string{"ended", "failed", "terminate"}, false, func(value string) { f.reuse = value }},
		"reuse", "allow the ID of an instance that has `ended`: ended, failed (not completed), or terminate (also one that runs)")
	return f
}

// parseMoment reads a time in the past or the future.
func parseMoment(t *time.Time) func(string) error {
	return func(text string) (err error) {
		*t, err = time.Parse(time.RFC3339, text)
		return err
	}
}

func (f *startFlags) options() (options []replay.Option) {
	add := func(given bool, option replay.Option) {
		if given {
			options = append(options, option)
		}
	}
	add(f.version != "", replay.Version(f.version))
	add(f.summary != "", replay.Summary(f.summary))
	add(f.requestID != "", cluster.RequestID(f.requestID))
	add(len(f.tags) > 0, cluster.Tags(f.tags))
	add(!f.at.IsZero(), cluster.StartAt(f.at))
	add(!f.deadline.IsZero(), cluster.Deadline(f.deadline))
	add(f.attach, cluster.Attach())
	switch f.reuse {
	case "ended":
		options = append(options, cluster.ReuseWhenEnded())
	case "failed":
		options = append(options, cluster.ReuseWhenFailed())
	case "terminate":
		options = append(options, cluster.TerminateExisting())
	}
	return options
}

func start(flags *flag.FlagSet) action {
	optionFlags := declareStartFlags(flags)
	reasonFlag(flags)
	await := flags.Bool("wait", false, "wait for the end of the run and write its output; status 1 if it fails")
	limit := flags.Duration("for", 0, "the longest `duration` to wait (default without limit)")
	dryRun := flags.Bool("dry-run", false, "check the input and whether the ID is free, and do nothing")
	var format output.Format
	formatFlag(flags, &format, output.Table, output.JSON, output.YAML)
	return withSession(flags, func(ctx context.Context, s *session, args []string) error {
		options := optionFlags.options()
		input, err := optionalValue(s.streams, "input", args, 2)
		if err != nil {
			return err
		}
		result := started{ID: args[1], DryRun: *dryRun}
		if *dryRun {
			err = s.checkStart(ctx, args[0], args[1], optionFlags)
		} else {
			err = s.start(ctx, args[0], &result, input, options)
			if err == nil && *await {
				result.Output, err = s.awaitOutput(ctx, result.ID, *limit)
			}
		}
		switch {
		case err != nil:
			return err
		case format != output.Table:
			return s.documents(format).Write(result)
		case *dryRun:
			_, err = fmt.Fprintf(s.out, "would start %s as %s\n", args[0], args[1])
		case *await:
			_, err = fmt.Fprintf(s.out, "%s\n", result.Output)
		default:
			_, err = fmt.Fprintln(s.out, result.ID)
		}
		return err
	})
}

// optionalValue reads the argument with that index, null if it is missing.
func optionalValue(s streams, name string, args []string, index int) (json.RawMessage, error) {
	if len(args) <= index {
		return json.RawMessage("null"), nil
	}
	return readValue(s, name, args[index])
}

func (s *session) start(ctx context.Context, name string, result *started, input json.RawMessage, options []replay.Option) error {
	ctx, cancel := s.limited(ctx)
	defer cancel()
	target := replay.Orchestration[json.RawMessage, json.RawMessage](name)
	run, err := cluster.StartRun(ctx, s.Client, target, result.ID, input, options...)
	if err != nil {
		return err
	}
	result.Attached = run.Attached
	return nil
}

// checkStart returns why a start would be rejected, as far as the ID says.
func (s *session) checkStart(ctx context.Context, name, id string, f *startFlags) error {
	ctx, cancel := s.limited(ctx)
	defer cancel()
	status, err := s.Get(ctx, id)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return nil
	case err != nil:
		return err
	case f.attach && status.Name == name, f.reuse == "terminate", f.reuse == "ended" && status.Ended(),
		f.reuse == "failed" && status.Ended() && status.State != cluster.Completed:
		return nil
	}
	return fmt.Errorf("start %s: %w: %s, %s", id, cluster.ErrInstanceExists, status.Name, status.State)
}

// awaitOutput returns the output of a run, or an error that says how it ended.
func (s *session) awaitOutput(ctx context.Context, id string, limit time.Duration) (output json.RawMessage, err error) {
	status, err := s.waitFor(ctx, id, limit)
	if err != nil {
		return nil, err
	}
	if status.State != cluster.Completed {
		return nil, fmt.Errorf("%s has %s: %w", id, status.State, status.Err)
	}
	return output, status.Output(&output)
}

// waitFor waits for the end of an instance; without a limit if that is 0.
func (s *session) waitFor(ctx context.Context, id string, limit time.Duration) (*cluster.Status, error) {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, &limitError{id, limit})
		defer cancel()
	}
	status, err := s.Wait(ctx, id)
	var late *limitError
	if err != nil && errors.As(context.Cause(ctx), &late) {
		return nil, late
	}
	return status, err
}

// A limitError reports that an instance has not ended in time.
type limitError struct {
	id    string
	limit time.Duration
}

func (e *limitError) Error() string { return fmt.Sprintf("%s has not ended within %s", e.id, e.limit) }
func (e *limitError) Unwrap() error { return context.DeadlineExceeded }

func wait(flags *flag.FlagSet) action {
	d := displayFlags(flags, output.Table, output.Wide, output.JSON, output.YAML, output.IDs)
	limit := flags.Duration("for", 0, "the longest `duration` to wait for each (default without limit)")
	usage := &usage{"wait", "ID..."}
	return withSession(flags, func(ctx context.Context, s *session, args []string) error {
		ids, err := readIDs(usage, s.streams, args)
		if err != nil {
			return err
		}
		printer := output.NewPrinter(s.out, d.format, instanceColumns(d.times()), func(i *instance) string { return i.ID })
		unlimited := *s
		unlimited.timeout = 1<<63 - 1
		return unlimited.forEach(ctx, ids, false, func(ctx context.Context, id string) error {
			status, err := s.waitFor(ctx, id, *limit)
			if err != nil {
				return err
			}
			i := newInstance(status)
			for _, note := range i.addPayloads(status) {
				printMessage(s.streams, note)
			}
			if err := printer.Write(i); err != nil {
				return err
			}
			if err := printer.Flush(); err != nil {
				return err
			}
			if status.State != cluster.Completed {
				return fmt.Errorf("%s has %s: %s", id, status.State, errorText(status.Err))
			}
			return nil
		})
	})
}
