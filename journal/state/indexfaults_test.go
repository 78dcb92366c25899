package state

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tenuto-dev/tenuto/journal/state/index"
	"github.com/tenuto-dev/tenuto/journal/state/pebblestore"
	"github.com/tenuto-dev/tenuto/journal/state/store"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// roomyOptions keep everything in memory, and flush only on demand.
func roomyOptions(fs vfs.FS) machineOptions {
	o := tinyOptions(fs)
	o.machine = Options{}
	return o
}

func flushNow(t testing.TB, m *Machine) {
	t.Helper()
	at, _ := m.Applied()
	if err := m.Flush(t.Context(), at); err != nil {
		t.Fatal(err)
	}
}

// hookedStore is a store with code before writes, after reads, and before the iterators of a read.
type hookedStore struct {
	testStore
	afterView   func(op string)
	beforeIter  func(op string, from []byte)
	beforeWrite func()
}

type hookedReader struct {
	store.Reader
	hooks *hookedStore
	op    string
}

func (h hookedReader) NewIter(from, to []byte) (store.Iterator, error) {
	h.hooks.beforeIter(h.op, from)
	return h.Reader.NewIter(from, to)
}

func (h *hookedStore) View(op string, f func(store.Reader) error) error {
	err := h.testStore.View(op, func(from store.Reader) error {
		if h.beforeIter != nil {
			from = hookedReader{from, h, op}
		}
		return f(from)
	})
	if h.afterView != nil {
		h.afterView(op)
	}
	return err
}

func (h *hookedStore) Write(op string, n int, fill func(store.Batch) error) error {
	if h.beforeWrite != nil {
		h.beforeWrite()
	}
	return h.testStore.Write(op, n, fill)
}

