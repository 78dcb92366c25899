package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
)

// An instance is an instance as -json shows it.
type instance struct {
	ID             string            `json:"id"`
	State          cluster.State     `json:"state"`
	Name           string            `json:"name"`
	Version        string            `json:"version,omitempty"`
	Execution      uint64            `json:"execution"`
	FirstExecution uint64            `json:"firstExecution"` // of the run
	Events         uint64            `json:"events"`         // of the execution
	CreatedAt      time.Time         `json:"createdAt"`
	UpdatedAt      time.Time         `json:"updatedAt"`
	Parent         string            `json:"parent,omitempty"`
	Attributes     map[string]string `json:"attributes,omitempty"`
	Tags           map[string]string `json:"tags,omitempty"`
	Summary        string            `json:"summary,omitempty"`
	// Only "get" sets the fields below. A payload that is not plain JSON is left out.
	Output       json.RawMessage `json:"output,omitempty"`
	CustomStatus json.RawMessage `json:"customStatus,omitempty"`
	Error        string          `json:"error,omitempty"`
	Mismatch     string          `json:"mismatch,omitempty"`
	Pending      []operation     `json:"pending,omitempty"`
}

// An operation is an open operation, with the fields that apply to its type.
type operation struct {
	Execution      uint64     `json:"execution"`
	EventID        uint64     `json:"eventId"`
	EventType      string     `json:"eventType"` // type of the event that scheduled it
	Name           string     `json:"name,omitempty"`
	Since          time.Time  `json:"since"`
	FireAt         *time.Time `json:"fireAt,omitempty"`
	Child          string     `json:"child,omitempty"`
	Receiver       string     `json:"receiver,omitempty"`
	State          string     `json:"state,omitempty"`
	FailedAttempts int        `json:"failedAttempts,omitempty"`
	LastError      string     `json:"lastError,omitempty"`
	NextAttempt    *time.Time `json:"nextAttempt,omitempty"`
	Buffered       int        `json:"buffered,omitempty"` // events of that name
	Held           bool       `json:"held,omitempty"`
	// Who has paused the activities of that name, and why.
	PausedBy     string     `json:"pausedBy,omitempty"`
	PausedReason string     `json:"pausedReason,omitempty"`
	PausedSince  *time.Time `json:"pausedSince,omitempty"`
}

// newInstance converts a status, without payloads.
func newInstance(s *cluster.Status) *instance {
	i := &instance{
		ID: s.InstanceID, State: s.State, Name: s.Name, Version: s.Version,
		Execution: s.Execution, FirstExecution: s.FirstExecution, Events: s.LastEventID,
		CreatedAt: s.CreatedAt.UTC(), UpdatedAt: s.UpdatedAt.UTC(),
		Parent: s.ParentID, Tags: s.Tags, Attributes: s.Attributes, Summary: s.Summary, Error: errorText(s.Err),
	}
	if s.Mismatch != nil {
		i.Mismatch = s.Mismatch.Error()
	}
	return i
}

// addPayloads adds the output and the custom status. Payloads that need a codec are left out and
// named in notes.
func (i *instance) addPayloads(s *cluster.Status) (notes []string) {
	if s.State == cluster.Completed {
		if err := s.Output(&i.Output); err != nil {
			i.Output, notes = nil, append(notes, fmt.Sprintf("output: %v", err))
		}
	}
	if err := s.CustomStatus(&i.CustomStatus); err != nil {
		i.CustomStatus, notes = nil, append(notes, fmt.Sprintf("custom status: %v", err))
	}
	return notes
}

func (i *instance) addPending(operations []*cluster.OpenOperation) {
	for _, o := range operations {
		i.Pending = append(i.Pending, operation{
			Execution: o.Execution, EventID: o.EventID, EventType: o.EventType, Name: o.Name, Since: o.Since.UTC(),
			FireAt: timeOrNil(o.FireAt), Child: o.ChildID, Receiver: o.Receiver,
			State: string(o.State), FailedAttempts: o.FailedAttempts, LastError: errorText(o.LastError), NextAttempt: timeOrNil(o.NextAttempt),
			Held: o.Held, PausedBy: o.PausedBy, PausedReason: o.PausedReason, PausedSince: timeOrNil(o.PausedSince),
			Buffered: o.Buffered,
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func formatTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }
