package state

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/shorttest"
	"github.com/tenuto-dev/tenuto/journal/state/index"
	"github.com/tenuto-dev/tenuto/journal/state/store"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// queryAll pages through a result and returns its rows.
func queryAll(t testing.TB, m *Machine, q *index.Query, limit int) []*index.Row {
	t.Helper()
	var rows []*index.Row
	var after *index.Cursor
	for {
		page, err := m.Query(t.Context(), q, after, limit)
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Rows) > limit || len(page.Rows) != len(page.Instances) {
			t.Fatalf("a page of %d has %d rows and %d instances", limit, len(page.Rows), len(page.Instances))
		}
		for i, row := range page.Rows {
			if page.Instances[i].Instance != row.ID {
				t.Fatalf("row %s with instance %s", row.ID, page.Instances[i].Instance)
			}
		}
		rows = append(rows, page.Rows...)
		if !page.More {
			return rows
		}
		if after != nil && q.Compare(page.Next, *after) <= 0 {
			t.Fatalf("the page after %v ends at %v", after, page.Next)
		}
		after = &page.Next
	}
}

// reference is the result of a query by its definition.
func reference(m *Machine, q *index.Query) []*index.Row {
	var rows []*index.Row
	for c := range m.members(allInstances, new(error)) {
		_, _ = m.viewMember(&c, func(in *instance) {
			if row := in.row(); q.Matches(row) {
				rows = append(rows, row)
			}
		})
	}
	slices.SortFunc(rows, func(a, b *index.Row) int { return q.Compare(q.CursorOf(a), q.CursorOf(b)) })
	return rows
}

func describeRows(rows []*index.Row) string {
	var b strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&b, "%+v\n", *r)
	}
	return b.String()
}

func failedWith(code string) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationFailed{OrchestrationFailed: &journalpb.OrchestrationFailed{Error: &journalpb.Error{Code: code}}}}
}

func namedChild(name, id string) *journalpb.Event {
	e := child(id)
	e.GetSubOrchestrationScheduled().Name = name
	return e
}

// applyFailedAttempt records failed attempts of an operation with an error code.
func applyFailedAttempt(m *Machine, instance string, execution, event uint64, failed uint32, code string) error {
	known, _ := m.Instance(instance)
	_, err := applyRecord(m, must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_Attempt{Attempt: &journalpb.Attempt{
		Ref:   &journalpb.OperationRef{Instance: instance, Execution: execution, EventId: event, Incarnation: known.GetIncarnation()},
		Epoch: m.Epoch(), Failed: failed, LastError: &journalpb.Error{Code: code},
	}}})))
	return err
}

func protocolFour(t testing.TB, m *Machine) {
	t.Helper()
	if _, err := applyRecord(m, must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_MetadataChange{
		MetadataChange: &journalpb.MetadataChange{Epoch: m.Epoch(), Protocol: 4},
	}}))); err != nil {
		t.Fatal(err)
	}
}

