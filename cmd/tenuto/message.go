package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
	"github.com/tenuto-dev/tenuto/replay"
)

func send(flags *flag.FlagSet) action {
	requestID := flags.String("request-id", "", "`ID` of the request: repeated with it, the command sends nothing else")
	reasonFlag(flags)
	c := changeFlags(flags, confirmNever)
	usage := &usage{"send", "ID EVENT [DATA]"}
	return withSession(flags, func(ctx context.Context, s *session, args []string) error {
		if args[0] == fromInput && len(args) == 3 && args[2] == fromInput {
			return &usageError{"only one of ID and DATA can come from the standard input"}
		}
		ids, err := readIDs(usage, s.streams, args[:1])
		if err != nil {
			return err
		}
		data, err := optionalValue(s.streams, "data", args, 2)
		if err != nil {
			return err
		}
		var options []replay.Option
		if *requestID != "" {
			options = append(options, cluster.RequestID(*requestID))
		}
		event := replay.Event[json.RawMessage](args[1])
		return c.run(ctx, s, ids, c.onRunning(s, func(ctx context.Context, id string) error {
			return cluster.Send(ctx, s.Client, id, event, data, options...)
		}))
	})
}

func query(flags *flag.FlagSet) action {
	var format output.Format
	formatFlag(flags, &format, output.JSON, output.YAML)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
		input, err := optionalValue(s, "input", args, 2)
		if err != nil {
			return err
		}
		answer, err := cluster.Query(ctx, client, args[0], replay.Query[json.RawMessage, json.RawMessage](args[1]), input)
		if err != nil {
			return err
		}
		return s.documents(format).Write(answer)
	})
}

func update(flags *flag.FlagSet) action {
	requestID := flags.String("request-id", "", "`ID` of the request: repeated with it, the command waits for the same result")
	reasonFlag(flags)
	dryRun := flags.Bool("dry-run", false, "check the input and that the instance runs, and do nothing")
	var format output.Format
	formatFlag(flags, &format, output.JSON, output.YAML)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
		input, err := optionalValue(s, "input", args, 2)
		if err != nil {
			return err
		}
		if *dryRun {
			status, err := getRunning(ctx, client, "update", args[0])
			if err == nil {
				_, err = fmt.Fprintf(s.out, "would update %s, %s (%s)\n", args[0], output.Line(args[1]), status.State)
			}
			return err
		}
		var options []replay.Option
		if *requestID != "" {
			options = append(options, cluster.RequestID(*requestID))
		}
		result, err := cluster.CallUpdate(ctx, client, args[0], replay.Update[json.RawMessage, json.RawMessage](args[1]), input, options...)
		if err != nil {
			return err
		}
		return s.documents(format).Write(result)
	})
}
