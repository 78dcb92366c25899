package main

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/cluster/proof"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// auditRecord is an action as -o json shows it.
type auditRecord struct {
	Time      time.Time         `json:"time"`
	Instance  string            `json:"instance"`
	Execution uint64            `json:"execution"`
	EventID   uint64            `json:"eventId"`
	Type      history.EventType `json:"type"`
	Name      string            `json:"name,omitempty"` // of the event
	Operation uint64            `json:"operation,omitempty"`
	Principal string            `json:"principal,omitempty"`
	Reason    string            `json:"reason,omitempty"`
}

func audit(flags *flag.FlagSet) action {
	var f operate.AuditFilter
	filterOf := filterFlags(flags)
	flags.StringVar(&f.Principal, "principal", "", "actions of the principal `name`, as recorded")
	flags.Func("since", "actions at or after a `time`, or not older than an age like 2h", parseTimeInto(&f.From))
	flags.Func("until", "actions before a `time`, or older than an age", parseTimeInto(&f.Before))
	d := displayFlags(flags, output.Table, output.JSON, output.YAML)
	readOptions := staleFlag(flags)
	return withSession(flags, func(ctx context.Context, s *session, _ []string) (err error) {
		if f.Instances, err = filterOf(s.streams); err != nil {
			return err
		}
		printer := output.NewPrinter(s.out, d.format, auditColumns(d.times()), nil)
		for r, err := range operate.Audit(ctx, s.Client, f, readOptions()...) {
			if err != nil {
				return err
			}
			err = printer.Write(auditRecord{
				Time: r.Event.Time.UTC(), Instance: r.InstanceID, Execution: r.Event.Execution, EventID: r.Event.EventID, Type: r.Event.Type,
				Name: r.Event.Name, Operation: r.Operation, Principal: r.Event.Principal, Reason: r.Event.Reason,
			})
			if err != nil {
				return err
			}
		}
		return printer.Flush()
	})
}

func auditColumns(times output.Times) []output.Column[auditRecord] {
	return []output.Column[auditRecord]{
		{Name: "TIME", Cell: func(r auditRecord) string { return times.Cell(r.Time) }},
		{Name: "ID", Cell: func(r auditRecord) string { return output.Cell(r.Instance) }},
		{Name: "EVENT", Cell: func(r auditRecord) string { return fmt.Sprintf("%d/%d", r.Execution, r.EventID) }},
		{Name: "TYPE", Cell: func(r auditRecord) string { return output.Cell(string(r.Type)) }},
		{Name: "NAME", Cell: func(r auditRecord) string { return output.Cell(r.Name) }},
		{Name: "OPERATION", Cell: func(r auditRecord) string {
			if r.Operation == 0 {
				return "-"
			}
			return fmt.Sprint(r.Operation)
		}},
		{Name: "PRINCIPAL", Cell: func(r auditRecord) string { return output.Cell(r.Principal) }},
		{Name: "REASON", Cell: func(r auditRecord) string { return output.Cell(r.Reason) }},
	}
}

// A comparedPartition is what the comparison of the replicas of a partition has found.
type comparedPartition struct {
	Partition   int          `json:"partition"`
	Instances   uint64       `json:"instances"`
	Events      uint64       `json:"events"`
	Bytes       uint64       `json:"bytes"` // as stored
	Replicas    int          `json:"replicas"`
	Voters      int          `json:"voters"`
	Standbys    int          `json:"standbys"`
	Differences []difference `json:"differences,omitempty"`
}

// A difference is a replica of an instance that differs from the others.
type difference struct {
	Instance  string `json:"instance"`
	Node      string `json:"node,omitempty"` // none: no majority agrees, the instance is stopped
	Execution uint64 `json:"execution"`
	EventID   uint64 `json:"eventId,omitempty"` // the first one that differs; none: all events are equal
	Reason    string `json:"reason"`
	Repaired  bool   `json:"repaired"`
}

func compared(v operate.Verification) comparedPartition {
	p := comparedPartition{Partition: v.Partition, Instances: v.Instances, Events: v.Events, Bytes: v.Bytes, Replicas: v.Replicas, Voters: v.Voters, Standbys: v.Standbys}
	for _, d := range v.Differences {
		p.Differences = append(p.Differences, difference{d.InstanceID, d.NodeID, d.Execution, d.EventID, d.Reason, d.Repaired})
	}
	return p
}