// Rows show the same whether an instance is in memory, written, or restored.
func TestQuery_RowHasEveryField(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		protocolFour(t, m)
		start := startedBy("p", 1, 2)
		start.GetOrchestrationStarted().Tags = map[string]string{"k": "v"}
		for _, err := range []error{
			applyAppend(m, "a", segmentOf(1, 1, start, activity(), timer(70), subscribed("go"), namedChild("sub", "b"), attributeSet("tenant", "acme"))),
			applyFailedAttempt(m, "a", 1, 2, 3, "io"),
			applyAppend(m, "b", segmentOf(1, 1, started("b"), failedWith("boom"))),
			applyAppend(m, "c", segmentOf(1, 1, started("c"), suspended())),
			applyAppend(m, "d", segmentOf(1, 1, started("d"))),
			applyCondition(m, m.Epoch(), "d", 0, 1, 1, "here"),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		want := describeRows([]*index.Row{
			{
				ID: "a", Name: "child", Version: "v1", State: index.Running, Created: 1001, Updated: 1006, ParentID: "p",
				Tags: map[string]string{"k": "v"}, Attributes: map[string]string{"tenant": "acme"},
				Waits: []index.Wait{
					{Kind: index.Activity, Name: "charge", Since: 1002, Failed: 3, ErrorCode: "io"},
					{Kind: index.Timer, Since: 1003, FireAt: 70},
					{Kind: index.Event, Name: "go", Since: 1004},
					{Kind: index.Child, Name: "sub", Since: 1005},
				},
			},
			{ID: "b", Name: "b", Version: "v1", State: index.Failed, Created: 1001, Updated: 1002, Ended: 1002, ErrorCode: "boom"},
			{ID: "c", Name: "c", Version: "v1", State: index.Suspended, Created: 1001, Updated: 1002},
			{ID: "d", Name: "d", Version: "v1", State: index.Stalled, Created: 1001, Updated: 1001},
		})
		if got := describeRows(queryAll(t, m, &index.Query{}, 3)); got != want {
			t.Errorf("rows\n%swant\n%s", got, want)
		}
		if in, _ := m.Instance("b"); in.ErrorCode != "boom" {
			t.Errorf("the error code is %q", in.ErrorCode)
		}
		if err := applyAppend(m, "b", segmentOf(2, 1, started("b"))); err != nil {
			t.Fatal(err)
		}
		if in, _ := m.Instance("b"); in.ErrorCode != "" {
			t.Errorf("the next run has the error code %q", in.ErrorCode)
		}
	})
}

// randomQuery returns a query with up to three conditions, of values that the instances have.
func randomQuery(r *rand.Rand, rows []*index.Row) *index.Query {
	q := &index.Query{Order: index.Order(r.IntN(5)), Descending: r.IntN(2) == 0}
	if r.IntN(4) == 0 {
		q.Has = index.Order(r.IntN(5))
	}
	if len(rows) == 0 {
		return q
	}
	for range r.IntN(4) {
		addRandomCondition(r, q, rows[r.IntN(len(rows))])
	}
	return q
}

func addRandomCondition(r *rand.Rand, q *index.Query, of *index.Row) {
	switch r.IntN(13) {
	case 0:
		q.States = append(q.States, of.State, index.State(1+r.IntN(9)))
	case 1:
		q.Name = of.Name
	case 2:
		q.Version = of.Version
	case 3:
		q.IDPrefix = of.ID[:r.IntN(len(of.ID)+1)]
	case 4:
		q.ParentID = of.ParentID
	case 5:
		q.ErrorCode = of.ErrorCode
	case 6:
		q.Tags = randomPart(r, of.Tags)
	case 7:
		q.Attributes = randomPart(r, of.Attributes)
	case 8:
		q.Created = randomInterval(r, of.Created)
	case 9:
		q.Updated = randomInterval(r, of.Updated)
	case 10:
		q.Ended = randomInterval(r, of.Ended)
	case 11:
		q.Waiting = randomWaiting(r, of)
	case 12:
		q.Failing = &index.Failing{Attempts: uint32(r.IntN(4)), ErrorCode: []string{"", "io", "down"}[r.IntN(3)]}
	}
}

func randomWaiting(r *rand.Rand, of *index.Row) *index.Waiting {
	w := &index.Waiting{Kind: index.Kind(r.IntN(5))}
	if len(of.Waits) > 0 {
		wait := of.Waits[r.IntN(len(of.Waits))]
		if r.IntN(3) > 0 {
			w.Kind = wait.Kind
		}
		if r.IntN(2) == 0 {
			w.Name = wait.Name
		}
		if r.IntN(2) == 0 {
			w.Since = randomInterval(r, wait.Since)
		}
	}
	return w
}

func randomPart(r *rand.Rand, of map[string]string) map[string]string {
	part := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(of)) {
		if r.IntN(2) == 0 {
			part[key] = of[key]
		}
	}
	return part
}

