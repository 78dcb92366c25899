package check

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A recorder runs every workload on an in-memory node and records the evidence.
type recorder struct {
	t      *testing.T
	log    *evidence.Log
	node   *cluster.Node
	client *cluster.Client
	serial int
	// Closed after cycle-0 was sent all its events. The first round ends after that, so that some
	// events are carried over.
	sent chan struct{}
}

// goodEvidence saves the evidence of a run without violations, and returns its directory.
func goodEvidence(t *testing.T) string {
	t.Helper()
	w := &recorder{t: t, log: evidence.NewLog(1), sent: make(chan struct{})}
	worker := &host.Worker{Node: "node", Generation: 1, Report: func(ctx context.Context, e evidence.Effect) error {
		if e.Instance == "cycle-0" && e.Task.Label == "before" && !e.Finished {
			select {
			case <-w.sent:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		e.At = w.log.Now()
		w.log.Effect(e)
		return nil
	}}
	node, err := cluster.Start(t.Context(), cluster.Config{
		InMemory: true, Definitions: worker.Definitions(), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	worker.Self.Store(node)
	w.node, w.client = node, node.Client()
	w.runAll()
	w.collect(host.ReportRequest{IDs: []string{"register-0", "cycle-0"}})
	w.collect(host.ReportRequest{})
	w.collect(host.ReportRequest{Stale: true, Digests: true})
	w.log.Leadership(evidence.Leadership{Node: "node", Epoch: 1, Term: 2})
	w.log.Exit(evidence.Exit{Node: "node", Generation: 1, Expected: true})
	dir := t.TempDir()
	if err := w.log.Record().Save(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (w *recorder) runAll() {
	w.call(evidence.Start, "chain-0", host.Chain, host.ChainInput{Blob: `<é">`, Value: 7})
	w.call(evidence.Start, "fan-0", host.Fan, host.FanInput{Value: 3})
	w.call(evidence.Start, "tree-0", host.Tree, host.TreeInput{Depth: 2, Value: 3})
	w.call(evidence.Start, "cycle-0", host.Cycle, host.CycleInput{Rounds: 2, PerRound: 2, Delay: 20 * time.Millisecond})
	for _, number := range []string{"a-0", "a-1", "b-0", "b-1"} {
		w.call(evidence.Send, "cycle-0", host.Number, number)
	}
	close(w.sent)
	w.call(evidence.Start, "relay-4", host.Relay, host.RelayInput{First: "relay-4", Value: 5})
	for leg := range host.RelayLegs {
		w.awaitStart(host.LegID("relay-4", leg))
		w.call(evidence.Wait, host.LegID("relay-4", leg), "", nil)
	}
	w.call(evidence.Start, "tally-0", host.Tally, 7)
	w.call(evidence.Update, "tally-0", host.Add, 1)
	w.call(evidence.Update, "tally-0", host.Add, 2)
	w.call(evidence.Send, "tally-0", host.Number, "end")
	w.call(evidence.Wait, "tally-0", "", nil)
	w.call(evidence.Read, "register-0", "", nil)
	w.call(evidence.Start, "register-0", host.Register, nil)
	w.call(evidence.Send, "register-0", host.Number, "x")
	w.call(evidence.Send, "register-0", host.Number, "y")
	w.call(evidence.Read, "register-0", "", nil)
	w.call(evidence.Start, "register-0", host.Register, nil)
	w.call(evidence.Terminate, "register-0", "", nil)
	w.call(evidence.Send, "register-0", host.Number, "z")
	w.call(evidence.Read, "register-0", "", nil)
	w.call(evidence.Start, "chain-1", host.Chain, host.ChainInput{})
	w.call(evidence.Wait, "chain-1", "", nil)
	w.call(evidence.Purge, "chain-1", "", nil)
	w.call(evidence.Start, "chain-2", host.Chain, host.ChainInput{Pause: time.Minute})
	w.call(evidence.Terminate, "chain-2", "", nil)
	w.callAll()
	for _, id := range []string{"chain-0", "fan-0", "tree-0", "cycle-0", "chain-2"} {
		w.call(evidence.Wait, id, "", nil)
	}
}

func (w *recorder) call(kind evidence.Kind, id, name string, input any) {
	w.t.Helper()
	request := evidence.Request{Kind: kind, Instance: id, Name: name}
	switch kind {
	case evidence.Start, evidence.Send, evidence.SendOrStart, evidence.Update:
		w.serial++
		request.RequestID = fmt.Sprint(w.serial)
		encoded, err := json.Marshal(input)
		if err != nil {
			w.t.Fatal(err)
		}
		request.Input = encoded
	}
	w.do(request)
}

func (w *recorder) do(request evidence.Request) {
	w.t.Helper()
	call := evidence.Call{Request: request, Node: "node", Generation: 1, Begin: w.log.Now()}
	call.Answer = host.Execute(w.t.Context(), w.client, request)
	call.End = w.log.Now()
	w.log.Call(call)
}

// awaitStart waits until an instance exists.
func (w *recorder) awaitStart(id string) {
	w.t.Helper()
	for {
		_, err := w.client.Get(w.t.Context(), id)
		if err == nil {
			return
		}
		if !errors.Is(err, cluster.ErrNotFound) {
			w.t.Fatal(err)
		}
		runtime.Gosched()
	}
}

func (w *recorder) collect(request host.ReportRequest) {
	w.t.Helper()
	var reported bytes.Buffer
	begin := w.log.Now()
	if err := host.Report(w.t.Context(), w.node, request, &reported); err != nil {
		w.t.Fatal(err)
	}
	replica, err := evidence.ReadReplica(&reported)
	if err != nil {
		w.t.Fatal(err)
	}
	replica.Node, replica.Stale, replica.Complete = "node", request.Stale, len(request.IDs) == 0
	replica.Begin, replica.End = begin, w.log.Now()
	w.log.Replica(replica)
}

// An evidenceEditor changes evidence.
type evidenceEditor struct {
	t *testing.T
	*evidence.Record
}

func editEvidence(t *testing.T, dir string) *evidenceEditor {
	t.Helper()
	record, err := evidence.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return &evidenceEditor{t, record}
}

// history changes the history of one execution, in all replicas.
func (f *evidenceEditor) history(id string, number uint64, change func([]*journalpb.Event) []*journalpb.Event) {
	f.t.Helper()
	done := false
	var encoded [][]byte
	for r := range f.Replicas {
		f.instances(r, id, func(of *evidence.Instance) {
			for e := range of.Executions {
				execution := &of.Executions[e]
				if execution.Number != number {
					continue
				}
				if len(execution.Events) > 0 {
					encoded = encodeAll(f.t, change(decodeAll(f.t, execution.Events)))
					execution.Events, done = encoded, true
				}
				execution.Length, execution.Digest = len(encoded), digest(encoded)
			}
		})
	}
	if !done {
		f.t.Fatalf("there is no %s/%d", id, number)
	}
}

// event changes the first event of a type.
func (f *evidenceEditor) event(id string, number uint64, eventType int, change func(*journalpb.Event)) {
	f.t.Helper()
	f.history(id, number, func(events []*journalpb.Event) []*journalpb.Event {
		for _, event := range events {
			if event.TypeNumber() == eventType {
				change(event)
				return events
			}
		}
		f.t.Fatalf("%s/%d has no %s", id, number, journalpb.TypeName(eventType))
		return nil
	})
}

// duplicate inserts a copy of the first event of a type before the last event.
func (f *evidenceEditor) duplicate(id string, number uint64, eventType int) {
	f.t.Helper()
	f.history(id, number, func(events []*journalpb.Event) []*journalpb.Event {
		last := len(events) - 1
		for _, event := range events {
			if event.TypeNumber() == eventType {
				repeated := proto.CloneOf(event)
				repeated.EventId, repeated.Timestamp = events[last].EventId, events[last].Timestamp
				terminal := proto.CloneOf(events[last])
				terminal.EventId++
				return append(events[:last:last], repeated, terminal)
			}
		}
		f.t.Fatalf("%s/%d has no %s", id, number, journalpb.TypeName(eventType))
		return nil
	})
}

// instances calls fn for an instance in a replica, if it exists.
func (f *evidenceEditor) instances(replica int, id string, fn func(*evidence.Instance)) {
	for i := range f.Replicas[replica].Instances {
		if of := &f.Replicas[replica].Instances[i]; of.ID == id {
			fn(of)
		}
	}
}

// call returns the n-th call of a kind on an instance.
func (f *evidenceEditor) call(kind evidence.Kind, id string, n int) *evidence.Call {
	f.t.Helper()
	for i := range f.Calls {
		if call := &f.Calls[i]; call.Kind == kind && call.Instance == id {
			if n--; n < 0 {
				return call
			}
		}
	}
	f.t.Fatalf("no such %s of %s", kind, id)
	return nil
}

// effect returns the first effect of an instance with that label, started or finished.
func (f *evidenceEditor) effect(id, label string, finished bool) *evidence.Effect {
	f.t.Helper()
	for i := range f.Effects {
		if e := &f.Effects[i]; e.Instance == id && e.Task.Label == label && e.Finished == finished {
			return e
		}
	}
	f.t.Fatalf("no such effect of %s", id)
	return nil
}

func decodeAll(t *testing.T, encoded [][]byte) (events []*journalpb.Event) {
	t.Helper()
	for _, one := range encoded {
		event := new(journalpb.Event)
		if err := proto.Unmarshal(one, event); err != nil {
			t.Fatal(err)
		}
		events = append(events, event)
	}
	return events
}

func encodeAll(t *testing.T, events []*journalpb.Event) (encoded [][]byte) {
	t.Helper()
	for _, event := range events {
		one, err := proto.MarshalOptions{Deterministic: true}.Marshal(event)
		if err != nil {
			t.Fatal(err)
		}
		encoded = append(encoded, one)
	}
	return encoded
}

func digest(encoded [][]byte) string {
	hash := sha256.New()
	for _, one := range encoded {
		_, _ = hash.Write(binary.AppendUvarint(nil, uint64(len(one))))
		_, _ = hash.Write(one)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

func registry(t *testing.T) *engine.Registry {
	t.Helper()
	r, err := engine.NewRegistry(host.Orchestrations()...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
