package cases

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/bench/measure"
	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay"
)

const (
	listPageLimit = 100
	// How often each page and each count is read.
	listSingles, listPairs, listCounts = 20, 2, 200
	// At most so many orchestrations run beside the reads at a time.
	listBesideMax = 100
	// Few instances stay resident, so that memory is that of the state.
	listResidentMax = 1_000
)

// list measures pages of N instances in many states, and counts by state, on a node that has been
// restarted with them, beside sequences of five activities. The reads are those of the dashboard:
// with cluster.Stale, so that they do not wait for the disk.
func list(ctx context.Context, e *Env) (result *measure.Result, err error) {
	d, err := deploy(ctx, e, func(c *cluster.Config) { c.ResidentMax = listResidentMax })
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	before, began := measure.Retained(), time.Now()
	if err := d.startListed(ctx); err != nil {
		return nil, err
	}
	after, err := settledMemory(ctx)
	if err != nil {
		return nil, err
	}
	result = &measure.Result{}
	addEach(result, "memory each", 0, float64(after)-float64(before), e.N)
	// What is measured is a node that has these instances, not one that has just started them all.
	if err := errors.Join(d.close(), d.start(ctx)); err != nil {
		return nil, err
	}
	r := &listReader{deployment: d, fields: listFields(e.N, began, time.Now())}
	beside, err := d.beside(ctx, result, func(ctx context.Context) error { return r.readAll(ctx, result) })
	if err != nil {
		return nil, err
	}
	// All that is listed is on disk once the node has stopped.
	if err := d.close(); err != nil {
		return nil, err
	}
	size, err := stateBytes(e.Dir)
	addEach(result, "state on disk each", 0, float64(size), e.N+beside)
	return result, err
}

type listedInput struct {
	Number int `json:"number"`
}

// listedBody ends or waits by its number: 60% complete, 8% fail, 20% wait for an activity, 6% for a
// timer, and 6% for an event.
func listedBody(ctx *replay.Context, in listedInput) (int, error) {
	if err := tenant.Set(ctx, fmt.Sprint("t", in.Number/100%100)); err != nil {
		return 0, err
	}
	switch kind := in.Number % 100; {
	case kind < 60:
		return 0, nil
	case kind < 68:
		return 0, replay.WithCode(fmt.Sprint("code-", kind), errors.New("refused"))
	case kind < 88:
		return unbound.Call(ctx, 0)
	case kind < 94:
		return 0, ctx.Sleep(time.Duration(24+in.Number%1000) * time.Hour)
	}
	return word.Wait(ctx)
}

// listedID scatters the numbers over the order by ID.
func listedID(i int) string { return fmt.Sprintf("listed-%016x", uint64(i)*0x9e3779b97f4a7c15) }

// startListed starts N instances and waits until they have ended, or wait.
func (d *deployment) startListed(ctx context.Context) error {
	if _, err := d.env.burst(ctx, "starts", d.env.N, d.env.C, func(ctx context.Context, i int) error {
		tags := map[string]string{"region": fmt.Sprint("r", i/100%4), "customer": fmt.Sprint(i % 10_000)}
		_, err := cluster.StartRun(ctx, d.client(), listed, listedID(i), listedInput{i}, cluster.Tags(tags))
		return err
	}); err != nil {
		return err
	}
	ended := 0
	for i := range d.env.N {
		if i%100 < 68 {
			ended++
		}
	}
	for {
		n, err := d.client().Count(ctx, cluster.Filter{Name: listed.Name(), States: []cluster.State{cluster.Completed, cluster.Failed}})
		if err != nil || n == ended {
			return err
		}
		d.env.Progress(fmt.Sprintf("ended %d of %d", n, ended))
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// A listField sets one condition or the order of a filter.
type listField struct {
	name    string
	isOrder bool
	set     func(*cluster.Filter)
}

// listFields returns the indexed fields. The instances were started from began to ended.
func listFields(n int, began, ended time.Time) []listField {
	at := func(share float64) time.Time { return began.Add(time.Duration(share * float64(ended.Sub(began)))) }
	field := func(name string, set func(*cluster.Filter)) listField { return listField{name, false, set} }
	order := func(name string, descending bool) listField {
		return listField{name, true, func(f *cluster.Filter) { f.Order, f.Descending = name, descending }}
	}
	return []listField{
		field("state", func(f *cluster.Filter) { f.States = []cluster.State{cluster.Failed} }),
		field("name", func(f *cluster.Filter) { f.Name = listed.Name() }),
		field("prefix", func(f *cluster.Filter) { f.IDPrefix = "listed-7" }),
		field("created", func(f *cluster.Filter) { f.CreatedFrom, f.CreatedBefore = at(0.4), at(0.6) }),
		field("updated", func(f *cluster.Filter) { f.UpdatedFrom, f.UpdatedBefore = at(0.70), at(0.72) }),
		field("ended", func(f *cluster.Filter) { f.EndedFrom, f.EndedBefore = at(0.2), at(0.25) }),
		field("tag of 25%", func(f *cluster.Filter) { f.Tags = map[string]string{"region": "r2"} }),
		field("tag of few", func(f *cluster.Filter) { f.Tags = map[string]string{"customer": fmt.Sprint(min(n, 10_000) / 2)} }),
		field("attribute", func(f *cluster.Filter) { f.Attributes = map[string]string{tenant.Name(): "t0"} }),
		field("error", func(f *cluster.Filter) { f.ErrorCode = "code-63" }),
		field("activity", func(f *cluster.Filter) { f.WaitingKind, f.WaitingName = "activity", unbound.Name() }),
		field("event", func(f *cluster.Filter) { f.WaitingKind = "event" }),
		field("since", func(f *cluster.Filter) { f.WaitingFrom, f.WaitingBefore = at(0.5), at(0.52) }),
		order("id", true), order("created", false), order("updated", true), order("ended", true), order("timer", false),
	}
}

// listReader reads pages and counts.
type listReader struct {
	*deployment
	fields []listField
}

// beside calls read while sequences of activities run, and returns how many have ended.
func (d *deployment) beside(ctx context.Context, result *measure.Result, read func(context.Context) error) (ended int, err error) {
	running, stop := context.WithCancel(ctx)
	defer stop()
	var workers sync.WaitGroup
	counts := make([]int, min(d.env.C, listBesideMax))
	failures := make([]error, len(counts))
	began := time.Now()
	for w := range counts {
		call := d.callSequence(fmt.Sprint("beside-", w), 5)
		workers.Go(func() {
			for running.Err() == nil {
				if err := retryBusy(running, counts[w], call); err != nil {
					if running.Err() == nil {
						failures[w] = err
					}
					return
				}
				counts[w]++
			}
		})
	}
	err = read(ctx)
	took := time.Since(began)
	stop()
	workers.Wait()
	for _, n := range counts {
		ended += n
	}
	result.AddRate("orchestrations beside", max(ended, 1), took)
	return ended, errors.Join(append(failures, err)...)
}

// readAll reads pages by each field and order, by each two, and counts.
func (r *listReader) readAll(ctx context.Context, result *measure.Result) error {
	one, order, two := &measure.Histogram{}, &measure.Histogram{}, &measure.Histogram{}
	rows := 0
	for i, a := range r.fields {
		r.env.Progress("pages by " + a.name)
		for _, b := range r.fields[i:] {
			var filter cluster.Filter
			a.set(&filter)
			b.set(&filter)
			pages, latency := listPairs, two
			if a.name == b.name {
				pages, latency = listSingles, one
				if a.isOrder {
					latency = order
				}
			}
			for range pages {
				began := time.Now()
				page, err := r.client().List(ctx, filter, "", listPageLimit, cluster.Stale())
				if err != nil {
					return fmt.Errorf("list by %s and %s: %w", a.name, b.name, err)
				}
				latency.Record(time.Since(began))
				rows += len(page.Instances)
			}
		}
	}
	count := &measure.Histogram{}
	for range listCounts {
		began := time.Now()
		groups, err := r.client().CountBy(ctx, cluster.Filter{}, []string{"state"})
		if err != nil {
			return err
		}
		if count.Record(time.Since(began)); len(groups) == 0 {
			return errors.New("a count of instances has no groups")
		}
	}
	result.AddLatency("page, one field", one, "", "")
	result.AddLatency("page, an order", order, "", "")
	result.AddLatency("page, two fields", two, "", "")
	result.AddLatency("count by state", count, "", "")
	pages := one.Count() + order.Count() + two.Count()
	result.Add(measure.Metric{Name: "rows of a page", Unit: measure.Count, Value: float64(rows) / float64(pages)})
	return nil
}

// stateBytes returns the size of the stores of the state below a directory.
func stateBytes(dir string) (size int64, err error) {
	stores, err := filepath.Glob(filepath.Join(dir, "*", "state"))
	more, moreErr := filepath.Glob(filepath.Join(dir, "*", "*", "state"))
	for _, store := range append(stores, more...) {
		err = errors.Join(err, filepath.WalkDir(store, func(_ string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			info, err := entry.Info()
			if err == nil {
				size += info.Size()
			}
			return err
		}))
	}
	if size == 0 && errors.Join(err, moreErr) == nil {
		return 0, fmt.Errorf("no state in %s: %w", dir, os.ErrNotExist)
	}
	return size, errors.Join(err, moreErr)
}