// openHooked opens a machine in a store with hooks, which the caller closes.
func openHooked(t testing.TB, o machineOptions, h *hookedStore) *Machine {
	t.Helper()
	s, err := pebblestore.Open(o.Options)
	if err != nil {
		t.Fatal(err)
	}
	h.testStore = testStore{s, o.FS}
	m, err := Open(h, o.machine)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// The store can be opened after a crash at any write of a build during which instances of new
// orchestrations have begun.
func TestBuild_FacetNumbersHaveNoGapAfterCrash(t *testing.T) {
	fs := vfs.NewCrashableMem()
	o := roomyOptions(fs)
	m, err := o.open()
	if err != nil {
		t.Fatal(err)
	}
	applyEpoch(t, m)
	for i := range 5 {
		if err := applyAppend(m, fmt.Sprintf("a%d", i), segmentOf(1, 1, started(fmt.Sprintf("name%d", i)))); err != nil {
			t.Fatal(err)
		}
	}
	flushNow(t, m)
	writeAsOlderBuild(t, m, false)
	closed(t, m)
	o.machine.indexStep = 2
	isBuilding, begun := make(chan struct{}), make(chan struct{})
	builds := 0
	var crashed []*vfs.MemFS
	m = openHooked(t, o, &hookedStore{
		afterView: func(op string) {
			if op != "build the index" {
				return
			}
			if builds++; builds == 1 {
				close(isBuilding)
				<-begun
			}
		},
		beforeWrite: func() { crashed = append(crashed, fs.CrashClone(vfs.CrashCloneCfg{})) },
	})
	<-isBuilding
	if err := applyAppend(m, "b", segmentOf(1, 1, started("new"))); err != nil {
		t.Fatal(err)
	}
	close(begun)
	awaitIndex(t, m)
	flushNow(t, m)
	closed(t, m)
	if len(crashed) < 3 {
		t.Fatalf("%d writes", len(crashed))
	}
	for i, fs := range crashed {
		o.FS = fs
		m, err := o.open()
		if err != nil {
			t.Fatalf("after a crash before write %d: %v", i+1, err)
		}
		awaitIndex(t, m)
		checkIndexKeys(t, m)
		closed(t, m)
	}
}

// A purge that a flush writes while a page of headers of an older build is read is no damage of the
// store: the instances are absent.
func TestQuery_PurgeWhileOlderHeadersAreReadIsNoDamage(t *testing.T) {
	for _, again := range []bool{false, true} {
		o := roomyOptions(vfs.NewMem())
		m, err := o.open()
		if err != nil {
			t.Fatal(err)
		}
		applyEpoch(t, m)
		for _, id := range []string{"a", "b", "c", "d"} {
			if err := applyAppend(m, id, segmentOf(1, 1, started("x"), failedWith("boom"))); err != nil {
				t.Fatal(err)
			}
		}
		flushNow(t, m)
		m.DisablePacing()
		writeAsOlderBuild(t, m, false)
		closed(t, m)
		o.machine.indexStep = 1
		purged := false
		h := &hookedStore{}
		h.beforeIter = func(op string, from []byte) {
			if op != "read the index" || from[0] != keyHistory || purged {
				return
			}
			purged = true
			if _, err := purge(m, "b", "c", "d"); err != nil {
				t.Error(err)
			}
			if again {
				if err := applyAppend(m, "d", segmentOf(1, 1, started("again"))); err != nil {
					t.Error(err)
				}
			}
			flushNow(t, m)
		}
		m = openHooked(t, o, h)
		m.DisablePacing()
		rows := queryAll(t, m, &index.Query{}, 10)
		want := "[a]"
		if again {
			want = "[a d]"
		}
		var ids []string
		for _, row := range rows {
			ids = append(ids, row.ID)
		}
		if !purged || fmt.Sprint(ids) != want {
			t.Errorf("purged %v, the rows are %v, want %s", purged, ids, want)
		}
		if err := m.Err(); err != nil {
			t.Error(err)
		}
		closed(t, m)
	}
}

// hookedContext runs code when its error is asked for the nth time.
type hookedContext struct {
	context.Context
	n   int
	run func()
}

func (h *hookedContext) Err() error {
	if h.n--; h.n == 0 {
		h.run()
	}
	return h.Context.Err()
}

// An instance that matches throughout a query is returned although it changes its facet meanwhile.
func TestQuery_ReturnsInstanceThatChangesFacetMeanwhile(t *testing.T) {
	for n := 1; n <= 4; n++ {
		for _, flush := range []bool{false, true} {
			m := openMachine(t, roomyOptions(vfs.NewMem()))
			applyEpoch(t, m)
			for _, id := range []string{"a", "b", "c"} {
				if err := applyAppend(m, id, segmentOf(1, 1, started("x"))); err != nil {
					t.Fatal(err)
				}
			}
			if flush {
				flushNow(t, m)
				if err := applyAppend(m, "c", segmentOf(1, 2, activity())); err != nil {
					t.Fatal(err)
				}
			}
			ctx := &hookedContext{t.Context(), n, func() {
				if err := errors.Join(applyAppend(m, "b", segmentOf(1, 2, suspended())), applyAppend(m, "b", segmentOf(1, 3, completed()))); err != nil {
					t.Error(err)
				}
			}}
			page, err := m.Query(ctx, &index.Query{}, nil, 10)
			if err != nil {
				t.Fatal(err)
			}
			if len(page.Rows) != 3 || page.More {
				t.Errorf("check %d, flushed %v: %d rows, more %v", n, flush, len(page.Rows), page.More)
			}
		}
	}
}

// An instance that is clean when a query begins, then gets a facet that did not exist, and is
// written, is returned.
func TestQuery_ReturnsInstanceThatIsWrittenWithNewFacetMeanwhile(t *testing.T) {
	for _, q := range []index.Query{{}, {Created: index.Interval{From: 1}}, {IDPrefix: "a", Order: index.ByCreated}} {
		for n := 1; n <= 3; n++ {
			m := openMachine(t, roomyOptions(vfs.NewMem()))
			applyEpoch(t, m)
			apply := func(id string, first uint64, events ...*journalpb.Event) {
				if err := applyAppend(m, id, segmentOf(1, first, events...)); err != nil {
					t.Error(err)
				}
			}
			apply("a1", 1, started("x"))
			apply("a2", 1, started("x"))
			flushNow(t, m)
			apply("a3", 1, started("x")) // what is not written is examined first, and checks the context
			ctx := &hookedContext{t.Context(), n, func() {
				apply("a1", 2, completed())
				flushNow(t, m)
			}}
			page, err := m.Query(ctx, &q, nil, 10)
			if err != nil {
				t.Fatal(err)
			}
			if ctx.n > 0 {
				break // all checks of the context have had their turn
			}
			if len(page.Rows) != 3 || page.More {
				t.Errorf("%s, check %d: %d rows, more %v", describeQuery(&q), n, len(page.Rows), page.More)
			}
		}
	}
}

// A query whose result is small pages through many instances, ends, and finds it all, however
// little the search for a page may cost.
func TestQuery_ShortPagesEnd(t *testing.T) {
	const n = 3000
	o := roomyOptions(vfs.NewMem())
	o.machine.searchDivisor = 1 << 20
	m := openMachine(t, o)
	applyEpoch(t, m)
	for i := range n {
		events := []*journalpb.Event{started("x"), timer(int64(i))}
		if i%1000 == 500 {
			events = append(events, subscribed("go"))
		}
		if err := applyAppend(m, fmt.Sprintf("a%06d", i), segmentOf(1, 1, events...)); err != nil {
			t.Fatal(err)
		}
	}
	flushNow(t, m)
	for o := index.ByID; o <= index.ByNextTimer; o++ {
		q := &index.Query{Order: o, Descending: o%2 == 0, Waiting: &index.Waiting{Kind: index.Event, Name: "go"}}
		want := 3
		if o == index.ByEnded {
			want = 0
		}
		if rows := queryAll(t, m, q, 10); len(rows) != want {
			t.Errorf("order %d: %d rows, want %d", o, len(rows), want)
		}
	}
}

// An instance that is not written is found by the tags of its latest execution.
func TestQuery_FindsUnwrittenInstanceByTagsOfNextExecution(t *testing.T) {
	tagged := func(value string) *journalpb.Event {
		e := started("x")
		e.GetOrchestrationStarted().Tags = map[string]string{"k": value}
		return e
	}
	m := openMachine(t, roomyOptions(vfs.NewMem()))
	applyEpoch(t, m)
	if err := errors.Join(applyAppend(m, "a", segmentOf(1, 1, tagged("1"))),
		applyAppend(m, "a", segmentOf(1, 2, continued()), segmentOf(2, 1, tagged("2")))); err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]int{"1": 0, "2": 1} {
		if rows := queryAll(t, m, &index.Query{Tags: map[string]string{"k": value}}, 10); len(rows) != want {
			t.Errorf("%d instances with the tag %s, want %d", len(rows), value, want)
		}
	}
}

