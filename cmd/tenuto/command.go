package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay"
)

// A command is one or two words of the command line.
type command struct {
	name      string
	argsUsage string // as shown in the usage
	summary   string
	// The number of args; -1 for no maximum.
	argsMin, argsMax int
	// setup declares the flags and returns the action to run after they are parsed.
	setup func(flags *flag.FlagSet) action
}

// An action runs a command with its arguments.
type action func(ctx context.Context, s streams, args []string) error

var commands = append([]command{
	{"list", "", "list instances", 0, 0, list},
	{"count", "", "count instances, in groups", 0, 0, count},
	{"get", "ID", "show the state of an instance", 1, 1, get},
	{"stack", "ID", "show where coroutines of an instance wait", 1, 1, stack},
	{"members", "", "list the nodes of the cluster", 0, 0, members},
	{"token", "", "issue, list or revoke join tokens", 0, 0, token},
	{"settings", "[NAME=VALUE...]", "show the settings of the cluster, or change some", 0, -1, settings},
	{"adopt", "NODE IDENTITY", "record the new directory of a node that lost its own", 2, 2, adopt},
	{"cancel", "ID", "cancel an instance: its code may clean up", 1, 1, controlCommand((*cluster.Client).Cancel)},
	{"terminate", "ID", "end an instance at once, without running its code", 1, 1, controlCommand((*cluster.Client).Terminate)},
	{"suspend", "ID", "pause the code of an instance", 1, 1, controlCommand((*cluster.Client).Suspend)},
	{"resume", "ID", "resume a suspended instance", 1, 1, controlCommand((*cluster.Client).Resume)},
	{"retry", "ID", "retry a stalled instance", 1, 1, retry},
	{"history export", "ID", "write a history as JSON, one event per line", 1, 1, exportHistory},
	{"history check", "FILE...", "check the consistency of histories in files", 1, -1, checkHistories},
}, scheduleCommands...)

// The exit statuses.
const (
	statusOK          = 0
	statusRejected    = 1
	statusUsage       = 2
	statusUnavailable = 3
)

// A usageError reports an invalid command line.
type usageError struct{ reason string }

func (e *usageError) Error() string { return e.reason }

// run runs a command line and returns the exit status.
func run(ctx context.Context, line []string, s streams) int {
	if len(line) == 0 {
		printUsage(s.err)
		return statusUsage
	}
	if line[0] == "help" || isHelpFlag(line[0]) {
		printUsage(s.out)
		return statusOK
	}
	c, rest := findCommand(line)
	if c == nil {
		return rejectUnknown(line, s)
	}
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	do := c.setup(flags)
	args, err := parseFlags(flags, rest)
	switch {
	case errors.Is(err, flag.ErrHelp):
		c.printHelp(s.out, flags)
		return statusOK
	case err == nil && (len(args) < c.argsMin || c.argsMax >= 0 && len(args) > c.argsMax):
		err = fmt.Errorf("usage: %s", c.usage())
	}
	if err != nil {
		return reportError(s, &usageError{fmt.Sprintf("%v; see tenuto %s -h", err, c.name)})
	}
	return reportError(s, do(ctx, s, args))
}

// isHelpFlag reports whether a word is a help flag.
func isHelpFlag(word string) bool { return slices.Contains([]string{"-h", "-help", "--help"}, word) }

// rejectUnknown handles a line that begins with no command, or only with the first word of a
// command.
func rejectUnknown(line []string, s streams) int {
	subcommands := findSubcommands(line[0])
	switch {
	case len(subcommands) > 0 && len(line) > 1 && isHelpFlag(line[1]):
		fmt.Fprintf(s.out, "usage: tenuto %s COMMAND [flags] [arguments]\n\ncommands:\n", line[0])
		printCommands(s.out, subcommands)
		return statusOK
	case len(subcommands) > 0 && len(line) == 1:
		return reportError(s, &usageError{fmt.Sprintf("%q needs a subcommand; see tenuto %s -h", line[0], line[0])})
	}
	return reportError(s, &usageError{fmt.Sprintf("unknown command %q; see tenuto help", strings.Join(line[:min(2, len(line))], " "))})
}

// findSubcommands returns the two-word commands with that first word.
func findSubcommands(word string) (found []command) {
	for _, c := range commands {
		if strings.HasPrefix(c.name, word+" ") {
			found = append(found, c)
		}
	}
	return found
}

// findCommand returns the command at the beginning of a line, and the rest of the line.
func findCommand(line []string) (*command, []string) {
	for i := range commands {
		words := strings.Fields(commands[i].name)
		if len(line) >= len(words) && slices.Equal(words, line[:len(words)]) {
			return &commands[i], line[len(words):]
		}
	}
	return nil, nil
}

// parseFlags parses flags at any position and returns the other arguments.
func parseFlags(flags *flag.FlagSet, line []string) (args []string, err error) {
	for {
		if err := flags.Parse(line); err != nil {
			return nil, err
		}
		if flags.NArg() == 0 {
			return args, nil
		}
		args, line = append(args, flags.Arg(0)), flags.Args()[1:]
	}
}

// reportError prints an error, if any, and returns the exit status.
func reportError(s streams, err error) int {
	if err == nil {
		return statusOK
	}
	printMessage(s, err.Error())
	var usage *usageError
	var input *replay.InvalidError
	var unavailable *cluster.UnavailableError
	switch {
	case errors.As(err, &usage), errors.As(err, &input):
		return statusUsage
	case errors.As(err, &unavailable), errors.Is(err, errNoLeader):
		return statusUnavailable
	}
	return statusRejected
}

// printMessage writes a line for people, with "tenuto: " only once.
func printMessage(s streams, text string) {
	fmt.Fprintln(s.err, "tenuto:", strings.ReplaceAll(strings.TrimPrefix(text, "tenuto: "), ": tenuto: ", ": "))
}

// cell returns text as one word for a table, "-" for none.
func cell(text string) string {
	return cmp.Or(strings.Join(strings.Fields(text), "-"), "-")
}

func (c *command) usage() string {
	return strings.TrimSpace(fmt.Sprintf("tenuto %s [flags] %s", c.name, c.argsUsage))
}

func (c *command) printHelp(w io.Writer, flags *flag.FlagSet) {
	fmt.Fprintf(w, "usage: %s\n\n%s\n", c.usage(), c.summary)
	hasFlags := false
	flags.VisitAll(func(*flag.Flag) { hasFlags = true })
	if hasFlags {
		fmt.Fprintln(w, "\nflags:")
		flags.SetOutput(w)
		flags.PrintDefaults()
	}
}

func printUsage(w io.Writer) {
	fmt.Fprint(w, "usage: tenuto COMMAND [flags] [arguments]\n\ncommands:\n")
	printCommands(w, commands)
	fmt.Fprint(w, "\ntenuto COMMAND -h shows the flags of a command\n")
}

func printCommands(w io.Writer, selected []command) {
	for _, c := range selected {
		fmt.Fprintf(w, "  %-24s %s\n", strings.TrimSpace(c.name+" "+c.argsUsage), c.summary)
	}
}
