package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/bulk"
	"github.com/tenuto-dev/tenuto/cluster/filter"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
)

var bulkCommands = []command{
	{"bulk start", "ACTION", "start a job: one action over all instances that the flags select", 1, 1, noNames, true, startBulk, bulkActions()},
	{"bulk list", "", "list jobs with their progress", 0, 0, noNames, false, listBulk, ""},
	{"bulk show", "ID", "show the progress of a job", 1, 1, instanceIDs, false, showBulk, ""},
	{"bulk refusals", "ID", "list the instances on which a job could not act", 1, 1, instanceIDs, false, listRefusals, ""},
	{"bulk pause", "ID", "act on no further instances until the job is resumed", 1, 1, instanceIDs, true, bulkCommand(bulk.Pause), ""},
	{"bulk resume", "ID", "continue a paused job", 1, 1, instanceIDs, true, bulkCommand(bulk.Resume), ""},
	{"bulk stop", "ID", "end a job; what it has done remains", 1, 1, instanceIDs, true, bulkCommand(bulk.Stop), ""},
}

// bulkActions describes the actions for the help.
func bulkActions() string {
	text := "The output is the ID of the job; tenuto wait waits for its end. The actions, with their arguments (-arg):"
	for _, action := range bulk.Actions() {
		text += fmt.Sprintf("\n  %s: %s", action.Name, action.Help)
		for _, argument := range action.Arguments {
			text += fmt.Sprintf("\n    %s: %s", argument.Name, argument.Help)
			if argument.Required {
				text += " (required)"
			}
		}
	}
	return text
}

// bulkPreview is what a job would visit, as -o json shows it.
type bulkPreview struct {
	Count     int                   `json:"count"`
	Estimated bool                  `json:"estimated,omitempty"`
	States    map[cluster.State]int `json:"states,omitempty"`
	Sample    []string              `json:"sample"` // IDs
}

// bulkProgress is the progress of a job as -o json shows it.
type bulkProgress struct {
	ID        string        `json:"id"`
	State     string        `json:"state"`
	Action    string        `json:"action,omitempty"`
	Query     string        `json:"query,omitempty"`
	Reason    string        `json:"reason,omitempty"`
	Note      string        `json:"note,omitempty"`
	Principal string        `json:"principal,omitempty"`
	Started   *time.Time    `json:"started,omitempty"`
	Matched   int           `json:"matched"`
	Done      int           `json:"done"`
	Refused   int           `json:"refused"`
	Unknown   int           `json:"unknown"`
	Remaining int           `json:"remaining"`
	Speed     float64       `json:"speed"`              // instances per second
	Instance  cluster.State `json:"instance,omitempty"` // of a job that does not answer
	Error     string        `json:"error,omitempty"`
}

func newBulkProgress(id string, p *bulk.Progress) *bulkProgress {
	return &bulkProgress{
		ID: id, State: string(p.State), Action: p.Job.Action, Query: filter.Format(p.Job.Filter), Reason: p.Job.Reason, Note: p.Note, Principal: p.Principal,
		Started: timeOrNil(p.Started), Matched: p.Matched, Done: p.Done, Refused: p.Refused, Unknown: p.Unknown, Remaining: p.Remaining, Speed: p.Speed,
		Error: errorText(p.Err),
	}
}