func randomInterval(r *rand.Rand, around int64) (i index.Interval) {
	if r.IntN(3) > 0 {
		i.From = around - int64(r.IntN(10))
	}
	if r.IntN(3) > 0 {
		i.Before = around + int64(r.IntN(10))
	}
	return i
}

// checkQueries compares random queries and counts with their definition.
func checkQueries(t testing.TB, m *Machine, r *rand.Rand, queries int) {
	t.Helper()
	all := reference(m, &index.Query{})
	for range queries {
		q := randomQuery(r, all)
		got, want := describeRows(queryAll(t, m, q, 1+r.IntN(8))), describeRows(reference(m, q))
		if got != want {
			t.Fatalf("query %s:\n%swant\n%s", describeQuery(q), got, want)
		}
		checkCounts(t, m, q, r)
	}
}

func describeQuery(q *index.Query) string {
	text := fmt.Sprintf("%+v", *q)
	if q.Waiting != nil {
		text += fmt.Sprintf(" waiting %+v", *q.Waiting)
	}
	if q.Failing != nil {
		text += fmt.Sprintf(" failing %+v", *q.Failing)
	}
	return text
}

func checkCounts(t testing.TB, m *Machine, q *index.Query, r *rand.Rand) {
	t.Helper()
	by := []index.Grouping{
		{Dimension: index.DimensionState},
		{Dimension: index.DimensionName},
		{Dimension: index.DimensionVersion},
		{Dimension: index.DimensionErrorCode},
		{Dimension: index.DimensionTag, Key: "k"},
		{Dimension: index.DimensionAttribute, Key: "tenant"},
	}[r.IntN(3):][:r.IntN(4)]
	got, err := m.CountBy(t.Context(), q, by...)
	if err != nil {
		t.Fatal(err)
	}
	want := index.NewCounts(by)
	for _, row := range reference(m, q) {
		if err := want.Add(row, 1); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.EqualFunc(got, want.Groups(), func(a, b index.Group) bool { return a.Count == b.Count && slices.Equal(a.Values, b.Values) }) {
		t.Fatalf("count of %s by %v: %v, want %v", describeQuery(q), by, got, want.Groups())
	}
}

func TestQuery_EndsWithContext(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		if err := applyAppend(m, "a", segmentOf(1, 1, started("a"))); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := m.Query(ctx, &index.Query{}, nil, 1); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if _, err := m.CountBy(ctx, &index.Query{Created: index.Interval{From: 1}}); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// queryModel applies random records to instances with everything that can be queried.
type queryModel struct {
	r     *rand.Rand
	m     *Machine
	clock uint64 // makes timestamps differ between executions, and collide at times; from 1, as 0 means not ended
}

// step applies a random record, which may be rejected.
func (q *queryModel) step(t testing.TB) {
	id := fmt.Sprintf("i-%02d", q.r.IntN(40))
	in, known := q.m.Instance(id)
	var err error
	switch {
	case !known || in.Status != journalpb.Status_STATUS_RUNNING:
		if known && q.r.IntN(2) == 0 {
			_, err = purge(q.m, id)
			break
		}
		events := []*journalpb.Event{q.start(in)}
		if q.r.IntN(4) == 0 {
			events = append(events, completed())
		}
		err = q.apply(id, in.GetExecution()+1, 1, events...)
	case q.r.IntN(6) == 0:
		err = applyCondition(q.m, q.m.Epoch(), id, in.Incarnation, in.Execution, in.LastEventId, []string{"", "here"}[q.r.IntN(2)])
	default:
		err = q.change(id, in)
	}
	var closed *ClosedError
	if err != nil && !errors.As(err, &closed) {
		t.Fatal(err)
	}
}

func (q *queryModel) apply(id string, execution, first uint64, events ...*journalpb.Event) error {
	return applyAppend(q.m, id, q.segment(execution, first, events...))
}

// continueAsNew begins the next execution of a run, with other tags.
func (q *queryModel) continueAsNew(id string, in *journalpb.Instance) error {
	e := q.start(in)
	e.GetOrchestrationStarted().Incarnation = in.Incarnation
	return applyAppend(q.m, id, q.segment(in.Execution, in.LastEventId+1, continued()), q.segment(in.Execution+1, 1, e))
}

func (q *queryModel) segment(execution, first uint64, events ...*journalpb.Event) *journalpb.Segment {
	s := &journalpb.Segment{Execution: execution, FirstEventId: first}
	for i, e := range events {
		q.clock += uint64(q.r.IntN(3))
		e.EventId, e.Timestamp = first+uint64(i), int64(q.clock)
		s.Events = append(s.Events, must(proto.Marshal(e)))
	}
	return s
}

func (q *queryModel) start(before *journalpb.Instance) *journalpb.Event {
	e := started([]string{"order", "ship"}[q.r.IntN(2)])
	s := e.GetOrchestrationStarted()
	s.Version, s.Incarnation = []string{"v1", "v2"}[q.r.IntN(2)], before.GetIncarnation()+1
	if q.r.IntN(2) == 0 {
		s.Tags = map[string]string{"k": []string{"a", "b"}[q.r.IntN(2)], "l": "x"}
	}
	if q.r.IntN(4) == 0 {
		s.Parent = &journalpb.OperationRef{Instance: []string{"p", "p2"}[q.r.IntN(2)], Execution: 1, EventId: 2}
	}
	return e
}

func (q *queryModel) change(id string, in *journalpb.Instance) error {
	var open []*journalpb.Operation
	for op := range q.m.InstanceOperations(id) {
		open = append(open, op)
	}
	next := in.LastEventId + 1
	one := func(events ...*journalpb.Event) error { return q.apply(id, in.Execution, next, events...) }
	if len(open) > 0 && q.r.IntN(3) == 0 {
		op := open[q.r.IntN(len(open))]
		if op.Kind == journalpb.TypeActivityScheduled && q.r.IntN(2) == 0 {
			return applyFailedAttempt(q.m, id, in.Execution, op.Ref.EventId, op.Attempt.GetFailed()+uint32(q.r.IntN(3)), []string{"", "io", "down"}[q.r.IntN(3)])
		}
		return one(canceled(op.Ref.EventId))
	}
	switch q.r.IntN(11) {
	case 10:
		return q.continueAsNew(id, in)
	case 0:
		return one(completed())
	case 1:
		return one(failedWith([]string{"", "boom", "bust"}[q.r.IntN(3)]))
	case 2:
		return one(suspended())
	case 3:
		return one(resumed())
	case 4:
		return one(timer(int64(q.r.IntN(50))))
	case 5:
		return one(subscribed([]string{"go", "stop"}[q.r.IntN(2)]))
	case 6:
		return one(namedChild([]string{"order", "ship"}[q.r.IntN(2)], "x"))
	case 7:
		return one(attributeSet("tenant", []string{"", "acme", "zeta"}[q.r.IntN(3)]), attributeSet("other", "1"))
	}
	a := activity()
	a.GetActivityScheduled().Name = []string{"charge", "pack"}[q.r.IntN(2)]
	return one(a)
}

// searchDivisors leave the search for a page everything, little, or next to nothing.
var searchDivisors = []int{1, 300, 8 << 10}

func TestQuery_MatchesDefinition(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		for seed := range uint64(4) {
			q := &queryModel{r: rand.New(rand.NewPCG(seed, 1)), m: newMachine(t), clock: 1}
			q.m.options.searchDivisor = searchDivisors[seed%uint64(len(searchDivisors))]
			protocolFour(t, q.m)
			for range max(shorttest.SequentialRounds(40), 15) {
				for range 10 {
					q.step(t)
				}
				checkQueries(t, q.m, q.r, 5)
			}
		}
	})
}

