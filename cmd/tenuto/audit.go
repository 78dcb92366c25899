package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/operate"
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