func startBulk(flags *flag.FlagSet) action {
	var job bulk.Job
	filterOf := filterFlags(flags)
	job.Arguments = make(map[string]string)
	flags.StringVar(&job.ID, "id", "", "`ID` of the job (default a random one)")
	flags.Func("arg", "argument of the action as `key=value`; may be repeated", func(arg string) error { return addTag(job.Arguments, arg) })
	flags.Float64Var(&job.Rate, "rate", 0, "the maximum `number` of instances per second (default 100)")
	flags.IntVar(&job.Concurrency, "concurrency", 0, "the maximum `number` of instances acted on at once (default 8)")
	all := flags.Bool("all", false, "act on all instances, if no flag selects some")
	reason, c := reasonFlag(flags), changeFlags(flags, confirmAlways)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) (err error) {
		job.Action, job.Reason = args[0], *reason
		if job.Filter, err = filterOf(s); err != nil {
			return err
		}
		if !*all && filter.Format(job.Filter) == "" {
			return &usageError{"select instances, for example by -query, or -all"}
		}
		preview, err := bulk.DryRun(ctx, client, job)
		if err != nil {
			return err
		}
		if c.dryRun {
			return writePreview(s, c.format, job.Action, preview)
		}
		c.verb = job.Action
		if err := c.ask(s, fmt.Sprintf("%d instances", preview.Count)); err != nil {
			return err
		}
		id, err := bulk.Start(ctx, client, job)
		switch {
		case err != nil:
			return err
		case c.format == output.JSON || c.format == output.YAML:
			return s.documents(c.format).Write(started{ID: id})
		}
		_, err = fmt.Fprintln(s.out, id)
		return err
	})
}

func writePreview(s streams, format output.Format, action string, p *bulk.Preview) error {
	if format == output.JSON || format == output.YAML {
		shown := bulkPreview{Count: p.Count, Estimated: p.Estimated, States: p.States}
		for _, i := range p.Sample {
			shown.Sample = append(shown.Sample, i.ID)
		}
		return s.documents(format).Write(shown)
	}
	if format == output.Table {
		about := ""
		if p.Estimated {
			about = "about "
		}
		if _, err := fmt.Fprintf(s.out, "would %s %s%d instances, such as:\n", action, about, p.Count); err != nil {
			return err
		}
	}
	for _, i := range p.Sample {
		line := i.ID
		if format == output.Table {
			line = output.Line(fmt.Sprintf("  %s (%s, %s)", i.ID, i.Name, i.State))
		}
		if _, err := fmt.Fprintln(s.out, line); err != nil {
			return err
		}
	}
	return nil
}

func listBulk(flags *flag.FlagSet) action {
	filterOf := filterFlags(flags)
	d := displayFlags(flags, output.Table, output.Wide, output.JSON, output.YAML, output.IDs)
	after := flags.String("after", "", "jobs that follow a `place`")
	limit := flags.Int("limit", 100, "the maximum `number` of jobs, 1 to 1000")
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, _ []string) error {
		f, err := filterOf(s)
		if err != nil {
			return err
		}
		page, err := bulk.List(ctx, client, f, *after, *limit)
		if err != nil {
			return err
		}
		printer := output.NewPrinter(s.out, d.format, bulkColumns(d.times()), func(p *bulkProgress) string { return p.ID })
		for _, listed := range page.Jobs {
			shown := &bulkProgress{ID: listed.ID, State: string(listed.State), Instance: listed.State, Error: errorText(listed.Err)}
			if listed.Progress != nil {
				shown = newBulkProgress(listed.ID, listed.Progress)
			}
			if err := printer.Write(shown); err != nil {
				return err
			}
		}
		if page.Next != "" {
			printMessage(s, "more jobs follow: use -after "+page.Next)
		}
		return printer.Flush()
	})
}

func bulkColumns(times output.Times) []output.Column[*bulkProgress] {
	number := func(of func(p *bulkProgress) int) func(*bulkProgress) string {
		return func(p *bulkProgress) string { return fmt.Sprint(of(p)) }
	}
	return []output.Column[*bulkProgress]{
		{Name: "ID", Cell: func(p *bulkProgress) string { return output.Cell(p.ID) }},
		{Name: "STATE", Cell: func(p *bulkProgress) string { return output.Cell(p.State) }},
		{Name: "ACTION", Cell: func(p *bulkProgress) string { return output.Cell(p.Action) }},
		{Name: "MATCHED", Cell: number(func(p *bulkProgress) int { return p.Matched })},
		{Name: "DONE", Cell: number(func(p *bulkProgress) int { return p.Done })},
		{Name: "REFUSED", Cell: number(func(p *bulkProgress) int { return p.Refused })},
		{Name: "UNKNOWN", Cell: number(func(p *bulkProgress) int { return p.Unknown })},
		{Name: "REMAINING", Cell: number(func(p *bulkProgress) int { return p.Remaining })},
		{Name: "STARTED", Cell: func(p *bulkProgress) string {
			if p.Started == nil {
				return "-"
			}
			return times.Cell(*p.Started)
		}},
		{Name: "QUERY", Wide: true, Cell: func(p *bulkProgress) string { return output.Cell(p.Query) }},
		{Name: "PRINCIPAL", Wide: true, Cell: func(p *bulkProgress) string { return output.Cell(p.Principal) }},
		{Name: "REASON", Wide: true, Cell: func(p *bulkProgress) string { return output.Cell(p.Reason) }},
	}
}