// openQueryModel opens a machine on a file system; indexing an older store takes many flushes.
func openQueryMachine(t testing.TB, fs vfs.FS, divisor int) *Machine {
	t.Helper()
	o := tinyOptions(fs)
	o.machine.indexStep, o.machine.searchDivisor = 3, divisor
	m, err := o.open()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// writeAsOlderBuild removes from a closed store what a build before the index does not write, as if
// such a build had written all of it or, with keep, only its last flush.
func writeAsOlderBuild(t testing.TB, m *Machine, keep bool) {
	t.Helper()
	type change struct{ key, value []byte }
	var changes []change
	err := m.store.view("read", 0, func(from store.Reader) error {
		for _, kind := range []byte{keyInstance, keyMeta} {
			if err := scanRecords(from, []byte{kind}, endOfKind(kind), func(key, record []byte) (bool, error) {
				rest := withoutNewFields(kind, record)
				key = slices.Clone(key)
				changes = append(changes, change{key, appendValueChecksum(rest, 0, key)})
				return true, nil
			}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	err = m.store.Write("write", 0, func(b store.Batch) error {
		for _, c := range changes {
			if err := b.Set(c.key, c.value); err != nil {
				return err
			}
		}
		if keep {
			return nil
		}
		return errors.Join(b.DeleteRange([]byte{index.KindByID}, endOfKind(index.KindList)), b.DeleteRange([]byte{keyFacet}, endOfKind(keyFacet)))
	})
	if err := errors.Join(err, m.store.Sync()); err != nil {
		t.Fatal(err)
	}
}

// withoutNewFields removes the fields of the index from a header or the meta record.
func withoutNewFields(kind byte, record []byte) (rest []byte) {
	for len(record) > 0 {
		number, wire, n := protowire.ConsumeTag(record)
		size := n + protowire.ConsumeFieldValue(number, wire, record[n:])
		switch {
		case kind == keyMeta && number == fieldStoreIndexed, kind == keyInstance && number >= fieldHeaderErrorCode:
		case kind == keyInstance && number == fieldHeaderOperation:
			op, _ := protowire.ConsumeBytes(record[n:size])
			rest = appendNested(rest, number, func(b []byte) []byte { return append(b, withoutOperationFields(op)...) })
		default:
			rest = append(rest, record[:size]...)
		}
		record = record[size:]
	}
	return rest
}

func withoutOperationFields(op []byte) (rest []byte) {
	eachOperationField := func(number protowire.Number, field []byte) {
		if number < fieldFifth {
			rest = append(rest, field...)
		}
	}
	for len(op) > 0 {
		number, wire, n := protowire.ConsumeTag(op)
		size := n + protowire.ConsumeFieldValue(number, wire, op[n:])
		eachOperationField(number, op[:size])
		op = op[size:]
	}
	return rest
}

// awaitIndex flushes until the index is complete.
func awaitIndex(t testing.TB, m *Machine) {
	t.Helper()
	for range 1000 {
		m.mu.Lock()
		complete, current := m.indexState.complete, m.current
		m.mu.Unlock()
		if complete {
			return
		}
		if current == nil {
			t.Fatal("nothing builds the index")
		}
		<-current.done
	}
	t.Fatal("the index is not complete after 1000 flushes")
}

// checkIndexKeys compares the keys of the index, the sets and the timers, and the counts, in the
// store with what the headers require.
func checkIndexKeys(t testing.TB, m *Machine) {
	t.Helper()
	release, err := m.blockFlushes()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	m.mu.RLock()
	defer m.mu.RUnlock()
	want, counts := map[string]bool{}, map[index.Facet]uint64{}
	var got []string
	err = m.store.view("read", 0, func(from store.Reader) error {
		if err := scanRecords(from, []byte{keyInstance}, endOfKind(keyInstance), func(key, record []byte) (bool, error) {
			in, err := parseHeader(string(key[1:]), record)
			if err != nil || in.indexedIn != m.indexState.generation {
				return false, fmt.Errorf("header of %s: indexed in %d: %w", key[1:], in.indexedIn, err)
			}
			f := index.Facet{State: in.runState(), Name: in.name, Version: in.version}
			counts[f]++
			index.EntriesOf(in.row(), m.facets.byFacet[f].number).Each(in.id, nil, func(key, value []byte) { want[string(key)+string(value)] = true })
			for kind := range in.memberships().kinds() {
				want[string(idKey(nil, kind, in.id))] = true
			}
			for _, open := range in.appendTimers(nil) {
				want[string(open.appendTo(nil))] = true
			}
			return true, nil
		}); err != nil {
			return err
		}
		for _, kind := range append([]byte{keyBusy, keyUnbegun, keyChild, keyCondition, keyTimer}, index.Kinds...) {
			if err := scanRecords(from, []byte{kind}, endOfKind(kind), func(key, record []byte) (bool, error) {
				got = append(got, string(key)+string(record))
				return true, nil
			}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range got {
		if !want[key] {
			t.Fatalf("stale key %q", key)
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%d keys, want %d", len(got), len(want))
	}
	for _, f := range m.facets.all {
		if f.stored != counts[f.Facet] {
			t.Fatalf("%d instances of %v are stored as %d", counts[f.Facet], f.Facet, f.stored)
		}
	}
}

// Whatever happens to a store, queries and counts are right: crashes, restarts, purges, installed
// checkpoints, and flushes by older builds.
func TestQuery_MatchesDefinitionAfterRestarts(t *testing.T) {
	for seed := range uint64(shorttest.SequentialRounds(4)) {
		r := rand.New(rand.NewPCG(seed, 9))
		fs := vfs.NewCrashableMem()
		divisor := searchDivisors[seed%uint64(len(searchDivisors))]
		q := &queryModel{r: r, m: openQueryMachine(t, fs, divisor), clock: 1}
		applyEpoch(t, q.m)
		protocolFour(t, q.m)
		for round := range max(shorttest.SequentialRounds(30), 10) {
			for range 1 + r.IntN(40) {
				q.step(t)
			}
			checkQueries(t, q.m, r, 2)
			at, _ := q.m.Applied()
			switch r.IntN(6) {
			case 0:
				if err := q.m.Flush(t.Context(), at); err != nil {
					t.Fatal(err)
				}
				awaitIndex(t, q.m)
				checkIndexKeys(t, q.m)
			case 1:
				closed(t, q.m)
				q.m = openQueryMachine(t, fs, divisor)
			case 2:
				abandoned := q.m
				fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.IntN(2) * 50, RNG: r})
				q.m = openQueryMachine(t, fs, divisor)
				closed(t, abandoned)
				if at, _ := q.m.Applied(); at == 0 {
					applyEpoch(t, q.m)
					protocolFour(t, q.m)
				}
			case 3, 4:
				closedAsOlderBuild(t, q.m, r)
				q.m = openQueryMachine(t, fs, divisor)
				checkQueries(t, q.m, r, 2)
			case 5:
				name := fmt.Sprint("checkpoint-", round)
				if _, err := q.m.Checkpoint(name); err != nil {
					t.Fatal(err)
				}
				for range r.IntN(20) {
					q.step(t)
				}
				if err := q.m.Install(func(to string) error { return copyFiles(fs, name, to) }); err != nil {
					t.Fatal(err)
				}
			}
			checkQueries(t, q.m, r, 2)
		}
		awaitIndex(t, q.m)
		checkIndexKeys(t, q.m)
		closed(t, q.m)
	}
}

func closed(t testing.TB, m *Machine) {
	t.Helper()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
}

// closedAsOlderBuild closes a machine whose last flush was that of an older build.
func closedAsOlderBuild(t testing.TB, m *Machine, r *rand.Rand) {
	t.Helper()
	at, _ := m.Applied()
	m.DisablePacing()
	if err := m.Flush(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	release, err := m.blockFlushes()
	if err != nil {
		t.Fatal(err)
	}
	writeAsOlderBuild(t, m, r.IntN(2) == 0)
	release()
	closed(t, m)
}