// Candidates that are not kept, because others have earlier places, are found by the next pages.
func TestQuery_FindsCandidatesThatWereNotKept(t *testing.T) {
	for _, running := range []int{0, 6} { // the index does not say the places of these
		o := roomyOptions(vfs.NewMem())
		o.machine.searchDivisor = 300
		m := openMachine(t, o)
		applyEpoch(t, m)
		for i := range 20 + running {
			start := started("child")
			if i == 18 || i == 19 {
				start = startedBy("p", 1, 2)
			}
			start.GetOrchestrationStarted().Tags = map[string]string{"k": "v"}
			events := []*journalpb.Event{start, completed()}
			if i >= 20 {
				events = events[:1]
			}
			if err := applyAppend(m, fmt.Sprintf("a%02d", i), segmentOf(1, 1, events...)); err != nil {
				t.Fatal(err)
			}
		}
		flushNow(t, m)
		for _, order := range []index.Order{index.ByID, index.ByCreated, index.ByUpdated} {
			q := &index.Query{ParentID: "p", Tags: map[string]string{"k": "v"}, Order: order}
			if rows := queryAll(t, m, q, 1); len(rows) != 2 {
				t.Errorf("%d running, order %d: %d rows, want 2", running, order, len(rows))
			}
		}
	}
}

// An index in another format is built anew.
func TestBuild_IndexInOtherFormatIsBuiltAnew(t *testing.T) {
	o := roomyOptions(vfs.NewMem())
	m, err := o.open()
	if err != nil {
		t.Fatal(err)
	}
	applyEpoch(t, m)
	if err := applyAppend(m, "a", segmentOf(1, 1, started("x"))); err != nil {
		t.Fatal(err)
	}
	flushNow(t, m)
	key, generation := []byte{keyFacet}, m.indexState.generation
	record := appendUint(appendUint(nil, fieldIndexGeneration, generation), fieldIndexComplete, 1) // as the first format had it
	err = m.store.Write("write", 0, func(b store.Batch) error { return b.Set(key, appendValueChecksum(record, 0, key)) })
	if err := errors.Join(err, m.store.Sync()); err != nil {
		t.Fatal(err)
	}
	closed(t, m)
	m = openMachine(t, o)
	awaitIndex(t, m)
	if m.indexState.generation != generation+1 {
		t.Errorf("generation %d after %d", m.indexState.generation, generation)
	}
	checkIndexKeys(t, m)
}

