package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	internal "github.com/tenuto-dev/tenuto/cluster/internal/backup"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A memorySink is a Sink in memory. Each of its functions, if set, replaces the method.
type memorySink struct {
	mu     sync.Mutex
	stored map[string][]byte
	put    func(ctx context.Context, name string, content io.Reader) error
}

func (s *memorySink) Put(ctx context.Context, name string, content io.Reader) error {
	if s.put != nil {
		return s.put(ctx, name, content)
	}
	return s.keep(name, content)
}

func (s *memorySink) keep(name string, content io.Reader) error {
	all, err := io.ReadAll(content)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.stored[name] = all
	}
	return err
}

func (s *memorySink) Open(_ context.Context, name string) (io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return io.NopCloser(bytes.NewReader(s.stored[name])), nil
}

func (s *memorySink) List(context.Context) (map[string]int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sizes := make(map[string]int64)
	for name, content := range s.stored {
		sizes[name] = int64(len(content))
	}
	return sizes, nil
}

func (s *memorySink) Remove(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.stored, name)
	return nil
}

func (s *memorySink) entries(t *testing.T) []Entry {
	t.Helper()
	entries, err := List(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// A fakeCluster is what plans on several nodes share.
type fakeCluster struct {
	sink *memorySink

	mu       sync.Mutex
	leader   int
	lineage  string
	cut      uint64
	outcomes []*journalpb.BackupRecord
	points   int
	noFull   bool          // full backups fail
	gone     bool          // no node has what a base has, or entries
	ended    int           // checkpoints that were ended
	copying  time.Duration // how long the copy of a checkpoint takes
	ahead    time.Duration // by which the clock of the node that makes checkpoints is wrong
	failure  error         // of the copy, at its end
	refusal  error         // of a checkpoint
}

func newFakeCluster() *fakeCluster {
	return &fakeCluster{sink: &memorySink{stored: make(map[string][]byte)}}
}

func (c *fakeCluster) lead(node int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leader = node
}

func (c *fakeCluster) recorded() []*journalpb.BackupRecord {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.outcomes)
}

// run executes a plan on a node until the end of the test.
func (c *fakeCluster) run(t *testing.T, node int, plan Plan) {
	t.Helper()
	plan.To = c.sink
	if err := plan.Check(); err != nil {
		t.Fatal(err)
	}
	r := &runner{
		plan: plan, logger: slog.New(slog.DiscardHandler), progress: func(int64, int64) {},
		leads: func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.leader == node
		},
		origin: func() (cluster, lineage string) {
			c.mu.Lock()
			defer c.mu.Unlock()
			return "c", c.lineage
		},
		begin: func(_ context.Context, base *Info) (checkpoint, error) { return c.begin(node, base) },
		point: func(context.Context) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.points++
			return nil
		},
		record: func(_ context.Context, outcome *journalpb.BackupRecord) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.outcomes = append(c.outcomes, outcome)
			return nil
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
}

func (c *fakeCluster) begin(node int, base *Info) (checkpoint, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refusal != nil {
		return nil, c.refusal
	}
	c.cut++
	info := &Info{
		Format: formatFiles, ID: internal.NewID(), Cluster: "c", Lineage: c.lineage, Cut: c.cut, Time: time.Now().Add(c.ahead), Node: fmt.Sprint("n", node),
		Partitions: []Partition{{Database: "d", Files: []File{{Name: "1.sst", Immutable: true}}}},
	}
	if c.gone {
		info.Partitions[0].Database = info.ID
	}
	return &fakeCheckpoint{c, info}, info.continueFrom(base, make([]*File, 1), false)
}

type fakeCheckpoint struct {
	of   *fakeCluster
	info *Info
}

func (f *fakeCheckpoint) description() *Info { return f.info }

func (f *fakeCheckpoint) write(ctx context.Context, to io.Writer, progress func(written, total int64)) error {
	f.of.mu.Lock()
	copying, failure := f.of.copying, f.of.failure
	if f.of.noFull && f.info.Base == "" {
		failure = errors.New("no room for a full backup")
	}
	f.of.mu.Unlock()
	if _, err := to.Write(streamOf(f.info)); err != nil {
		return err
	}
	progress(1, 1)
	if copying > 0 {
		if err := sleep(ctx, copying); err != nil {
			return err
		}
	}
	return failure
}

func (f *fakeCheckpoint) end(context.Context, bool, *Info) {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	f.of.ended++
}

