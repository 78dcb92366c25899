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
	"syscall"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
	"github.com/tenuto-dev/tenuto/replay"
)

// A command is one or two words of the command line.
type command struct {
	name      string
	argsUsage string // as shown in the usage
	summary   string
	// The number of args; -1 for no maximum.
	argsMin, argsMax int
	args             argKind // for completion
	changes          bool    // whether it changes something in the cluster
	// setup declares the flags and returns the action to run after they are parsed.
	setup func(flags *flag.FlagSet) action
	// details follow the summary in the help.
	details string
}

// An argKind says what the arguments of a command name.
type argKind int

const (
	noNames argKind = iota
	instanceIDs
	nodeIDs
	scheduleIDs
	profileNames
	fileNames
)

// An action runs a command with its arguments.
type action func(ctx context.Context, s streams, args []string) error

// A section is a part of the list of commands.
type section struct {
	title    string
	commands []command
}

// sections returns all commands. It is a function, because some commands list the others.
func sections() []section {
	return []section{
		{"Show instances", showCommands},
		{"Start and call instances", callCommands},
		{"Control instances", controlCommands},
		{"Repair operations", operationCommands},
		{"Begin again", againCommands},
		{"Act on many instances", bulkCommands},
		{"Schedules", scheduleCommands},
		{"Cluster", clusterCommands},
		{"This command", append([]command{completionCommand}, toolCommands...)},
	}
}

func allCommands() (all []command) {
	for _, s := range sections() {
		all = append(all, s.commands...)
	}
	return all
}

// The exit statuses.
const (
	statusOK           = 0
	statusRejected     = 1
	statusUsage        = 2
	statusUnavailable  = 3
	statusNotPermitted = 4
	statusUnknown      = 5
	statusNotFound     = 6
	statusInterrupted  = 128 // plus the number of the signal
)

// A usageError reports an invalid command line.
type usageError struct{ reason string }

func (e *usageError) Error() string { return e.reason }

// A reportedError has been printed already.
type reportedError struct{ status int }

func (e *reportedError) Error() string { return fmt.Sprintf("exit status %d", e.status) }

// A readError is of a call that only reads, in a command that can also change something.
type readError struct{ error }

func (e *readError) Unwrap() error { return e.error }

// A signalError is the cause of the end of a context.
type signalError struct{ signal syscall.Signal }

func (e *signalError) Error() string { return e.signal.String() }

// run runs a command line and returns the exit status.
func run(ctx context.Context, line []string, s streams) int {
	if len(line) == 0 {
		printUsage(s.err)
		return statusUsage
	}
	if line[0] == "help" && len(line) > 1 {
		line = append(line[1:len(line):len(line)], "-h")
	}
	if line[0] == "help" || isHelpFlag(line[0]) {
		printUsage(s.out)
		return statusOK
	}
	if line[0] == "-version" || line[0] == "--version" {
		line = append([]string{"version"}, line[1:]...)
	}
	if line[0] == completeWord {
		return completeLine(ctx, s, line[1:])
	}
	c, rest := findCommand(line)
	if c == nil {
		return rejectUnknown(ctx, line, s)
	}
	flags, do := c.prepare()
	args, err := parseFlags(flags, rest)
	switch {
	case errors.Is(err, flag.ErrHelp):
		c.printHelp(s.out, flags)
		return statusOK
	case err == nil && (len(args) < c.argsMin || c.argsMax >= 0 && len(args) > c.argsMax):
		err = fmt.Errorf("usage: %s", c.usage())
	}
	if err != nil {
		return reportError(ctx, c, s, &usageError{fmt.Sprintf("%v; see tenuto %s -h", err, c.name)})
	}
	return reportError(ctx, c, s, do(ctx, s, args))
}

// prepare declares the flags of a command.
func (c *command) prepare() (*flag.FlagSet, action) {
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	return flags, c.setup(flags)
}

// isHelpFlag reports whether a word is a help flag.
func isHelpFlag(word string) bool { return slices.Contains([]string{"-h", "-help", "--help"}, word) }