func showBulk(flags *flag.FlagSet) action {
	d := displayFlags(flags, output.Table, output.JSON, output.YAML)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
		p, err := bulk.Get(ctx, client, args[0])
		if err != nil {
			return err
		}
		shown := newBulkProgress(args[0], p)
		if !d.isTable() {
			return s.documents(d.format).Write(shown)
		}
		return shown.print(s.out, d.times())
	})
}

func (p *bulkProgress) print(w io.Writer, times output.Times) error {
	table := output.NewRows(w)
	line := func(name, value string) {
		if value != "" {
			table.Add(name, output.Line(value))
		}
	}
	line("id", p.ID)
	line("state", p.State)
	line("action", p.Action)
	line("query", p.Query)
	line("reason", p.Reason)
	line("note", p.Note)
	line("principal", p.Principal)
	if p.Started != nil {
		line("started", times.Relative(*p.Started))
	}
	line("matched", fmt.Sprint(p.Matched))
	line("done", fmt.Sprint(p.Done))
	line("refused", fmt.Sprint(p.Refused))
	line("unknown", fmt.Sprint(p.Unknown))
	line("remaining", fmt.Sprint(p.Remaining))
	line("speed", fmt.Sprintf("%.1f per second", p.Speed))
	line("error", p.Error)
	return table.Flush()
}

// refusal is an instance on which a job could not act, as -o json shows it.
type refusal struct {
	ID      string `json:"id"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

func listRefusals(flags *flag.FlagSet) action {
	d := displayFlags(flags, output.Table, output.JSON, output.YAML, output.IDs)
	return withSession(flags, func(ctx context.Context, s *session, args []string) error {
		printer := output.NewPrinter(s.out, d.format, []output.Column[refusal]{
			{Name: "ID", Cell: func(r refusal) string { return output.Cell(r.ID) }},
			{Name: "CODE", Cell: func(r refusal) string { return output.Cell(r.Code) }},
			{Name: "MESSAGE", Cell: func(r refusal) string { return output.Cell(r.Message) }},
		}, func(r refusal) string { return r.ID })
		for after := ""; ; {
			page, err := s.refusalPage(ctx, args[0], after)
			if err != nil {
				return err
			}
			for _, r := range page.Refusals {
				if err := printer.Write(refusal{r.InstanceID, r.Code, r.Message}); err != nil {
					return err
				}
			}
			if after = page.Next; after == "" {
				return printer.Flush()
			}
		}
	})
}

func (s *session) refusalPage(ctx context.Context, id, after string) (*bulk.RefusalPage, error) {
	ctx, cancel := s.limited(ctx)
	defer cancel()
	return bulk.Refusals(ctx, s.Client, id, after, pageMax)
}

// bulkCommand makes a command of a function that controls a job.
func bulkCommand(do func(ctx context.Context, client *cluster.Client, id, reason string) error) func(*flag.FlagSet) action {
	return func(flags *flag.FlagSet) action {
		reason, c := reasonFlag(flags), changeFlags(flags, confirmNever)
		return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
			detail := ""
			if c.dryRun {
				p, err := bulk.Get(ctx, client, args[0])
				if err != nil {
					return err
				}
				detail = fmt.Sprintf("%s, it is %s, remaining: %d", p.Job.Action, p.State, p.Remaining)
			}
			return c.one(s, args[0], detail, func() error { return do(ctx, client, args[0], *reason) })
		})
	}
}