// write prints what was found as text.
func (p comparedPartition) write(to io.Writer) error {
	_, err := fmt.Fprintf(to, "partition %d: %d instances, %d events, replicas of %d of %d voters and %d standbys, %d differences\n",
		p.Partition, p.Instances, p.Events, p.Replicas, p.Voters, p.Standbys, len(p.Differences))
	for _, of := range p.Differences {
		_, lineErr := fmt.Fprintf(to, "  %s event %d/%d on %s: %s%s\n", output.Cell(of.Instance), of.Execution, of.EventID,
			cmp.Or(of.Node, "all: stopped, no majority agrees"), of.Reason, map[bool]string{true: " (repaired)"}[of.Repaired])
		err = errors.Join(err, lineErr)
	}
	return err
}

// verifyReplicas compares all replicas now.
func verifyReplicas(ctx context.Context, s *session, format output.Format) error {
	progress := newProgressLog(s.streams)
	all, err := operate.Verify(ctx, s.Client, func(v operate.Verification) {
		if !v.Done {
			progress.add("partition %d: %d instances, %d events compared %s", v.Partition, v.Instances, v.Events, v.Waits)
		}
	})
	if err != nil {
		return err
	}
	sound := true
	for _, v := range all {
		sound = sound && len(v.Differences) == 0 && v.Replicas == v.Voters
		if format == output.Table {
			err = errors.Join(err, compared(v).write(s.out))
		} else {
			err = errors.Join(err, s.documents(format).Write(compared(v)))
		}
	}
	if err == nil && !sound {
		return &reportedError{statusRejected}
	}
	return err
}

func acceptReplica(flags *flag.FlagSet) action {
	reason, c := reasonFlag(flags), changeFlags(flags, confirmAlways)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
		detail := ""
		if c.dryRun {
			if err := requireVoter(ctx, client, c.verb, args[1]); err != nil {
				return err
			}
			status, err := client.Get(ctx, args[0])
			if err != nil {
				return err
			}
			detail = "the instance is " + string(status.State)
		}
		return c.one(s, args[0], detail, func() error { return operate.AcceptReplica(ctx, client, args[0], args[1], *reason) })
	})
}

func showSigningKey(flags *flag.FlagSet) action {
	return withSession(flags, func(ctx context.Context, s *session, _ []string) error {
		key, _, err := proof.Key(ctx, s.Client)
		if err == nil {
			_, err = fmt.Fprintln(s.out, hex.EncodeToString(key))
		}
		return err
	})
}

func proveHistory(flags *flag.FlagSet) action {
	execution := flags.Uint64("execution", 0, "execution to prove, counted from 1; 0 for the latest")
	return withSession(flags, func(ctx context.Context, s *session, args []string) error {
		return writeWhole(args[1], func(to io.Writer) error { return proof.Prove(ctx, s.Client, args[0], *execution, to) })
	})
}

// checkProof checks a proof without a cluster.
func checkProof(flags *flag.FlagSet) action {
	text := flags.String("key", "", "public `key` of the cluster, as \"tenuto history key\" shows it")
	return func(_ context.Context, s streams, args []string) error {
		key, err := hex.DecodeString(*text)
		if err != nil || len(key) != 0 && len(key) != ed25519.PublicKeySize {
			return &usageError{"-key has 64 hexadecimal digits"}
		}
		if len(key) == 0 {
			key = nil
		}
		file, err := os.Open(args[0])
		if err != nil {
			return &usageError{err.Error()}
		}
		p, err := proof.Check(file, key)
		if err = errors.Join(err, file.Close()); err != nil {
			return err
		}
		trust := ""
		if key == nil {
			trust = " (this key was not checked: give the cluster's with -key)"
		}
		_, err = fmt.Fprintf(s.out, "ok: %s/%d, %d events, cluster %s, partition %d, index %d, on %d of %d voters, signed %s by %s%s\n", p.History.Instance, p.History.Execution,
			len(p.History.Events), p.Cluster, p.Partition, p.Index, p.Replicas, p.Voters, p.Time.Format(time.RFC3339), hex.EncodeToString(p.Key), trust)
		return err
	}
}
