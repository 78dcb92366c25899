package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
)

// A confirmation says when a change needs -yes, or "y" on a terminal.
type confirmation int

const (
	confirmNever confirmation = iota
	confirmSeveral
	confirmAlways
)

// A change holds the flags of a command that changes something.
type change struct {
	verb    string // such as "cancel"
	confirm confirmation
	dryRun  bool
	yes     bool
	format  output.Format
}

// changeFlags declares the flags of commands that change something.
func changeFlags(flags *flag.FlagSet, confirm confirmation) *change {
	c := &change{verb: verbOf(flags.Name()), confirm: confirm}
	flags.BoolVar(&c.dryRun, "dry-run", false, "say what would be done, after checking that it is possible, and do nothing")
	if confirm != confirmNever {
		usage := "do not ask"
		if confirm == confirmSeveral {
			usage = "do not ask before changing more than one"
		}
		flags.BoolVar(&c.yes, "yes", false, usage+"; required without a terminal")
	}
	formatFlag(flags, &c.format, output.Table, output.JSON, output.YAML, output.IDs)
	return c
}

// verbOf returns what a command does: "pause activity" for "activity pause".
func verbOf(name string) string {
	words := strings.Fields(name)
	slices.Reverse(words)
	return strings.Join(words, " ")
}

// reasonFlag declares the -reason flag. The context of the calls has the reason; calls with an
// argument for it ignore that one.
func reasonFlag(flags *flag.FlagSet) *string {
	return flags.String("reason", "", "`text` to record as the reason")
}

// A changed is the result of a change, as -o json shows it.
type changed struct {
	ID     string `json:"id"`
	Action string `json:"action"`
	// State is that of the instance before the action, with DryRun.
	State   cluster.State `json:"state,omitempty"`
	EventID uint64        `json:"eventId,omitempty"` // of the operation
	Name    string        `json:"name,omitempty"`    // of the operation
	DryRun  bool          `json:"dryRun,omitempty"`
	Done    bool          `json:"done"`
	Error   string        `json:"error,omitempty"`
	Status  int           `json:"status,omitempty"` // the exit status that stands for the error

	detail string // for people
}

// ask returns nil if the change of all targets may be made. It asks on a terminal.
func (c *change) ask(s streams, targets ...string) error {
	if c.dryRun || c.yes || c.confirm == confirmNever || len(targets) == 0 || c.confirm == confirmSeveral && len(targets) == 1 {
		return nil
	}
	what := strings.Join(targets[:min(len(targets), 3)], ", ")
	if len(targets) > 3 {
		what += fmt.Sprintf(" and %d more", len(targets)-3)
	}
	if !s.interactive {
		return &usageError{fmt.Sprintf("%s of %s needs -yes; -dry-run shows what it would do", c.verb, output.Line(what))}
	}
	fmt.Fprintf(s.err, "%s %s? [y/N] ", c.verb, output.Line(what))
	answer, err := bufio.NewReader(s.in).ReadString('\n')
	if err != nil && err != io.EOF {
		return err
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		printMessage(s, "nothing was done")
		return &reportedError{statusRejected}
	}
	return nil
}

// A changer makes one change. Without a cluster call if dryRun is set.
type changer func(ctx context.Context, id string) ([]changed, error)

// single returns one result, or none with an error.
func single(r changed, err error) ([]changed, error) {
	if err != nil {
		return nil, err
	}
	return []changed{r}, nil
}

// run asks, and then makes the change of each instance.
func (c *change) run(ctx context.Context, s *session, ids []string, do changer) error {
	if err := c.ask(s.streams, ids...); err != nil {
		return err
	}
	return s.forEach(ctx, ids, true, func(ctx context.Context, id string) error {
		results, err := do(ctx, id)
		if err != nil {
			results = append(results, changed{ID: id, Error: err.Error(), Status: statusOf(err, true)})
		}
		for _, r := range results {
			if writeErr := c.report(s.streams, r); writeErr != nil {
				return writeErr
			}
		}
		return err
	})
}

// report writes a result. As a table, only a dry run has results; errors are printed elsewhere.
func (c *change) report(s streams, r changed) error {
	r.Action, r.DryRun = c.verb, c.dryRun
	r.Done = r.Error == "" && !c.dryRun
	switch {
	case c.format == output.JSON || c.format == output.YAML:
		return s.documents(c.format).Write(r)
	case r.Error != "":
		return nil
	case c.format == output.IDs:
		_, err := fmt.Fprintln(s.out, r.ID)
		return err
	case !c.dryRun:
		return nil
	}
	text := fmt.Sprintf("would %s %s", c.verb, r.ID)
	if r.EventID > 0 {
		text += fmt.Sprintf(", event %d", r.EventID)
	}
	if r.Name != "" {
		text += ", " + r.Name
	}
	if r.State != "" {
		text += fmt.Sprintf(" (%s)", r.State)
	}
	if r.detail != "" {
		text += ": " + r.detail
	}
	_, err := fmt.Fprintln(s.out, output.Line(text))
	return err
}

// one reports a change that concerns no instance. do is not called for a dry run.
func (c *change) one(s streams, target, detail string, do func() error) error {
	if err := c.ask(s, target); err != nil {
		return err
	}
	if !c.dryRun {
		if err := do(); err != nil {
			return err
		}
	}
	return c.report(s, changed{ID: target, detail: detail})
}
