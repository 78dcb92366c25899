package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay/history"
)

func exportHistory(flags *flag.FlagSet) action {
	execution := flags.Uint64("execution", 0, "execution to export, counted from 1; 0 for the latest")
	file := flags.String("o", "", "`file` to write to instead of the standard output")
	readOptions := staleFlag(flags)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
		if *file == "" {
			return client.Export(ctx, args[0], *execution, s.out, readOptions()...)
		}
		var text bytes.Buffer
		if err := client.Export(ctx, args[0], *execution, &text, readOptions()...); err != nil {
			return err
		}
		return os.WriteFile(*file, text.Bytes(), 0o666)
	})
}

func checkHistories(*flag.FlagSet) action {
	return func(_ context.Context, s streams, files []string) error {
		invalid := 0
		for _, file := range files {
			h, err := readHistory(s, file)
			if err == nil {
				err = check(h)
			}
			if err != nil {
				invalid++
				fmt.Fprintf(s.out, "%s: %v\n", file, err)
				continue
			}
			fmt.Fprintf(s.out, "%s: ok: %s/%d, events: %d, last: %s\n", file, h.Instance, h.Execution, len(h.Events), h.Events[len(h.Events)-1].Type)
		}
		if invalid > 0 {
			return fmt.Errorf("%d of %d files failed the check", invalid, len(files))
		}
		return nil
	}
}

// readHistory reads a file, or the standard input for "-".
func readHistory(s streams, file string) (*history.History, error) {
	if file == "-" {
		return history.Read(s.in)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return history.Read(bytes.NewReader(text))
}
