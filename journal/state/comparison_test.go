package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/shorttest"
	"github.com/tenuto-dev/tenuto/journal/state/index"
	"github.com/tenuto-dev/tenuto/journal/state/store"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

func applyChange(m *Machine, c *journalpb.MetadataChange) error {
	c.Epoch = m.Epoch()
	_, err := applyRecord(m, must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_MetadataChange{MetadataChange: c}})))
	return err
}

// viewOf takes a view at the next comparison. during runs after the entry and before the pause
// ends.
func viewOf(t testing.TB, m *Machine, during func(*PendingView)) *View {
	t.Helper()
	number, _ := m.Comparison()
	pending, err := m.PrepareView(t.Context(), number+1, during != nil)
	if err != nil {
		t.Fatal(err)
	}
	applied := make(chan error, 1)
	go func() {
		applied <- applyChange(m, &journalpb.MetadataChange{Comparison: &journalpb.Comparison{Number: number + 1}})
	}()
	view, err := pending.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if during != nil {
		during(pending)
		pending.Resume()
	}
	if err := <-applied; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pending.Close)
	return view
}

// replicas are machines that have applied the same records, with flushes of different sizes.
type replicas []*Machine

func newReplicas(t testing.TB, count int, random *rand.Rand) replicas {
	var r replicas
	for range count {
		o := tinyOptions(vfs.NewMem())
		o.machine.FlushBytes = 1 + random.IntN(4000)
		m := openMachine(t, o)
		applyEpoch(t, m)
		if err := applyChange(m, &journalpb.MetadataChange{Protocol: NewestProtocol}); err != nil {
			t.Fatal(err)
		}
		r = append(r, m)
	}
	return r
}

