package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/tenuto-dev/tenuto/cluster"
)

// group is a number of instances as -json shows it.
type group struct {
	// By holds the value of each dimension.
	By    map[string]string `json:"by,omitempty"`
	Count uint64            `json:"count"`
}

func count(flags *flag.FlagSet) action {
	filterOf := filterFlags(flags)
	by := flags.String("by", "", "count by `dimensions`, separated by commas: state, name, version, error, tag:KEY, attr:KEY")
	asJSON := flags.Bool("json", false, "one JSON object per line")
	readOptions := staleFlag(flags)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, to streams, _ []string) error {
		f, err := filterOf(to)
		if err != nil {
			return err
		}
		if *by == "" {
			s := &selection{filter: f, asJSON: *asJSON}
			return s.writeCount(ctx, client, to, readOptions())
		}
		dimensions := strings.Split(*by, ",")
		groups, err := client.CountBy(ctx, f, dimensions, readOptions()...)
		if err != nil {
			return err
		}
		table := tabwriter.NewWriter(to.out, 0, 0, 2, ' ', 0)
		encoder := json.NewEncoder(to.out)
		if !*asJSON {
			fmt.Fprintln(table, strings.ToUpper(strings.Join(dimensions, "\t"))+"\tCOUNT")
		}
		for _, g := range groups {
			if *asJSON {
				shown := group{By: make(map[string]string), Count: g.Count}
				for i, value := range g.Values {
					shown.By[dimensions[i]] = value
				}
				err = encoder.Encode(shown)
			} else {
				for _, value := range g.Values {
					fmt.Fprint(table, cell(value), "\t")
				}
				_, err = fmt.Fprintln(table, g.Count)
			}
			if err != nil {
				return err
			}
		}
		return table.Flush()
	})
}