// Builds whose index has an earlier format find no generation in the meta record, so they build
// their index anew.
func TestStore_MetaHidesGenerationFromEarlierFormats(t *testing.T) {
	o := roomyOptions(vfs.NewMem())
	m := openMachine(t, o)
	applyEpoch(t, m)
	if err := applyAppend(m, "a", segmentOf(1, 1, started("x"))); err != nil {
		t.Fatal(err)
	}
	flushNow(t, m)
	awaitIndex(t, m)
	err := m.store.view("read", 0, func(from store.Reader) error {
		record, err := getRecord(from, []byte{keyMeta})
		const ofFirstFormat = 7
		old, _ := intField(record, ofFirstFormat)
		current, _ := intField(record, fieldStoreIndexed)
		if old != 0 || uint64(current) != m.indexState.generation || index.Format != 2 || fieldStoreIndexed != 8 {
			t.Errorf("generation %d, for builds of the first format %d; field %d in format %d", current, old, fieldStoreIndexed, index.Format)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// An append that is rejected while a flush writes the instance does not change by which names its
// open operations are found.
func TestQuery_RejectedAppendDuringFlushKeepsOperationNames(t *testing.T) {
	o := roomyOptions(vfs.NewMem())
	isWriting, rejected := make(chan struct{}), make(chan struct{})
	writes := 0
	m := openHooked(t, o, &hookedStore{beforeWrite: func() {
		if writes++; writes == 1 {
			close(isWriting)
			<-rejected
		}
	}})
	applyEpoch(t, m)
	if err := applyAppend(m, "a", segmentOf(1, 1, started("x"), activity(), namedChild("sub", "b"))); err != nil {
		t.Fatal(err)
	}
	waiters := func(when string) {
		t.Helper()
		for _, w := range []index.Waiting{{Kind: index.Activity, Name: "charge"}, {Kind: index.Child, Name: "sub"}} {
			if rows := queryAll(t, m, &index.Query{Waiting: &w}, 10); len(rows) != 1 {
				t.Errorf("%s: %d instances wait for %s", when, len(rows), w.Name)
			}
		}
	}
	at, _ := m.Applied()
	flushed := make(chan error, 1)
	go func() { flushed <- m.Flush(t.Context(), at) }()
	<-isWriting
	var invalid *InvalidAppendError
	if err := applyAppend(m, "a", segmentOf(1, 4, attributeSet("needs", "protocol 4"))); !errors.As(err, &invalid) {
		t.Fatal(err)
	}
	waiters("after the rejected append")
	close(rejected)
	if err := <-flushed; err != nil {
		t.Fatal(err)
	}
	waiters("after the flush")
	flushNow(t, m)
	waiters("after the next flush")
	closed(t, m)
	m = openMachine(t, o)
	waiters("after a restart")
}

// A count without an index examines each instance once, however many pages its result would have.
func TestCountBy_WithoutIndexIsOnePass(t *testing.T) {
	tagged := started("x")
	tagged.GetOrchestrationStarted().Tags = map[string]string{"env": "prod"}
	q := &index.Query{Tags: map[string]string{"env": "prod"}}
	m := newMachine(t)
	m.options.countPageRows = 1000
	n := 2*m.options.countPageRows + 100
	for i := range n {
		if err := applyAppend(m, fmt.Sprintf("a%06d", i), segmentOf(1, 1, tagged)); err != nil {
			t.Fatal(err)
		}
	}
	checks := 1 << 30 // of the context: one for each instance examined
	ctx := &hookedContext{t.Context(), checks, nil}
	groups, err := m.CountBy(ctx, q)
	if err != nil || len(groups) != 1 || groups[0].Count != uint64(n) {
		t.Errorf("%v, %v", groups, err)
	}
	if examined := checks - ctx.n; examined > n+10 {
		t.Errorf("%d instances were examined to count %d", examined, n)
	}
}

// Long lists of candidates leave a page its budget for reading instances.
func TestQuery_CandidatesLeaveBudgetForRows(t *testing.T) {
	tags := map[string]string{"env": "prod", "region": "eu", "team": "x", "tier": "1"}
	tagged := started("x")
	tagged.GetOrchestrationStarted().Tags = tags
	const n, limit = 4000, 25
	o := roomyOptions(vfs.NewMem())
	o.machine.searchDivisor, o.machine.countPageRows = 4, 2000
	m := openMachine(t, o)
	applyEpoch(t, m)
	for i := range n {
		if err := applyAppend(m, fmt.Sprintf("a%06d", i), segmentOf(1, 1, tagged)); err != nil {
			t.Fatal(err)
		}
	}
	flushNow(t, m)
	for _, q := range []index.Query{{}, {Order: index.ByUpdated}, {Order: index.ByCreated, Descending: true}} {
		q.Tags, q.Created = tags, index.Interval{Before: 1 << 60}
		var after *index.Cursor
		for range 3 {
			page, err := m.Query(t.Context(), &q, after, limit)
			if err != nil {
				t.Fatal(err)
			}
			if len(page.Rows) != limit || !page.More {
				t.Errorf("order %d: a page of %d rows, more %v", q.Order, len(page.Rows), page.More)
			}
			after = &page.Next
		}
	}
	checks := 1 << 30
	ctx := &hookedContext{t.Context(), checks, nil}
	groups, err := m.CountBy(ctx, &index.Query{Tags: tags, Created: index.Interval{Before: 1 << 60}})
	if err != nil || len(groups) != 1 || groups[0].Count != n {
		t.Errorf("%v, %v", groups, err)
	}
	if checks -= ctx.n; checks > n/8 { // each page checks the context
		t.Errorf("the count had too many pages: it checked its context %d times", checks)
	}
}

// An instance whose next timer moves while instances with timers are counted is counted once.
func TestCountBy_TimerThatMovesIsCountedOnce(t *testing.T) {
	const n = 1000 + 800
	o := roomyOptions(vfs.NewMem())
	o.machine.countPageRows = 1000
	m := openMachine(t, o)
	applyEpoch(t, m)
	for i := range n {
		if err := applyAppend(m, fmt.Sprintf("a%06d", i), segmentOf(1, 1, started("x"), timer(int64(1000+i)))); err != nil {
			t.Fatal(err)
		}
	}
	flushNow(t, m)
	for move := range 10 {
		last := uint64(2 + 2*move) // the open timer of those that move
		ctx := &hookedContext{t.Context(), 20 + 30*move, func() {
			for i := range 50 {
				if err := applyAppend(m, fmt.Sprintf("a%06d", i), segmentOf(1, last+1, timerFired(last), timer(int64(1<<40+100*move+i)))); err != nil {
					t.Error(err)
				}
			}
		}}
		groups, err := m.CountBy(ctx, &index.Query{Order: index.ByNextTimer})
		if err != nil || len(groups) != 1 || groups[0].Count != n {
			t.Errorf("move %d: %v, %v; want %d", move, groups, err, n)
		}
		if ctx.n > 0 { // it did not move during the count
			ctx.run()
		}
	}
}

// What the header of an older build lacks is read with one iterator for each chunk of the history.
func TestBuild_OlderHeaderReadsEachChunkOnce(t *testing.T) {
	const n = 1000
	iterators := 0
	m := openHooked(t, roomyOptions(vfs.NewMem()), &hookedStore{beforeIter: func(op string, from []byte) {
		if op == "read an instance" && from[0] == keyHistory {
			iterators++
		}
	}})
	applyEpoch(t, m)
	events := []*journalpb.Event{started("x")}
	for range n {
		events = append(events, activity())
	}
	if err := applyAppend(m, "a", segmentOf(1, 1, events...)); err != nil {
		t.Fatal(err)
	}
	flushNow(t, m)
	writeAsOlderBuild(t, m, false)
	in, err := m.store.instance("a")
	if err != nil {
		t.Fatal(err)
	}
	for i := range in.open {
		if op := &in.open[i]; op.name != "charge" || op.since != int64(1000+op.id) {
			t.Fatalf("operation %d: %q since %d", op.id, op.name, op.since)
		}
	}
	if len(in.open) != n || iterators == 0 || iterators > int(in.chunks) {
		t.Errorf("%d operations, %d iterators over %d chunks", len(in.open), iterators, in.chunks)
	}
	closed(t, m)
}

// The purge of an instance whose end no flush has written removes it from the sets and its timers.
func TestPurge_RemovesSetsAndTimersOfUnwrittenEnd(t *testing.T) {
	m, _ := openSizeChecked(t, roomyOptions(vfs.NewMem()))
	applyEpoch(t, m)
	for _, stored := range []func() error{
		func() error {
			events := []*journalpb.Event{startedBy("p", 1, 2), activity()}
			for at := range int64(30) {
				events = append(events, timer(at))
			}
			return applyAppend(m, "x", segmentOf(1, 1, events...))
		},
		func() error { return applyAppend(m, "x", segmentOf(1, 1, startedBy("p", 1, 2))) },
		func() error {
			return errors.Join(applyAppend(m, "x", segmentOf(1, 1, started("x"))), applyCondition(m, m.Epoch(), "x", 0, 1, 1, "here"))
		},
	} {
		if err := stored(); err != nil {
			t.Fatal(err)
		}
		flushNow(t, m)
		in, _ := m.Instance("x")
		if err := applyAppend(m, "x", segmentOf(1, in.LastEventId+1, completed())); err != nil {
			t.Fatal(err)
		}
		if n, err := purge(m, "x"); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		flushNow(t, m)
		checkIndexKeys(t, m)
	}
}

// A query looks into no facet without instances, however many have had some.
func TestQuery_SkipsEmptyFacets(t *testing.T) {
	m := openMachine(t, roomyOptions(vfs.NewMem()))
	applyEpoch(t, m)
	for i := range 50 {
		if err := applyAppend(m, fmt.Sprintf("a%02d", i), segmentOf(1, 1, started(fmt.Sprintf("name%d", i)), completed())); err != nil {
			t.Fatal(err)
		}
	}
	flushNow(t, m)
	for i := range 49 {
		if _, err := purge(m, fmt.Sprintf("a%02d", i)); err != nil {
			t.Fatal(err)
		}
	}
	flushNow(t, m)
	s := &search{reads: &m.reads, ctx: t.Context(), query: &index.Query{}, limit: 10}
	if err := s.run(); err != nil || len(s.page().Rows) != 1 || len(s.facets) != 1 {
		t.Errorf("%v, looked into %d facets", err, len(s.facets))
	}
}

// A page ends after about pageBytesMax, and the next ones have the rest: whether the
// instances are written or not, with an index or without one.
func TestQuery_PageIsBoundedInBytes(t *testing.T) {
	const n, tagBytes, pageBytesMax = 60, 4700, 64 << 10
	start := started("x")
	start.GetOrchestrationStarted().Tags = map[string]string{"k": strings.Repeat("x", tagBytes)}
	for _, written := range []int{0, n, n / 2} {
		o := roomyOptions(vfs.NewMem())
		o.machine.pageBytesMax = pageBytesMax
		m := openMachine(t, o)
		applyEpoch(t, m)
		for i := range n {
			if err := applyAppend(m, fmt.Sprintf("a%02d", i*7%n), segmentOf(1, 1, start)); err != nil {
				t.Fatal(err)
			}
			if i+1 == written {
				flushNow(t, m)
			}
		}
		for _, complete := range []bool{true, false} {
			m.mu.Lock()
			m.indexState.complete = complete
			m.mu.Unlock()
			for _, q := range []*index.Query{{}, {Created: index.Interval{From: 1}, IDPrefix: "a"}, {Order: index.ByUpdated, Descending: true}} {
				s := &search{reads: &m.reads, ctx: t.Context(), query: q, limit: 1000}
				if err := s.run(); err != nil || len(s.found)*tagBytes > 2*pageBytesMax+2*tagBytes {
					t.Errorf("%d written, index %v, %s: %d instances were read for a page, %v", written, complete, describeQuery(q), len(s.found), err)
				}
				var ids []string
				for after := (*index.Cursor)(nil); ; {
					page, err := m.Query(t.Context(), q, after, 1000)
					if err != nil {
						t.Fatal(err)
					}
					if len(page.Rows) == 0 || page.Bytes < len(page.Rows)*tagBytes || page.Bytes > pageBytesMax+2*tagBytes {
						t.Fatalf("a page of %d rows and %d bytes", len(page.Rows), page.Bytes)
					}
					for _, row := range page.Rows {
						ids = append(ids, row.ID)
					}
					if !page.More {
						break
					}
					after = &page.Next
				}
				if slices.Sort(ids); len(ids) != n || len(slices.Compact(ids)) != n {
					t.Errorf("%d written, index %v, %s: %d instances", written, complete, describeQuery(q), len(ids))
				}
			}
			m.mu.Lock()
			m.indexState.complete = true
			m.mu.Unlock()
		}
		counts, err := m.CountBy(t.Context(), &index.Query{Created: index.Interval{From: 1}})
		if err != nil || len(counts) != 1 || counts[0].Count != n {
			t.Errorf("%v, %v", counts, err)
		}
	}
}

// A count or a list of a closed machine returns an error, not a part of the result.
func TestQuery_FailsOnceClosed(t *testing.T) {
	for _, complete := range []bool{true, false} {
		o := tinyOptions(vfs.NewMem())
		m, err := o.open()
		if err != nil {
			t.Fatal(err)
		}
		applyEpoch(t, m)
		for i := range 20 {
			if err := applyAppend(m, fmt.Sprintf("a%02d", i), segmentOf(1, 1, started("x"), completed())); err != nil {
				t.Fatal(err)
			}
		}
		flushNow(t, m)
		closed(t, m)
		m.mu.Lock()
		m.indexState.complete = complete
		m.mu.Unlock()
		var failed *StoreError
		if page, err := m.Query(t.Context(), &index.Query{}, nil, 10); !errors.As(err, &failed) || !errors.Is(err, store.ErrClosed) {
			t.Errorf("index %v: %v, %v", complete, page, err)
		}
		if groups, err := m.CountBy(t.Context(), &index.Query{}, index.Grouping{Dimension: index.DimensionTag, Key: "k"}); !errors.As(err, &failed) {
			t.Errorf("index %v: %v, %v", complete, groups, err)
		}
	}
}

// A store whose index is built anew, and that has never had an instance, keeps no facet of the
// earlier index.
func TestBuild_EmptyStoreKeepsNoFacets(t *testing.T) {
	o := roomyOptions(vfs.NewMem())
	m, err := o.open()
	if err != nil {
		t.Fatal(err)
	}
	applyEpoch(t, m)
	if err := errors.Join(applyAppend(m, "x", segmentOf(1, 1, started("a"))), applyAppend(m, "x", segmentOf(1, 2, completed()))); err != nil {
		t.Fatal(err)
	}
	if _, err := purge(m, "x"); err != nil {
		t.Fatal(err)
	}
	flushNow(t, m)
	writeAsOlderBuild(t, m, true)
	closed(t, m)
	if m, err = o.open(); err != nil {
		t.Fatal(err)
	}
	if err := applyAppend(m, "y", segmentOf(1, 1, started("a"), completed())); err != nil {
		t.Fatal(err)
	}
	flushNow(t, m)
	closed(t, m)
	m = openMachine(t, o)
	if len(m.facets.all) != 1 {
		t.Errorf("%d facets", len(m.facets.all))
	}
	if _, err := purge(m, "y"); err != nil {
		t.Fatal(err)
	}
	flushNow(t, m)
	if groups, err := m.CountBy(t.Context(), &index.Query{}, index.Grouping{Dimension: index.DimensionState}); err != nil || len(groups) != 0 {
		t.Errorf("%v, %v", groups, err)
	}
}

// A store with the same facet twice is rejected.
func TestOpen_RejectsFacetTwice(t *testing.T) {
	o := roomyOptions(vfs.NewMem())
	m, err := o.open()
	if err != nil {
		t.Fatal(err)
	}
	applyEpoch(t, m)
	if err := applyAppend(m, "x", segmentOf(1, 1, started("a"))); err != nil {
		t.Fatal(err)
	}
	flushNow(t, m)
	twice := *m.facets.all[0]
	twice.number = 2
	key := twice.key(nil)
	err = m.store.Write("write", 0, func(b store.Batch) error { return b.Set(key, appendValueChecksum(twice.appendTo(nil), 0, key)) })
	if err := errors.Join(err, m.store.Sync()); err != nil {
		t.Fatal(err)
	}
	closed(t, m)
	if _, err := o.open(); !errors.Is(err, ErrCorrupt) {
		t.Errorf("opened: %v", err)
	}
}
