package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// fromInput is the argument that stands for IDs from the standard input.
const fromInput = "-"

// readIDs returns the instance IDs that the arguments name. Without arguments, IDs come from the
// standard input, if something is piped into it.
func readIDs(c *usage, s streams, args []string) ([]string, error) {
	if len(args) == 0 {
		if !isPiped(s.in) {
			return nil, c.error()
		}
		args = []string{fromInput}
	}
	var ids []string
	for _, arg := range args {
		if arg != fromInput {
			ids = append(ids, arg)
			continue
		}
		read, err := readFirstWords(s.in)
		if err != nil {
			return nil, fmt.Errorf("read IDs: %w", err)
		}
		ids = append(ids, read...)
	}
	if len(ids) == 0 {
		printMessage(s, "the standard input has no IDs: nothing to do")
	}
	return unique(ids), nil
}

// usage is the usage of a command, for its errors.
type usage struct{ name, args string }

func (u *usage) error() error {
	return &usageError{fmt.Sprintf("usage: tenuto %s [flags] %s; see tenuto %s -h", u.name, u.args, u.name)}
}

// isPiped reports whether a reader is a file or a pipe rather than a device.
func isPiped(in io.Reader) bool {
	input, ok := in.(*interruptibleInput)
	if !ok {
		return in != nil
	}
	info, err := input.file.Stat()
	return err == nil && (info.Mode().IsRegular() || info.Mode()&os.ModeNamedPipe != 0)
}

// readFirstWords returns the first word of each line.
func readFirstWords(in io.Reader) (words []string, err error) {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 0 {
			words = append(words, fields[0])
		}
	}
	return words, lines.Err()
}

// unique removes repeated IDs and keeps the order.
func unique(ids []string) []string {
	seen := make(map[string]bool, len(ids))
	return slices.DeleteFunc(ids, func(id string) bool {
		repeated := seen[id]
		seen[id] = true
		return repeated
	})
}

// forEach calls do for each ID, with a context for one call. All are tried, until the command is
// interrupted. Of several, the errors are printed and counted.
func (s *session) forEach(ctx context.Context, ids []string, changes bool, do func(ctx context.Context, id string) error) error {
	failures := &failures{changes: changes}
	for i, id := range ids {
		err := func() error {
			ctx, cancel := s.limited(ctx)
			defer cancel()
			return do(ctx, id)
		}()
		switch {
		case err == nil:
			continue
		case len(ids) == 1:
			return err
		}
		failures.add(s.streams, err)
		if ctx.Err() != nil {
			printMessage(s.streams, fmt.Sprintf("interrupted after %d of %d", i+1, len(ids)))
			return context.Cause(ctx)
		}
	}
	return failures.result(s.streams, len(ids))
}

// failures counts errors.
type failures struct {
	changes bool
	count   int
	status  int
}

func (f *failures) add(s streams, err error) {
	var reported *reportedError
	if !errors.As(err, &reported) {
		printMessage(s, err.Error())
	}
	status := statusOf(err, f.changes)
	if f.count > 0 && status != f.status {
		status = statusRejected
	}
	f.count, f.status = f.count+1, status
}

func (f *failures) result(s streams, of int) error {
	if f.count == 0 {
		return nil
	}
	printMessage(s, fmt.Sprintf("%d of %d not done", f.count, of))
	return &reportedError{f.status}
}
