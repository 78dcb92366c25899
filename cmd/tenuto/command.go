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
)

// A command is one word, or two, of the command line.
type command struct {
	name string
	args string // as the usage names them
	does string
	// How many args: at least, and at most; -1 for any number.
	least, most int
	// setup declares the flags and returns what is done when they are set.
	setup func(flags *flag.FlagSet) action
}

// An action is what a command does with its arguments.
type action func(ctx context.Context, s streams, args []string) error

var commands = []command{
	{"list", "", "list instances", 0, 0, list},
	{"get", "ID", "show what an instance is doing, or how it ended", 1, 1, get},
	{"members", "", "list the nodes of the cluster", 0, 0, members},
	{"token", "", "issue a token with which one node may join, list tokens, or revoke one", 0, 0, token},
	{"adopt", "NODE IDENTITY", "record the new directory of a node that has lost its own", 2, 2, adopt},
	{"cancel", "ID", "ask an instance to cancel: it may clean up", 1, 1, signaled((*cluster.Client).Cancel)},
	{"terminate", "ID", "end an instance at once, without running its code", 1, 1, signaled((*cluster.Client).Terminate)},
	{"suspend", "ID", "keep the code of an instance from running", 1, 1, signaled((*cluster.Client).Suspend)},
	{"resume", "ID", "let a suspended instance go on", 1, 1, signaled((*cluster.Client).Resume)},
	{"retry", "ID", "have a stalled instance try again", 1, 1, retry},
	{"history export", "ID", "write a history as JSON, one event a line", 1, 1, exportHistory},
	{"history check", "FILE...", "check whether files hold sound histories", 1, -1, checkHistories},
}

// The exit statuses.
const (
	statusDone        = 0
	statusRefused     = 1
	statusUsage       = 2
	statusUnavailable = 3
)

// A usageError reports a command line that cannot be used.
type usageError struct{ reason string }

func (e *usageError) Error() string { return e.reason }

// run carries a command line out and returns the exit status.
func run(ctx context.Context, line []string, s streams) int {
	if len(line) == 0 {
		printUsage(s.err)
		return statusUsage
	}
	if line[0] == "help" || asksHelp(line[0]) {
		printUsage(s.out)
		return statusDone
	}
	c, rest := find(line)
	if c == nil {
		return runNone(line, s)
	}
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	do := c.setup(flags)
	args, err := parse(flags, rest)
	switch {
	case errors.Is(err, flag.ErrHelp):
		c.printHelp(s.out, flags)
		return statusDone
	case err == nil && (len(args) < c.least || c.most >= 0 && len(args) > c.most):
		err = fmt.Errorf("usage: %s", c.usage())
	}
	if err != nil {
		return report(s, &usageError{fmt.Sprintf("%v; see tenuto %s -h", err, c.name)})
	}
	return report(s, do(ctx, s, args))
}

// asksHelp reports whether a word is the flag that asks for help.
func asksHelp(word string) bool { return slices.Contains([]string{"-h", "-help", "--help"}, word) }

// runNone answers a line that begins with no command; it may begin with the first word of some.
func runNone(line []string, s streams) int {
	begin := commandsOf(line[0])
	switch {
	case len(begin) > 0 && len(line) > 1 && asksHelp(line[1]):
		fmt.Fprintf(s.out, "usage: tenuto %s COMMAND [flags] [arguments]\n\ncommands:\n", line[0])
		printCommands(s.out, begin)
		return statusDone
	case len(begin) > 0 && len(line) == 1:
		return report(s, &usageError{fmt.Sprintf("%q is the first word of several commands; see tenuto %s -h", line[0], line[0])})
	}
	return report(s, &usageError{fmt.Sprintf("there is no command %q; see tenuto help", strings.Join(line[:min(2, len(line))], " "))})
}

// commandsOf returns the commands of two words of which the first is that.
func commandsOf(word string) (of []command) {
	for _, c := range commands {
		if strings.HasPrefix(c.name, word+" ") {
			of = append(of, c)
		}
	}
	return of
}

// find returns the command that a line begins with, and what follows.
func find(line []string) (*command, []string) {
	for i := range commands {
		words := strings.Fields(commands[i].name)
		if len(line) >= len(words) && slices.Equal(words, line[:len(words)]) {
			return &commands[i], line[len(words):]
		}
	}
	return nil, nil
}

// parse takes flags wherever they stand and returns the rest.
func parse(flags *flag.FlagSet, line []string) (args []string, err error) {
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

// report says what went wrong, if anything, and returns the exit status.
func report(s streams, err error) int {
	if err == nil {
		return statusDone
	}
	say(s, err.Error())
	var usage *usageError
	var input *cluster.InputError
	var unavailable *cluster.UnavailableError
	switch {
	case errors.As(err, &usage), errors.As(err, &input):
		return statusUsage
	case errors.As(err, &unavailable), errors.Is(err, errNoLeader):
		return statusUnavailable
	}
	return statusRefused
}

// say writes a line for people: "tenuto: " once, whatever errors wrap each other in it.
func say(s streams, text string) {
	fmt.Fprintln(s.err, "tenuto:", strings.ReplaceAll(strings.TrimPrefix(text, "tenuto: "), ": tenuto: ", ": "))
}

// cell is a text as it stands in a table, whose columns are separated by spaces: one word,
// "-" for none.
func cell(text string) string {
	return cmp.Or(strings.Join(strings.Fields(text), "-"), "-")
}

func (c *command) usage() string {
	return strings.TrimSpace(fmt.Sprintf("tenuto %s [flags] %s", c.name, c.args))
}

func (c *command) printHelp(w io.Writer, flags *flag.FlagSet) {
	fmt.Fprintf(w, "usage: %s\n\n%s\n", c.usage(), c.does)
	any := false
	flags.VisitAll(func(*flag.Flag) { any = true })
	if any {
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

func printCommands(w io.Writer, which []command) {
	for _, c := range which {
		fmt.Fprintf(w, "  %-24s %s\n", strings.TrimSpace(c.name+" "+c.args), c.does)
	}
}