// populate appends to instances: some have ended, some have attempts, timers, buffered events,
// conditions or several executions.
func (r replicas) populate(t testing.TB, count int) (ids []string) {
	t.Helper()
	do := func(f func(*Machine) error) {
		for _, m := range r {
			if err := f(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range count {
		id := fmt.Sprintf("i%03d", i)
		ids = append(ids, id)
		first := started(fmt.Sprint("name", i%3))
		first.GetOrchestrationStarted().Tags = map[string]string{"a": fmt.Sprint(i), "b": "x", "c": "y"}
		begin := segmentOf(1, 1, first, activity(), timer(int64(i)), externalEvent("e"), externalEvent("f"), subscribed("g")) // once: it has a map
		do(func(m *Machine) error { return applyAppend(m, id, begin) })
		switch i % 4 {
		case 0:
			do(func(m *Machine) error { return applyAppend(m, id, segmentOf(1, 7, activityDone(2), completed())) })
		case 1:
			do(func(m *Machine) error { return applyAttempt(m, id, 1, 2, 3) })
			do(func(m *Machine) error { return applyCondition(m, m.Epoch(), id, 0, 1, 6, "stalled") })
		case 2:
			do(func(m *Machine) error {
				return applyAppend(m, id, segmentOf(1, 7, continued()), segmentOf(2, 1, started("next"), activity()))
			})
		}
	}
	return ids
}

// A change is one of the ways in which a store can differ.
var changes = map[string]func(t testing.TB, m *Machine, id string, random *rand.Rand){
	"a byte of an event, with all hashes as if it had been applied so": func(t testing.TB, m *Machine, id string, random *rand.Rand) {
		rewriteHistory(t, m, id, func(events [][]byte) {
			e := new(journalpb.Event)
			at := random.IntN(len(events))
			if err := proto.Unmarshal(events[at], e); err != nil {
				t.Fatal(err)
			}
			e.Timestamp++
			events[at] = must(proto.Marshal(e))
		})
	},
	"a byte of a chunk": func(t testing.TB, m *Machine, id string, random *rand.Rand) {
		rows := rowsOf(t, m, chunkKey{instanceNumber: numberOf(t, m, id)}.appendTo(nil), chunkKey{instanceNumber: numberOf(t, m, id) + 1}.appendTo(nil))
		row := rows[random.IntN(len(rows))]
		row[1][random.IntN(len(row[1]))] ^= 1 << random.IntN(8)
		writeRow(t, m, row[0], row[1])
	},
	"an event is missing": func(t testing.TB, m *Machine, id string, random *rand.Rand) {
		rows := rowsOf(t, m, chunkKey{instanceNumber: numberOf(t, m, id)}.appendTo(nil), chunkKey{instanceNumber: numberOf(t, m, id) + 1}.appendTo(nil))
		writeRow(t, m, rows[random.IntN(len(rows))][0], nil)
	},
	"another status in the header": func(t testing.TB, m *Machine, id string, _ *rand.Rand) {
		key := idKey(nil, keyInstance, id)
		in := must(parseHeader(id, must(verifyValue(key, rowsOf(t, m, key, append(slices.Clone(key), 0))[0][1]))))
		in.status = journalpb.Status_STATUS_TERMINATED
		in.condition = nil
		value := in.appendHeader(nil)
		writeRow(t, m, key, appendValueChecksum(value, 0, key))
	},
	"a byte of the header": func(t testing.TB, m *Machine, id string, random *rand.Rand) {
		key := idKey(nil, keyInstance, id)
		value := rowsOf(t, m, key, append(slices.Clone(key), 0))[0][1]
		value[random.IntN(len(value))] ^= 1 << random.IntN(8)
		writeRow(t, m, key, value)
	},
	"no header": func(t testing.TB, m *Machine, id string, _ *rand.Rand) {
		writeRow(t, m, idKey(nil, keyInstance, id), nil)
	},
}

func numberOf(t testing.TB, m *Machine, id string) uint64 {
	t.Helper()
	key := idKey(nil, keyInstance, id)
	return must(parseHeader(id, must(verifyValue(key, rowsOf(t, m, key, append(slices.Clone(key), 0))[0][1])))).instanceNumber
}

// rowsOf returns the keys and values in a range of the store.
func rowsOf(t testing.TB, m *Machine, from, to []byte) (rows [][2][]byte) {
	t.Helper()
	err := m.store.View("test", func(r store.Reader) (err error) {
		iter, err := r.NewIter(from, to)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, iter.Close()) }()
		for ok := iter.First(); ok; ok = iter.Next() {
			rows = append(rows, [2][]byte{bytes.Clone(iter.Key()), bytes.Clone(must(iter.ValueAndErr()))})
		}
		return iter.Error()
	})
	if err != nil || len(rows) == 0 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	return rows
}

// writeRow sets a row of the store, or removes it if the value is nil.
func writeRow(t testing.TB, m *Machine, key, value []byte) {
	t.Helper()
	err := m.store.Write("test", len(key)+len(value), func(b store.Batch) error {
		if value == nil {
			return b.Delete(key)
		}
		return b.Set(key, value)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// rewriteHistory changes events of the latest execution, as if they had been recorded so.
func rewriteHistory(t testing.TB, m *Machine, id string, change func(events [][]byte)) {
	t.Helper()
	encoded := must(viewOf(t, m, nil).Export(id))
	in := must(decodeInstance(encoded))
	change(in.executions[len(in.executions)-1].events)
	e := instanceEncoder{&capturedInstance{id, in.executions}, nil, in.condition}
	if in.attempts != nil {
		e.attempts = in.sortedAttempts()
	}
	viewOf(t, m, func(p *PendingView) {
		if err := p.ReplaceInstance(id, e.encode(nil)); err != nil {
			t.Fatal(err)
		}
	})
}

// differing returns the instances whose digests differ or that are damaged in the second view.
func differing(t testing.TB, a, b *View) (ids []string) {
	t.Helper()
	first, second := must(a.Compare("", "", 0, 0, true)), must(b.Compare("", "", 0, 0, true))
	of := make(map[string]InstanceDigest)
	for _, d := range first.Each {
		if d.Damage != nil {
			t.Errorf("%s of the first: %+v", d.ID, d.Damage)
		}
		of[d.ID] = d
	}
	for _, d := range second.Each {
		if d.Damage != nil || of[d.ID].Digest != d.Digest {
			ids = append(ids, d.ID)
		}
		delete(of, d.ID)
	}
	for id := range of {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	if damaged := slices.ContainsFunc(second.Each, func(d InstanceDigest) bool { return d.Damage != nil }); !damaged && (first.Digest == second.Digest) != (len(ids) == 0) {
		t.Errorf("the digests of the range are equal: %t, but %q differ", first.Digest == second.Digest, ids)
	}
	return ids
}

// Replicas that applied the same records have the same digests, whatever they have flushed.
func TestView_EqualStatesHaveEqualDigests(t *testing.T) {
	for seed := range uint64(shorttest.SequentialRounds(4)) {
		random := rand.New(rand.NewPCG(seed, 2))
		r := newReplicas(t, 2, random)
		ids := r.populate(t, 40)
		for _, m := range r {
			if _, err := purge(m, ids[0]); err != nil {
				t.Fatal(err)
			}
		}
		a, b := viewOf(t, r[0], nil), viewOf(t, r[1], nil)
		if ids := differing(t, a, b); len(ids) > 0 {
			t.Errorf("%q differ", ids)
		}
		whole := must(a.Compare("", "", 0, 0, false))
		if whole.Instances != 39 || len(whole.Each) != 0 || a.Index != b.Index {
			t.Errorf("%d instances, %d damaged, entries %d and %d", whole.Instances, len(whole.Each), a.Index, b.Index)
		}
		instances := uint64(0)
		for from := ""; ; {
			part := must(a.Compare(from, "", 7, 0, false))
			same := must(b.Compare(from, part.To, 0, 0, false))
			if part.Digest != same.Digest || part.Instances > 7 {
				t.Errorf("from %q to %q: the digests differ, or %d instances", from, part.To, part.Instances)
			}
			instances += part.Instances
			if from = part.To; from == "" {
				break
			}
		}
		if instances != whole.Instances {
			t.Errorf("%d instances in parts", instances)
		}
	}
}

// Every single change is found, in the instance where it is, and nowhere else. The replica is then
// repaired from the other, and everything is as before.
func TestView_FindsAndRepairsAnyChange(t *testing.T) {
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(shorttest.SequentialRounds(8)) {
				random := rand.New(rand.NewPCG(seed, 3))
				r := newReplicas(t, 2, random)
				ids := r.populate(t, 12)
				good, bad := r[0], r[1]
				viewOf(t, bad, nil) // flushes
				changed := ids[random.IntN(len(ids))]
				change(t, bad, changed, random)
				a := viewOf(t, good, nil)
				if got := differing(t, a, viewOf(t, bad, nil)); !slices.Equal(got, []string{changed}) {
					t.Fatalf("%q differ; want %q", got, changed)
				}
				encoded := must(a.Export(changed))
				viewOf(t, bad, func(p *PendingView) {
					if err := p.ReplaceInstance(changed, encoded); err != nil {
						t.Fatal(err)
					}
				})
				// What follows is applied to the copy as to the original.
				if n := len(must(a.EventHashes(changed, 1, 1, 100))); n == 6 {
					for _, m := range r {
						if err := applyAppend(m, changed, segmentOf(1, 7, activity())); err != nil {
							t.Error(err)
						}
					}
				}
				if got := differing(t, viewOf(t, good, nil), viewOf(t, bad, nil)); len(got) > 0 {
					t.Fatalf("%q differ after the repair", got)
				}
				sameAnswers(t, good, bad)
			}
		})
	}
}

// sameAnswers checks that two replicas answer queries and sets alike.
func sameAnswers(t testing.TB, a, b *Machine) {
	t.Helper()
	answers := func(m *Machine) (text string) {
		for _, g := range must(m.CountBy(context.Background(), new(index.Query), index.Grouping{Dimension: index.DimensionState}, index.Grouping{Dimension: index.DimensionName})) {
			text += fmt.Sprintln(g.Values, g.Count)
		}
		for _, in := range must(m.Query(context.Background(), &index.Query{Tags: map[string]string{"b": "x"}}, nil, 100)).Instances {
			text += fmt.Sprintln(in)
		}
		for op := range m.TimersDue(1 << 40) {
			text += fmt.Sprintln(op)
		}
		for in := range m.WithCondition() {
			text += fmt.Sprintln(in.Instance, in.Condition)
		}
		return text
	}
	if x, y := answers(a), answers(b); x != y {
		t.Errorf("answers differ:\n%s\n%s", x, y)
	}
}

// While a view is wanted with a pause, nothing is applied after the comparison until the pause
// ends.
func TestPendingView_PausesAndIsMissed(t *testing.T) {
	m := newReplicas(t, 1, rand.New(rand.NewPCG(1, 1)))[0]
	pending := must(m.PrepareView(t.Context(), 3, true))
	if _, err := m.PrepareView(t.Context(), 4, false); !errors.Is(err, ErrViewMissed) {
		t.Errorf("two at once: %v", err)
	}
	applied := make(chan struct{})
	go func() {
		defer close(applied)
		_ = applyChange(m, &journalpb.MetadataChange{Comparison: &journalpb.Comparison{Number: 3, From: "x"}})
	}()
	view := must(pending.Wait(t.Context()))
	select {
	case <-applied:
		t.Error("the entry after the comparison may be applied")
	default:
	}
	pending.Close()
	<-applied
	if err := pending.ReplaceInstance("i", nil); !errors.Is(err, ErrViewMissed) {
		t.Errorf("replaced after the pause: %v", err)
	}
	if _, err := view.Compare("", "", 0, 0, false); err == nil {
		t.Error("a closed view answers")
	}
	if number, from := m.Comparison(); number != 3 || from != "x" {
		t.Errorf("comparison %d from %q", number, from)
	}
	if _, err := m.PrepareView(t.Context(), 3, false); !errors.Is(err, ErrViewMissed) {
		t.Errorf("recorded before: %v", err)
	}
}

// An instance that is stopped takes no appends, and quarantines survive a restart.
func TestQuarantine_StopsInstance(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		if err := applyAppend(m, "a", segmentOf(1, 1, started("a"))); err != nil {
			t.Fatal(err)
		}
		stop := &journalpb.Quarantine{Instance: "a", Execution: 1, EventId: 2, Reason: "r", Since: 5}
		other := &journalpb.Quarantine{Instance: "a", Node: "n2"}
		for _, q := range []*journalpb.Quarantine{other, stop, stop} {
			if err := applyChange(m, &journalpb.MetadataChange{Quarantine: q}); err != nil {
				t.Fatal(err)
			}
		}
		replaceState(t, m)
		if q := m.Quarantines(); len(q) != 2 || !proto.Equal(q[0], stop) || !proto.Equal(q[1], other) {
			t.Fatalf("quarantines %v", q)
		}
		if err := applyAppend(m, "a", segmentOf(1, 2, activity())); !errors.Is(err, ErrStopped) {
			t.Errorf("append to a stopped instance: %v", err)
		}
		if err := applyAppend(m, "b", segmentOf(1, 1, started("b"))); err != nil {
			t.Error(err)
		}
		if err := applyChange(m, &journalpb.MetadataChange{Lifted: &journalpb.Quarantine{Instance: "a"}}); err != nil {
			t.Fatal(err)
		}
		if err := applyAppend(m, "a", segmentOf(1, 2, activity())); err != nil {
			t.Error(err)
		}
		for i := range quarantinesMax {
			err := applyChange(m, &journalpb.MetadataChange{Quarantine: &journalpb.Quarantine{Instance: fmt.Sprint("q", i), Node: "n"}})
			if (err != nil) != (i == quarantinesMax-1) {
				t.Errorf("quarantine %d: %v", i, err)
			}
		}
	})
}