// rejectUnknown handles a line that begins with no command, or only with the first word of a
// command.
func rejectUnknown(ctx context.Context, line []string, s streams) int {
	subcommands := findSubcommands(line[0])
	switch {
	case len(subcommands) > 0 && len(line) > 1 && isHelpFlag(line[1]):
		printSubcommands(s.out, line[0], subcommands)
		return statusOK
	case len(subcommands) > 0 && len(line) == 1:
		return reportError(ctx, nil, s, &usageError{fmt.Sprintf("%q needs a subcommand; see tenuto %s -h", line[0], line[0])})
	}
	unknown := line[:min(2, len(line))]
	if len(subcommands) == 0 {
		unknown = line[:1]
	}
	reason := fmt.Sprintf("unknown command %q", strings.Join(unknown, " "))
	if similar := similarCommand(line); similar != "" {
		reason += fmt.Sprintf(": did you mean %q?", similar)
	}
	if len(subcommands) > 0 {
		return reportError(ctx, nil, s, &usageError{fmt.Sprintf("%s; see tenuto %s -h", reason, line[0])})
	}
	return reportError(ctx, nil, s, &usageError{reason + "; see tenuto help"})
}

// similarCommand returns the name of a command that differs in a letter or two from the beginning
// of a line, "" if there is none.
func similarCommand(line []string) string {
	best, distance := "", 3
	for _, c := range allCommands() {
		words := strings.Count(c.name, " ") + 1
		if len(line) < words {
			continue
		}
		typed := strings.Join(line[:words], " ")
		if d := editDistance(typed, c.name); d < distance && d <= len(typed)/3 {
			best, distance = c.name, d
		}
	}
	return best
}

