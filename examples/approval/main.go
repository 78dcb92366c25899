// Command approval waits for a human decision with a deadline. It reserves an amount, sends
// reminders, and pays the amount if somebody approves. If somebody rejects or the deadline passes,
// it releases the amount.
//
//	approval [-dir DIR] start [-deadline D] [-remind D] ID AMOUNT
//	approval [-dir DIR] approve|reject ID WHO
//	approval [-dir DIR] status ID
//	approval [-dir DIR] watch ID
//
// Each command starts a node on the same directory, does its work and stops the node.
// Between two commands nothing runs: the instance is in the journal. The next command
// notices a deadline that passed meanwhile.
//
// # When to use it
//
// When a program waits for a person. One function replaces a table row and a polling job.
//
// # What to look at
//
//   - expense.go subscribes once and sets the deadline once, then waits for the first of
//     answer, deadline and reminder (replay.Next, which cancels nothing). So an answer that
//     arrives during a reminder is not lost, and reminders do not move the deadline.
//   - The order of events in the history decides which came first. So an answer is either in time
//     or too late, even if nodes crash.
//   - expense_test.go: a week of reminders in milliseconds.
//
// # When not to use it
//
//   - If the caller needs to know that the decision was taken, and not only recorded, use an
//     update (see example account).
//   - If a single step waits for a person, let its activity return replay.ErrResultPending
//     and complete it by its token.
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
       approval [-dir DIR] approve|reject ID WHO
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
	dir := flags.String("dir", "data/approval", "`directory` of the journal")
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
	case len(args) == 3 && (args[0] == "approve" || args[0] == "reject"):
		return sendDecision(ctx, client, args[1], Decision{Approved: args[0] == "approve", By: args[2]}, out)
	case len(args) == 2 && args[0] == "status":
		return status(ctx, client, args[1], out)
	case len(args) == 2 && args[0] == "watch":
		return watch(ctx, client, args[1], out)
	}
	return errors.New(usage)
}

func start(ctx context.Context, client *cluster.Client, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("start", flag.ContinueOnError)
	deadline := flags.Duration("deadline", 7*24*time.Hour, "reject without an answer after this long")
	remind := flags.Duration("remind", 24*time.Hour, "remind this often")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 2 {
		return errors.New(usage)
	}
	amount, err := strconv.Atoi(flags.Arg(1))
	if err != nil || amount <= 0 {
		return fmt.Errorf("amount %q is not a positive number", flags.Arg(1))
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

// sendDecision sends the decision and prints the outcome.
func sendDecision(ctx context.Context, client *cluster.Client, id string, d Decision, out io.Writer) error {
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
