// Command approval is a human decision with a deadline: an expense is reserved,
// somebody approves or refuses it, or the deadline passes; reminders go out
// meanwhile; what was reserved is paid or released.
//
//	approval [-dir DIR] start [-deadline D] [-remind D] ID AMOUNT
//	approval [-dir DIR] approve|refuse ID WHO
//	approval [-dir DIR] status ID
//	approval [-dir DIR] watch ID
//
// Each command starts a node on the same directory, does its part and stops the
// node again. Between two commands nothing runs at all: the instance is in the
// journal, and the next command finds it where the last one left it. A deadline
// that passes meanwhile is noticed by the next command.
//
// # When to use it
//
// Wherever a program waits for a person: not a row in a table with a job that
// polls it, but a function that reads from top to bottom.
//
// # What to look at
//
//   - expense.go subscribes once and sets the deadline once, and then waits for the
//     first of them or of a reminder (replay.Next, which gives nothing up): an
//     answer that comes while a reminder is being sent is not lost, and reminders
//     do not move the deadline.
//   - Which of two came first is decided by the history. An answer at the last
//     moment is in time or too late, but never both, whatever crashes.
//   - expense_test.go: a week of reminders in milliseconds.
//
// # When not to use it
//
// Where the caller needs to know that the decision was taken, and not only that it
// was recorded: make it an update (see example account). Where a single step waits
// for somebody and the rest does not care how: let its activity return
// replay.ErrPending, and complete it by its token.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
)

const usage = `usage: approval [-dir DIR] start [-deadline D] [-remind D] ID AMOUNT
       approval [-dir DIR] approve|refuse ID WHO
       approval [-dir DIR] status ID
       approval [-dir DIR] watch ID`

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("approval", flag.ContinueOnError)
	dir := flags.String("dir", "data/approval", "where the journal lives")
	flags.Usage = func() { fmt.Fprintln(os.Stderr, usage) }
	if err := flags.Parse(args); err != nil {
		return err
	}
	node, err := cluster.Start(ctx, cluster.Config{
		Dir:         *dir,
		Definitions: definitions(),
		Logger:      slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	return errors.Join(command(ctx, node.Client(), flags.Args(), out), node.Stop(context.WithoutCancel(ctx)))
}

func command(ctx context.Context, client *cluster.Client, args []string, out io.Writer) error {
	switch {
	case len(args) > 1 && args[0] == "start":
		return start(ctx, client, args[1:], out)
	case len(args) == 3 && (args[0] == "approve" || args[0] == "refuse"):
		return decided(ctx, client, args[1], Decision{Approved: args[0] == "approve", By: args[2]}, out)
	case len(args) == 2 && args[0] == "status":
		return status(ctx, client, args[1], out)
	case len(args) == 2 && args[0] == "watch":
		return watch(ctx, client, args[1], out)
	}
	return errors.New(usage)
}

func start(ctx context.Context, client *cluster.Client, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("start", flag.ContinueOnError)
	deadline := flags.Duration("deadline", 7*24*time.Hour, "refuse when nobody has answered after this long")
	remind := flags.Duration("remind", 24*time.Hour, "remind this often")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 2 {
		return errors.New(usage)
	}
	amount, err := strconv.Atoi(flags.Arg(1))
	if err != nil || amount <= 0 {
		return fmt.Errorf("the amount %q is not a positive number", flags.Arg(1))
	}
	if *deadline <= 0 || *remind <= 0 {
		return errors.New("-deadline and -remind must be positive")
	}
	e := Expense{ID: flags.Arg(0), Amount: amount, Deadline: *deadline, RemindEvery: *remind}
	if _, err := cluster.StartRun(ctx, client, Approval, e.ID, e); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s waits for a decision until %s\n", e.ID, time.Now().Add(e.Deadline).Format(time.DateTime))
	return nil
}

// decided sends the decision and shows what follows from it.
func decided(ctx context.Context, client *cluster.Client, id string, d Decision, out io.Writer) error {
	if err := cluster.Send(ctx, client, id, Decided, d); err != nil {
		return err
	}
	return watch(ctx, client, id, out)
}

func watch(ctx context.Context, client *cluster.Client, id string, out io.Writer) error {
	ended, err := client.Wait(ctx, id)
	if err != nil {
		return err
	}
	return show(ended, out)
}

func status(ctx context.Context, client *cluster.Client, id string, out io.Writer) error {
	now, err := client.Get(ctx, id)
	if err != nil {
		return err
	}
	if err := show(now, out); err != nil {
		return err
	}
	history, err := client.History(ctx, id)
	if err != nil {
		return err
	}
	fmt.Fprint(out, history)
	return nil
}

func show(s *cluster.Status, out io.Writer) error {
	if s.State != cluster.Completed {
		fmt.Fprintf(out, "%s: %s\n", s.InstanceID, s.State)
		return s.Err
	}
	var outcome Outcome
	if err := s.Output(&outcome); err != nil {
		return err
	}
	result := "not paid"
	if outcome.Paid {
		result = "paid"
	}
	fmt.Fprintf(out, "%s: %s, %s, after %d reminders\n", s.InstanceID, result, outcome.Why, outcome.Reminders)
	return nil
}