// intervals returns the times between backups.
func intervals(entries []Entry) (all []time.Duration) {
	for i := 1; i < len(entries); i++ {
		all = append(all, entries[i].Time.Sub(entries[i-1].Time))
	}
	return all
}

// A backup is made at each interval, incremental ones between full ones. Those that are kept are
// complete chains.
func TestPlan_FullAndIncrementalBackups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster()
		c.run(t, 0, Plan{Every: time.Hour, Keep: 4, Increments: 2})
		for i := range 20 {
			time.Sleep(time.Hour)
			synctest.Wait()
			entries := c.sink.entries(t)
			complete := 0
			for _, e := range entries {
				chain := chainOf(entries, e)
				if chain == nil {
					t.Errorf("after %d: %s lacks what it continues", i, e.Name)
				} else if len(chain) > 3 {
					t.Errorf("after %d: %d backups are needed", i, len(chain))
				} else {
					complete++
				}
			}
			if want := min(i+1, 4); complete < want || complete > want+2 {
				t.Errorf("after %d: %d backups are kept, want %d", i, complete, want)
			}
			for _, between := range intervals(entries) {
				if between < time.Hour || between > time.Hour+2*time.Second {
					t.Errorf("after %d: %v between two", i, between)
				}
			}
		}
		full := 0
		for _, e := range c.sink.entries(t) {
			if e.Base == "" {
				full++
			}
		}
		if full == 0 || full == len(c.sink.entries(t)) || len(c.recorded()) < 19 {
			t.Errorf("%d full ones, %d outcomes", full, len(c.recorded()))
		}
	})
}

// With points, a full backup follows one that continues the chain before it, and points are
// recorded while the node leads.
func TestPlan_PointsBeforeFullBackup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster()
		for node := range 2 {
			c.run(t, node, Plan{Every: time.Hour, Increments: 2, Points: true})
		}
		time.Sleep(9*time.Hour + 30*time.Minute)
		c.lead(1)
		time.Sleep(time.Hour)
		synctest.Wait()
		entries := c.sink.entries(t)
		full, continued := 0, map[string]bool{}
		for _, e := range entries {
			continued[e.Base] = true
			if e.Base == "" {
				full++
			}
		}
		for _, e := range entries[:len(entries)-1] {
			if !continued[e.ID] && e.Base == "" {
				t.Errorf("nothing continues %+v", e)
			}
		}
		if full < 4 || len(entries) != 11+full-1 {
			t.Errorf("%d full backups of %d", full, len(entries))
		}
		if want := int((10*time.Hour + 30*time.Minute) / pointInterval); c.points < want-100 || c.points > want {
			t.Errorf("%d points, want %d", c.points, want)
		}
	})
}

// A full backup that has failed after the one before it is tried again soon, without another one
// before it. Nor is there one after one that has turned out to be a full one.
func TestPlan_FullBackupAfterPointsFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster()
		set := func(noFull, gone bool) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.noFull, c.gone = noFull, gone
		}
		wantNew := func(what string, before, full, incremental int) {
			t.Helper()
			synctest.Wait()
			entries := c.sink.entries(t)[before:]
			for _, e := range entries {
				if e.Base == "" {
					full--
				} else {
					incremental--
				}
			}
			if full != 0 || incremental != 0 {
				t.Errorf("%s: %d full and %d incremental backups are missing: %+v", what, full, incremental, entries)
			}
		}
		c.run(t, 0, Plan{Every: time.Hour, Increments: 2, Keep: 100, Points: true})
		time.Sleep(2*time.Hour + 30*time.Minute)
		wantNew("at first", 0, 1, 2)
		set(true, false)
		time.Sleep(time.Hour)
		wantNew("while a full one fails", 3, 0, 1)
		set(false, false)
		time.Sleep(backoffMax)
		wantNew("after that", 4, 1, 0)
		time.Sleep(time.Hour + 5*time.Minute) // one
		set(false, true)
		time.Sleep(time.Hour)
		wantNew("when nothing is shared", 6, 1, 0)
	})
}

// Leadership moves at random moments, also while a backup is made. No backup is made twice, none is
// skipped for long, and nothing incomplete is left.
func TestPlan_LeaderChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster()
		c.copying = 5 * time.Minute
		for node := range 3 {
			c.run(t, node, Plan{Every: time.Hour})
		}
		for i := range 300 {
			time.Sleep(time.Duration(i*i%23) * time.Minute)
			c.lead(i % 3)
		}
		synctest.Wait()
		entries := c.sink.entries(t)
		if len(entries) < 30 {
			t.Errorf("%d backups", len(entries))
		}
		for _, between := range intervals(entries) {
			if between < time.Hour || between > 100*time.Minute {
				t.Errorf("%v between two", between)
			}
		}
		for _, e := range entries {
			if e.Size == 0 || chainOf(entries, e) == nil {
				t.Errorf("%+v", e)
			}
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if uint64(c.ended) != c.cut {
			t.Errorf("%d of %d checkpoints were ended", c.ended, c.cut)
		}
	})
}

// The clock of a node was wrong while it made a backup. Backups are made at the interval all the
// same, and the ones that were made last are kept, continued and restored.
func TestPlan_WrongClock(t *testing.T) {
	for _, ahead := range []time.Duration{48 * time.Hour, -48 * time.Hour} {
		for _, whenRight := range []int{0, 1} { // the leader when the clock is right again
			t.Run(fmt.Sprint(ahead, " ", whenRight), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := newFakeCluster()
					for node := range 2 {
						c.run(t, node, Plan{Every: time.Hour, Keep: 3, Increments: 100})
					}
					time.Sleep(150 * time.Minute)
					c.mu.Lock()
					c.ahead = ahead
					c.mu.Unlock()
					time.Sleep(time.Hour)
					c.mu.Lock()
					c.ahead = 0
					c.mu.Unlock()
					c.lead(whenRight)
					time.Sleep(3 * time.Hour)
					synctest.Wait()
					if c.cut < 6 || c.cut > 8 {
						t.Errorf("%d backups were made in 6.5 hours", c.cut)
					}
					entries := c.sink.entries(t)
					chain, err := Chain(entries, time.Time{})
					if err != nil || chain[len(chain)-1].Cut != c.cut || uint64(len(chain)) != c.cut {
						t.Errorf("the newest of %d backups: %v, %v", c.cut, chain, err)
					}
					for _, e := range surplus(entries, 1) {
						if e.Cut == c.cut {
							t.Errorf("the newest one is surplus: %v", e)
						}
					}
				})
			})
		}
	}
}

// Whatever fails, nothing is left in the sink, the outcome is recorded, and the backup is tried
// again.
func TestPlan_Failures(t *testing.T) {
	diskFull := errors.New("disk full")
	for name, fail := range map[string]func(c *fakeCluster){
		"copy":         func(c *fakeCluster) { c.failure = errors.New("the node is gone") },
		"stalled copy": func(c *fakeCluster) { c.copying = 24 * time.Hour },
		"target": func(c *fakeCluster) {
			c.sink.put = func(context.Context, string, io.Reader) error { return diskFull }
		},
		"target in the middle": func(c *fakeCluster) {
			c.sink.put = func(_ context.Context, name string, content io.Reader) error {
				if err := c.sink.keep(name, io.LimitReader(content, 10)); err != nil {
					return err
				}
				return diskFull
			}
		},
		"target that stores a part": func(c *fakeCluster) {
			c.sink.put = func(_ context.Context, name string, content io.Reader) error {
				all, err := io.ReadAll(content)
				return errors.Join(err, c.sink.keep(name, bytes.NewReader(all[:10])))
			}
		},
		"target that does not read": func(c *fakeCluster) {
			c.sink.put = func(context.Context, string, io.Reader) error { return nil }
		},
		"panic of the target": func(c *fakeCluster) {
			c.sink.put = func(_ context.Context, name string, content io.Reader) error {
				_ = c.sink.keep(name, content)
				panic("index out of range")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newFakeCluster()
				fail(c)
				c.run(t, 0, Plan{Every: time.Hour})
				time.Sleep(30 * time.Minute)
				synctest.Wait()
				if left := c.sink.entries(t); len(left) > 0 {
					t.Errorf("%v is left", left)
				}
				failures := len(c.recorded())
				if failures < 4 || failures > 20 {
					t.Errorf("%d failures are recorded", failures)
				}
				for _, outcome := range c.recorded() {
					if outcome.Id != "" || outcome.Error == "" || len(outcome.Error) > errorMax {
						t.Errorf("recorded: %v", outcome)
					}
				}
				c.mu.Lock()
				c.failure, c.copying, c.sink.put = nil, 0, nil
				c.mu.Unlock()
				time.Sleep(12 * time.Minute)
				synctest.Wait()
				outcomes := c.recorded()
				if last := outcomes[len(outcomes)-1]; last.Id == "" || len(c.sink.entries(t)) != 1 {
					t.Errorf("after the cause has ended: %v, %v", last, c.sink.entries(t))
				}
			})
		})
	}
}

// What passes by itself within three minutes is no failure, and no reason for a full backup: the
// checkpoint that an earlier leader has left, or a leader that is not known yet.
func TestPlan_PassingFailures(t *testing.T) {
	for name, refusal := range map[string]error{
		"in progress": fmt.Errorf("begin: %w", ErrInProgress), "missed": ErrMissed,
		"no leader": &cluster.UnavailableError{NotExecuted: true, Err: errors.New("no leader")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newFakeCluster()
				refuse := func(err error, after time.Duration) {
					t.Helper()
					c.mu.Lock()
					c.refusal = err
					c.mu.Unlock()
					time.Sleep(after)
					synctest.Wait()
				}
				failed := func() (failures int) {
					for _, outcome := range c.recorded() {
						if outcome.Error != "" {
							failures++
						}
					}
					return failures
				}
				c.run(t, 0, Plan{Every: time.Hour})
				refuse(nil, 30*time.Minute)
				refuse(refusal, 32*time.Minute) // for two minutes after the second is due
				refuse(nil, passingBackoffMax)
				if entries := c.sink.entries(t); failed() > 0 || len(entries) != 2 || entries[1].Base == "" {
					t.Errorf("after two minutes: %d failures, backups %v", failed(), entries)
				}
				refuse(refusal, time.Hour+10*time.Minute)
				if failures := failed(); failures < 2 || failures > 20 {
					t.Errorf("after ten minutes: %d failures", failures)
				}
				refuse(nil, 10*time.Minute)
				refuse(refusal, 52*time.Minute)
				before := failed()
				refuse(nil, passingBackoffMax)
				if failed() > before || len(c.sink.entries(t)) != 4 {
					t.Errorf("the next time: %d new failures, backups %v", failed()-before, c.sink.entries(t))
				}
			})
		})
	}
}

// Backups of an earlier lineage are neither continued nor removed, and do not count.
func TestPlan_OtherLineages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster()
		c.run(t, 0, Plan{Every: time.Hour, Keep: 2})
		time.Sleep(150 * time.Minute)
		synctest.Wait()
		before := c.sink.entries(t)
		c.mu.Lock()
		c.lineage = "restored"
		c.mu.Unlock()
		c.lead(1)
		time.Sleep(time.Minute)
		c.lead(0)
		time.Sleep(10 * time.Hour)
		synctest.Wait()
		entries := c.sink.entries(t)
		for _, e := range before {
			if !slices.Contains(entries, e) {
				t.Errorf("%s is removed", e.Name)
			}
		}
		first := entries[len(before)]
		if first.Base != "" || first.Time.Sub(before[len(before)-1].Time) > 40*time.Minute {
			t.Errorf("the first of the new lineage: %+v", first)
		}
	})
}

func TestPlan_Check(t *testing.T) {
	good := Plan{To: Directory("x"), Every: time.Second}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for field, change := range map[string]func(*Plan){
		"To": func(p *Plan) { p.To = nil }, "Every": func(p *Plan) { p.Every = time.Millisecond },
		"Keep": func(p *Plan) { p.Keep = -1 }, "Increments": func(p *Plan) { p.Increments = -2 },
	} {
		p := good
		change(&p)
		if invalid, ok := errors.AsType[*replay.InvalidError](p.Check()); !ok || invalid.Field != field {
			t.Errorf("%s: %v", field, p.Check())
		}
	}
}

// entryOf returns an entry made at an hour, with one digit as its ID and its base.
func entryOf(hour int, id, base string) Entry {
	return Entry{Name: id, ID: id, Base: base, Time: time.Date(2030, 1, 1, hour, 0, 0, 0, time.UTC)}
}

func names(entries []Entry) string {
	var all []string
	for _, e := range entries {
		all = append(all, e.Name)
	}
	return strings.Join(all, "")
}

func TestChain_NewestCompleteOne(t *testing.T) {
	entries := []Entry{
		entryOf(5, "5", "4"), entryOf(1, "1", ""), entryOf(2, "2", "1"), entryOf(3, "3", "missing"), entryOf(4, "4", ""),
		entryOf(6, "6", "7"), entryOf(7, "7", "6"),
	}
	for hour, want := range map[int]string{0: "", 1: "1", 2: "12", 3: "12", 4: "4", 5: "45", 9: "45"} {
		chain, err := Chain(entries, time.Date(2030, 1, 1, hour, 0, 0, 0, time.UTC))
		if names(chain) != want || (err == nil) != (want != "") || err != nil && !errors.Is(err, ErrNoBackup) {
			t.Errorf("at %d: %s, %v; want %s", hour, names(chain), err, want)
		}
	}
	if chain, err := Chain(entries, time.Time{}); names(chain) != "45" || err != nil {
		t.Errorf("the newest: %s, %v", names(chain), err)
	}
}

func TestSurplus_KeepsWhatIsNeeded(t *testing.T) {
	entries := []Entry{entryOf(1, "1", ""), entryOf(2, "2", "1"), entryOf(3, "3", "2"), entryOf(4, "4", ""), entryOf(5, "5", "4"), entryOf(6, "6", "x")}
	for keep, want := range map[int]string{0: "", 1: "321", 2: "321", 3: "", 4: "", 9: ""} {
		if got := names(surplus(entries, keep)); got != want {
			t.Errorf("keeping %d: %s are removed, want %s", keep, got, want)
		}
	}
}

func TestName_RoundTrip(t *testing.T) {
	for _, base := range []string{"", strings.Repeat("a", 32)} {
		info := &Info{ID: testID, Base: base, Cluster: "shop.A_b-1", Cut: 17, Time: time.Date(2030, 1, 2, 3, 4, 5, 678, time.UTC)}
		name := nameOf(info)
		e, ok := parseName(name)
		want := Entry{Name: name, ID: info.ID, Base: base, Cut: 17, Time: info.Time, origin: originOf(info.Cluster, "")}
		if !ok || e != want || !isName(name) {
			t.Errorf("%s: %+v, %v; want %+v", name, e, ok, want)
		}
		for at := range name {
			if e, ok := parseName(name[:at]); ok {
				t.Errorf("%s: %+v", name[:at], e)
			}
		}
	}
}

func TestDirectory_StoresAsAWhole(t *testing.T) {
	ctx, d := t.Context(), Directory(t.TempDir()+"/made")
	if sizes, err := d.List(ctx); err != nil || len(sizes) > 0 {
		t.Errorf("before the first: %v, %v", sizes, err)
	}
	if err := d.Put(ctx, "a.backup", strings.NewReader("content")); err != nil {
		t.Fatal(err)
	}
	for _, broken := range []error{errors.New("broken"), io.ErrUnexpectedEOF, fmt.Errorf("connection: %w", io.EOF)} {
		if err := d.Put(ctx, "b.backup", io.MultiReader(strings.NewReader("x"), &failingReader{broken})); !errors.Is(err, broken) {
			t.Errorf("a reader that fails with %v: %v", broken, err)
		}
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := d.Put(ended, "c.backup", strings.NewReader("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
	if err := d.Put(ctx, "a.backup", strings.NewReader("other")); err == nil {
		t.Error("a backup was replaced")
	}
	for _, name := range []string{"", "..", ".x", "../x", "a/b", `a\b`, "a.partial", "ü", strings.Repeat("x", nameMax+1)} {
		_, openErr := d.Open(ctx, name)
		for what, err := range map[string]error{"put": d.Put(ctx, name, strings.NewReader("x")), "open": openErr, "remove": d.Remove(ctx, name)} {
			if _, ok := errors.AsType[*replay.InvalidError](err); !ok {
				t.Errorf("%s %q: %v", what, name, err)
			}
		}
	}
	from, err := d.Open(ctx, "a.backup")
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(from)
	if errors.Join(err, from.Close()) != nil || string(content) != "content" {
		t.Errorf("%q, %v", content, err)
	}
	if sizes, err := d.List(ctx); err != nil || !maps.Equal(sizes, map[string]int64{"a.backup": 7}) {
		t.Errorf("%v, %v", sizes, err)
	}
	for range 2 {
		if err := d.Remove(ctx, "a.backup"); err != nil {
			t.Error(err)
		}
	}
	if sizes, err := d.List(ctx); err != nil || len(sizes) > 0 {
		t.Errorf("after the removal: %v, %v", sizes, err)
	}
}

type failingReader struct{ err error }

func (r *failingReader) Read([]byte) (int, error) { return 0, r.err }
