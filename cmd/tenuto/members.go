package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
)

// A member is a node as -json shows it.
type member struct {
	Node            string  `json:"node"`
	Address         string  `json:"address"`
	Leader          bool    `json:"leader"`
	Voter           bool    `json:"voter"`
	Behind          *uint64 `json:"behind,omitempty"` // how many journal entries it lacks, if known
	LeadsPartitions []int   `json:"leads,omitempty"`  // with several partitions
	// Liveness says whether the node answers the leader. LastContact is the number of seconds since
	// its last answer.
	Liveness    cluster.Liveness `json:"liveness"`
	LastContact *float64         `json:"lastContactSeconds,omitempty"`
	// Identity is that of its directory, as the cluster has recorded it.
	Identity string `json:"identity,omitempty"`
}

func members(flags *flag.FlagSet) action {
	asJSON := flags.Bool("json", false, "one JSON object per line")
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, _ []string) error {
		members, err := client.Members(ctx)
		if err != nil {
			return err
		}
		write := printMembers
		if *asJSON {
			write = writeMembers
		}
		if err := write(s.out, members); err != nil {
			return err
		}
		if !slices.ContainsFunc(members, func(m cluster.Member) bool { return m.Leader }) {
			return errNoLeader
		}
		return nil
	})
}

// errNoLeader says why the list of members may be incomplete.
var errNoLeader = errors.New("no node leads: this is only what the answering node knows; check that a majority of the voters runs")

// printMembers writes a table whose cells are one word each.
func printMembers(w io.Writer, members []cluster.Member) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tADDRESS\tROLE\tLEADS\tLIVENESS\tCONTACT\tBEHIND")
	for _, m := range members {
		contact, behind := "-", "-"
		if m.Liveness != cluster.MemberUnknown {
			contact = m.LastContact.Round(time.Millisecond).String()
		}
		if m.BehindKnown {
			behind = fmt.Sprint(m.Behind)
		}
		leads := strings.ReplaceAll(strings.Trim(fmt.Sprint(m.LeadsPartitions), "[]"), " ", ",")
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", m.NodeID, cell(m.Address), roleOf(m), cell(leads), m.Liveness, contact, behind)
	}
	return table.Flush()
}

// token issues, lists or revokes tokens. The output of a new token is only the token, so that it
// can be put into a file.
func token(flags *flag.FlagSet) action {
	lifetime := flags.Duration("lifetime", time.Hour, "how long the token is valid")
	list := flags.Bool("list", false, "list the tokens that the cluster knows, instead of issuing one")
	revoke := flags.String("revoke", "", "revoke the token with this `ID`, or this token, instead of issuing one")
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, _ []string) error {
		switch {
		case *list && *revoke != "":
			return &usageError{"-list and -revoke exclude each other"}
		case *list:
			return listTokens(ctx, client, s)
		case *revoke != "":
			return client.RevokeJoinToken(ctx, *revoke)
		}
		token, expires, err := client.IssueJoinToken(ctx, *lifetime)
		if err != nil {
			return err
		}
		fmt.Fprintf(s.err, "valid for one node until %s in cluster time\n", expires.UTC().Format(time.RFC3339))
		_, err = fmt.Fprintln(s.out, token)
		return err
	})
}

// adopt records the directory that a node has now.
func adopt(flags *flag.FlagSet) action {
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
		if err := client.AdoptNode(ctx, args[0], args[1]); err != nil {
			return err
		}
		_, err := fmt.Fprintf(s.out, "node %s now has directory %s; it gets its vote back when it has caught up\n", args[0], args[1])
		return err
	})
}

func listTokens(ctx context.Context, client *cluster.Client, s streams) error {
	tokens, err := client.JoinTokens(ctx)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tEXPIRES\tUSED-BY")
	for _, t := range tokens {
		fmt.Fprintf(table, "%s\t%s\t%s\n", t.ID, t.Expires.UTC().Format(time.RFC3339), cmp.Or(t.UsedBy, "-"))
	}
	return table.Flush()
}

func writeMembers(w io.Writer, members []cluster.Member) error {
	encoder := json.NewEncoder(w)
	for _, m := range members {
		shown := member{Node: m.NodeID, Address: m.Address, Leader: m.Leader, Voter: m.Voter, LeadsPartitions: m.LeadsPartitions, Liveness: m.Liveness, Identity: m.Identity}
		if m.BehindKnown {
			shown.Behind = &m.Behind
		}
		if m.Liveness != cluster.MemberUnknown {
			seconds := m.LastContact.Seconds()
			shown.LastContact = &seconds
		}
		if err := encoder.Encode(shown); err != nil {
			return err
		}
	}
	return nil
}

func roleOf(m cluster.Member) string {
	switch {
	case m.Leader || len(m.LeadsPartitions) > 0:
		return "leader"
	case m.Voter:
		return "follower"
	}
	return "learner"
}
