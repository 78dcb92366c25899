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
	restored := w.log.Record().Replicas[1]
	restored.Node, restored.Stale, restored.Complete, restored.Restored = "backup 1", true, false, true
	w.log.Replica(restored)
	w.recover()
	w.log.Leadership(evidence.Leadership{Node: "node", Epoch: 1, Term: 2})
	w.log.Exit(evidence.Exit{Node: "node", Generation: 1, Expected: true})
	dir := t.TempDir()
	if err := w.log.Record().Save(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// recover records a cluster that was recovered at the end, from a survivor that is known to have
// only what was acknowledged before the tally ended.
func (r *recorder) recover() {
	record := r.log.Record()
	recovered := record.Replicas[1]
	recovered.Node, recovered.Stale, recovered.Complete = "recovery 1", true, false
	recovered.Recovery = &evidence.Recovery{
		Lost: r.log.Now(), Survivor: evidence.WithoutEvents(recovered.Instances), Affected: len(recovered.Instances), Nodes: 1,
	}
	for _, call := range record.Calls {
		switch {
		case call.Kind != evidence.Wait:
		case call.Instance == "tally-0":
			recovered.Begin = call.End
		case call.Instance == "fan-0":
			recovered.Recovery.Calls = append(recovered.Recovery.Calls, call)
		}
	}
	r.log.Replica(recovered)
}

func (r *recorder) runAll() {
	r.call(evidence.Start, "chain-0", host.Chain, host.ChainInput{Blob: `<é">`, Value: 7})
	r.call(evidence.Start, "fan-0", host.Fan, host.FanInput{Value: 3})
	r.call(evidence.Start, "tree-0", host.Tree, host.TreeInput{Depth: 2, Value: 3})
	r.call(evidence.Start, "cycle-0", host.Cycle, host.CycleInput{Rounds: 2, PerRound: 2, Delay: 20 * time.Millisecond})
	for _, number := range []string{"a-0", "a-1", "b-0", "b-1"} {
		r.call(evidence.Send, "cycle-0", host.Number, number)
	}
	close(r.sent)
	r.call(evidence.Start, "relay-4", host.Relay, host.RelayInput{First: "relay-4", Value: 5})
	for leg := range host.RelayLegs {
		r.awaitStart(host.LegID("relay-4", leg))
		r.call(evidence.Wait, host.LegID("relay-4", leg), "", nil)
	}
	r.call(evidence.Start, "tally-0", host.Tally, 7)
	r.call(evidence.Update, "tally-0", host.Add, 1)
	r.call(evidence.Update, "tally-0", host.Add, 2)
	r.call(evidence.Send, "tally-0", host.Number, "end")
	r.call(evidence.Wait, "tally-0", "", nil)
	r.callMessages()
	r.call(evidence.Read, "register-0", "", nil)
	r.call(evidence.Start, "register-0", host.Register, nil)
	r.call(evidence.Send, "register-0", host.Number, "x")
	r.call(evidence.Send, "register-0", host.Number, "y")
	r.call(evidence.Read, "register-0", "", nil)
	r.call(evidence.Start, "register-0", host.Register, nil)
	r.call(evidence.Terminate, "register-0", "", nil)
	r.call(evidence.Send, "register-0", host.Number, "z")
	r.call(evidence.Read, "register-0", "", nil)
	r.call(evidence.Start, "chain-1", host.Chain, host.ChainInput{})
	r.call(evidence.Wait, "chain-1", "", nil)
	r.call(evidence.Purge, "chain-1", "", nil)
	r.call(evidence.Start, "chain-2", host.Chain, host.ChainInput{Pause: time.Minute})
	r.call(evidence.Terminate, "chain-2", "", nil)
	r.callAll()
	for _, id := range []string{"chain-0", "fan-0", "tree-0", "cycle-0", "chain-2"} {
		r.call(evidence.Wait, id, "", nil)
	}
}

// callMessages runs a sender with two receivers, and one that does not exist.
func (r *recorder) callMessages() {
	receivers := []string{"receiver-0", "receiver-1"}
	for _, id := range receivers {
		r.call(evidence.Start, id, host.Receiver, []string{})
	}
	r.call(evidence.Start, "sender-0", host.Sender, host.SenderInput{Receivers: append(receivers, "nobody"), Messages: 2, Cancel: "receiver-1"})
	r.call(evidence.Wait, "sender-0", "", nil)
	r.call(evidence.Send, "receiver-0", host.Number, host.End)
	for _, id := range receivers {
		r.call(evidence.Wait, id, "", nil)
	}
}

func (r *recorder) call(kind evidence.Kind, id, name string, input any) {
	r.t.Helper()
	request := evidence.Request{Kind: kind, Instance: id, Name: name}
	switch kind {
	case evidence.Start, evidence.Send, evidence.SendOrStart, evidence.Update:
		r.serial++
		request.RequestID = fmt.Sprint(r.serial)
		encoded, err := json.Marshal(input)
		if err != nil {
			r.t.Fatal(err)
		}
		request.Input = encoded
	}
	r.do(request)
}

func (r *recorder) do(request evidence.Request) {
	r.t.Helper()
	call := evidence.Call{Request: request, Node: "node", Generation: 1, Begin: r.log.Now()}
	call.Answer = host.Execute(r.t.Context(), r.client, request)
	call.End = r.log.Now()
	r.log.Call(call)
}

// awaitStart waits until an instance exists.
func (r *recorder) awaitStart(id string) {
	r.t.Helper()
	for {
		_, err := r.client.Get(r.t.Context(), id)
		if err == nil {
			return
		}
		if !errors.Is(err, cluster.ErrNotFound) {
			r.t.Fatal(err)
		}
		runtime.Gosched()
	}
}

func (r *recorder) collect(request host.ReportRequest) {
	r.t.Helper()
	var reported bytes.Buffer
	begin := r.log.Now()
	if err := host.Report(r.t.Context(), r.node, request, &reported); err != nil {
		r.t.Fatal(err)
	}
	replica, err := evidence.ReadReplica(&reported)
	if err != nil {
		r.t.Fatal(err)
	}
	replica.Node, replica.Stale, replica.Complete = "node", request.Stale, len(request.IDs) == 0
	replica.Begin, replica.End = begin, r.log.Now()
	r.log.Replica(replica)
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
func (ee *evidenceEditor) history(id string, number uint64, change func([]*journalpb.Event) []*journalpb.Event) {
	ee.t.Helper()
	done := false
	var encoded [][]byte
	for r := range ee.Replicas {
		ee.instances(r, id, func(of *evidence.Instance) {
			for e := range of.Executions {
				execution := &of.Executions[e]
				if execution.Number != number {
					continue
				}
				if len(execution.Events) > 0 {
					encoded = encodeAll(ee.t, change(decodeAll(ee.t, execution.Events)))
					execution.Events, done = encoded, true
				}
				execution.Length, execution.Digest = len(encoded), digest(encoded)
			}
		})
	}
	if !done {
		ee.t.Fatalf("there is no %s/%d", id, number)
	}
}

// event changes the first event of a type.
func (ee *evidenceEditor) event(id string, number uint64, eventType int, change func(*journalpb.Event)) {
	ee.t.Helper()
	ee.history(id, number, func(events []*journalpb.Event) []*journalpb.Event {
		for _, event := range events {
			if event.TypeNumber() == eventType {
				change(event)
				return events
			}
		}
		ee.t.Fatalf("%s/%d has no %s", id, number, journalpb.TypeName(eventType))
		return nil
	})
}

// duplicate inserts a copy of the first event of a type before the last event.
func (ee *evidenceEditor) duplicate(id string, number uint64, eventType int) {
	ee.t.Helper()
	ee.history(id, number, func(events []*journalpb.Event) []*journalpb.Event {
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
		ee.t.Fatalf("%s/%d has no %s", id, number, journalpb.TypeName(eventType))
		return nil
	})
}

// instances calls fn for an instance in a replica, if it exists.
func (ee *evidenceEditor) instances(replica int, id string, fn func(*evidence.Instance)) {
	for i := range ee.Replicas[replica].Instances {
		if of := &ee.Replicas[replica].Instances[i]; of.ID == id {
			fn(of)
		}
	}
}

// call returns the n-th call of a kind on an instance.
func (ee *evidenceEditor) call(kind evidence.Kind, id string, n int) *evidence.Call {
	ee.t.Helper()
	for i := range ee.Calls {
		if call := &ee.Calls[i]; call.Kind == kind && call.Instance == id {
			if n--; n < 0 {
				return call
			}
		}
	}
	ee.t.Fatalf("no such %s of %s", kind, id)
	return nil
}

// effect returns the first effect of an instance with that label, started or finished.
func (ee *evidenceEditor) effect(id, label string, finished bool) *evidence.Effect {
	ee.t.Helper()
	for i := range ee.Effects {
		if e := &ee.Effects[i]; e.Instance == id && e.Task.Label == label && e.Finished == finished {
			return e
		}
	}
	ee.t.Fatalf("no such effect of %s", id)
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

// loseInRecovery changes an instance of the recovered cluster, and makes the survivor have no more
// of it.
func (ee *evidenceEditor) loseInRecovery(id, state string, change func(of *evidence.Instance)) {
	ee.t.Helper()
	recovered := &ee.Replicas[4]
	ee.instances(4, id, func(of *evidence.Instance) {
		change(of)
		for i := range of.Executions {
			execution := &of.Executions[i]
			execution.Length, execution.Digest = len(execution.Events), digest(execution.Events)
		}
		had := evidence.WithoutEvents([]evidence.Instance{*of})[0]
		had.State = state
		for i := range recovered.Recovery.Survivor {
			if recovered.Recovery.Survivor[i].ID == id {
				recovered.Recovery.Survivor[i] = had
			}
		}
	})
}

// repeatOnWorker makes an activity of chain-0 begin n more times, on a worker.
func (ee *evidenceEditor) repeatOnWorker(n int) {
	ee.t.Helper()
	effect := ee.effect("chain-0", "link", false)
	effect.Worker = true
	for range n {
		ee.Effects = append(ee.Effects, *effect)
	}
}