// editDistance is the number of letters to insert, delete or replace.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range a {
		diagonal := row[0]
		row[0] = i + 1
		for j := range b {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// findSubcommands returns the two-word commands with that first word.
func findSubcommands(word string) (found []command) {
	for _, c := range allCommands() {
		if strings.HasPrefix(c.name, word+" ") {
			found = append(found, c)
		}
	}
	return found
}

// findCommand returns the command at the beginning of a line, that of two words if there is one,
// and the rest of the line.
func findCommand(line []string) (found *command, rest []string) {
	length := 0
	for _, c := range allCommands() {
		words := strings.Fields(c.name)
		if len(words) > length && len(line) >= len(words) && slices.Equal(words, line[:len(words)]) {
			found, rest, length = &c, line[len(words):], len(words)
		}
	}
	return found, rest
}

// parseFlags parses flags at any position and returns the other arguments. After "--" all are
// arguments.
func parseFlags(flags *flag.FlagSet, line []string) (args []string, err error) {
	for {
		before := len(line)
		if err := flags.Parse(line); err != nil {
			return nil, err
		}
		parsed := line[:before-flags.NArg()]
		if len(parsed) > 0 && parsed[len(parsed)-1] == "--" {
			return append(args, flags.Args()...), nil
		}
		if flags.NArg() == 0 {
			return args, nil
		}
		args, line = append(args, flags.Arg(0)), flags.Args()[1:]
	}
}

// reportError prints an error, if any, and returns the exit status. c is nil if the line names no
// command.
func reportError(ctx context.Context, c *command, s streams, err error) int {
	if err == nil {
		return statusOK
	}
	status := statusOf(err, c != nil && c.changes)
	var reported *reportedError
	if errors.As(err, &reported) {
		return reported.status
	}
	if errors.Is(err, syscall.EPIPE) { // the reader of the output has ended
		return statusRejected
	}
	var interruption *signalError
	if errors.As(context.Cause(ctx), &interruption) {
		if status == statusUnknown {
			printMessage(s, err.Error())
		}
		return statusInterrupted + int(interruption.signal)
	}
	printMessage(s, err.Error())
	return status
}

// statusOf returns the exit status for an error. Only a command that changes something can have an
// unknown outcome.
func statusOf(err error, changes bool) int {
	var read *readError
	changes = changes && !errors.As(err, &read)
	var usage *usageError
	var input *replay.InvalidError
	var reported *reportedError
	var unavailable *cluster.UnavailableError
	var internal *cluster.InternalError
	switch {
	case err == nil:
		return statusOK
	case errors.As(err, &reported):
		return reported.status
	case errors.As(err, &usage), errors.As(err, &input):
		return statusUsage
	case errors.As(err, &unavailable) && changes && !unavailable.NotExecuted, errors.As(err, &internal) && changes:
		return statusUnknown
	case unavailable != nil, errors.Is(err, errNoLeader), errors.Is(err, errNoAnswer), errors.Is(err, context.DeadlineExceeded):
		return statusUnavailable
	case errors.Is(err, cluster.ErrNotAuthorized):
		return statusNotPermitted
	case errors.Is(err, cluster.ErrNotFound), errors.Is(err, cluster.ErrNotMember), errors.Is(err, operate.ErrUnknownOperation):
		return statusNotFound
	}
	return statusRejected
}

// printMessage writes a line for people, with "tenuto: " only once.
func printMessage(s streams, text string) {
	text = strings.ReplaceAll(strings.TrimPrefix(text, "tenuto: "), ": tenuto: ", ": ")
	fmt.Fprintln(s.err, "tenuto:", output.Lines(text))
}

// progressPause is the least time between two lines about the progress of a command.
const progressPause = 2 * time.Second

// A progressLog prints how far a command has come, to the standard error: nothing if the command
// ends soon.
type progressLog struct {
	s    streams
	last time.Time // when the command began, or the latest line was printed
}

func newProgressLog(s streams) *progressLog { return &progressLog{s, time.Now()} }

// add prints a line, unless the one before was printed a short time ago.
func (p *progressLog) add(format string, args ...any) {
	if time.Since(p.last) < cmp.Or(p.s.progressPause, progressPause) {
		return
	}
	p.last = time.Now()
	printMessage(p.s, fmt.Sprintf(format, args...))
}

// addBytes is add for a number of bytes, until it is the total.
func (p *progressLog) addBytes(done, total int64, verb string) {
	if done < total {
		p.add("%d of %d bytes %s, %d %%", done, total, verb, 100*done/total)
	}
}

func (c *command) usage() string {
	return strings.TrimSpace(fmt.Sprintf("tenuto %s [flags] %s", c.name, c.argsUsage))
}

const statusHelp = `Exit status: 0 done; 1 rejected or failed; 2 invalid command line; 3 no answer in time, nothing was
done; 4 not permitted; 5 the outcome is unknown; 6 not found; 130 interrupted. Of several IDs, all are
tried, and the status is that of the errors if they agree, otherwise 1.
`

func (c *command) printHelp(w io.Writer, flags *flag.FlagSet) {
	fmt.Fprintf(w, "usage: %s\n\n%s\n", c.usage(), c.summary)
	if c.details != "" {
		fmt.Fprintf(w, "\n%s\n", strings.TrimSpace(c.details))
	}
	connects := flags.Lookup("profile") != nil // other commands have flags with the same names
	printFlags(w, "flags", flags, func(f *flag.Flag) bool { return !connects || !isConnectionFlag(f.Name) }, flagUsage)
	printFlags(w, "connection", flags, func(f *flag.Flag) bool { return connects && isConnectionFlag(f.Name) }, func(f *flag.Flag) string {
		return flagUsage(f) + " ($" + variable(f.Name) + ")"
	})
	if subcommands := findSubcommands(c.name); len(subcommands) > 0 {
		fmt.Fprint(w, "\nsubcommands:\n")
		printCommands(w, subcommands)
	}
}

// printFlags writes the flags that are selected, if there are any.
func printFlags(w io.Writer, title string, flags *flag.FlagSet, selected func(*flag.Flag) bool, usage func(*flag.Flag) string) {
	rows := output.NewRows(w)
	none := true
	flags.VisitAll(func(f *flag.Flag) {
		if !selected(f) {
			return
		}
		if none {
			fmt.Fprintf(w, "\n%s:\n", title)
			none = false
		}
		placeholder, _ := flag.UnquoteUsage(f)
		rows.Add("  "+strings.TrimSpace("-"+f.Name+" "+placeholder), usage(f))
	})
	_ = rows.Flush() // help is best effort
}

func flagUsage(f *flag.Flag) string {
	_, usage := flag.UnquoteUsage(f)
	switch f.DefValue {
	case "", "0", "0s", "false":
		return usage
	}
	return usage + " (default " + f.DefValue + ")"
}

func printUsage(w io.Writer) {
	fmt.Fprint(w, "usage: tenuto COMMAND [flags] [arguments]\n")
	fmt.Fprint(w, "\nID... may be -: then the IDs are the first words of the lines of the standard input.\n")
	rows := output.NewRows(w)
	for _, s := range sections() {
		rows.Add("")
		rows.Add(s.title + ":")
		addCommands(rows, s.commands)
	}
	_ = rows.Flush() // help is best effort
	fmt.Fprint(w, "\ntenuto COMMAND -h shows the flags of a command.\n\n", statusHelp)
}

func printSubcommands(w io.Writer, word string, subcommands []command) {
	fmt.Fprintf(w, "usage: tenuto %s COMMAND [flags] [arguments]\n\ncommands:\n", word)
	printCommands(w, subcommands)
}

func printCommands(w io.Writer, selected []command) {
	rows := output.NewRows(w)
	addCommands(rows, selected)
	_ = rows.Flush() // help is best effort
}

func addCommands(rows *output.Rows, selected []command) {
	for _, c := range selected {
		rows.Add("  "+strings.TrimSpace(c.name+" "+c.argsUsage), c.summary)
	}
}
