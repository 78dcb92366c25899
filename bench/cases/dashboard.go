package cases

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/bench/measure"
	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/bulk"
	"github.com/tenuto-dev/tenuto/cluster/dashboard"
	"github.com/tenuto-dev/tenuto/cluster/schedule"
)

const (
	// How many schedules and jobs are listed.
	dashboardSchedules, dashboardJobs = 100, 20
	// The most events of the long history.
	dashboardEvents = 50_000
	// How often each page and the long instance are read.
	dashboardReads, dashboardInstanceReads = 100, 5
	longID                                 = "long"
)

// dashboardServer is a dashboard of a deployment's node, and a browser.
type dashboardServer struct {
	*deployment
	server *http.Server
	base   string
	client *http.Client
}

// dashboards measures a dashboard of a node that was restarted with N instances: its pages while
// sequences of five activities run, the page of an instance with a long history, and how much a
// hundred open pages slow the sequences down.
func dashboards(ctx context.Context, e *Env) (result *measure.Result, err error) {
	d, err := deploy(ctx, e, func(c *cluster.Config) { c.ResidentMax = listResidentMax })
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if err := errors.Join(d.startListed(ctx), d.startListedControls(ctx), d.growLong(ctx)); err != nil {
		return nil, err
	}
	if err := errors.Join(d.close(), d.start(ctx)); err != nil {
		return nil, err
	}
	s, err := serveDashboard(d)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	result = &measure.Result{}
	if err := s.readLong(ctx, result); err != nil {
		return nil, err
	}
	reads := func(ctx context.Context) error { return s.readPages(ctx, result) }
	if _, err := d.beside(ctx, result, reads); err != nil {
		return nil, err
	}
	return result, s.compareWindows(ctx, result)
}

func serveDashboard(d *deployment) (*dashboardServer, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &dashboardServer{
		deployment: d,
		server:     &http.Server{Handler: dashboard.Handler(d.client(), dashboard.Options{Logger: d.env.Logger})},
		base:       "http://" + listener.Addr().String() + "/",
		client:     &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: livePages}},
	}
	go func() { _ = s.server.Serve(listener) }() // it ends with close
	return s, nil
}

func (s *dashboardServer) close() error {
	s.client.CloseIdleConnections()
	return s.server.Close()
}

// startListedControls starts the schedules and the jobs that the pages list.
func (d *deployment) startListedControls(ctx context.Context) error {
	for i := range dashboardSchedules {
		spec := schedule.Spec{Cron: []string{fmt.Sprintf("%d %d * * *", i%60, i%24)}}
		if err := schedule.Create(ctx, d.client(), fmt.Sprint("nightly-", i), spec, inSequence, 5); err != nil {
			return err
		}
	}
	for i := range dashboardJobs {
		job := bulk.Job{ID: fmt.Sprint("job-", i), Action: bulk.Cancel, Filter: cluster.Filter{IDPrefix: "none-"}}
		if _, err := bulk.Start(ctx, d.client(), job); err != nil {
			return err
		}
	}
	return nil
}

// growLong starts the instance with the long history and waits until it has all its events.
func (d *deployment) growLong(ctx context.Context) error {
	activities := min(dashboardEvents, d.env.N) / 2
	if _, err := cluster.StartRun(ctx, d.client(), growing, longID, activities); err != nil {
		return err
	}
	_, err := poll(ctx, longID, func() (int, bool) {
		n, err := cluster.Query(ctx, d.client(), longID, grown, 0)
		return n, err == nil && n == activities
	})
	return err
}

// get reads a whole answer and returns the time until its first byte.
func (s *dashboardServer) get(ctx context.Context, path string) (time.Duration, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+path, nil)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	answer, err := s.client.Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	var first [1]byte
	_, err = io.ReadFull(answer.Body, first[:])
	took := time.Since(began)
	if err == nil {
		_, err = io.Copy(io.Discard, answer.Body)
	}
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status)
	}
	if err != nil {
		return 0, fmt.Errorf("GET %s: %w", path, err)
	}
	return took, nil
}

// A dashboardRead is a call of the API that a page makes before it shows anything.
type dashboardRead struct{ name, path string }

// dashboardReadList returns the first calls of the overview and of each list page. Before them
// comes a call that needs nothing of the node: it shows how long an answer waits for a processor.
func dashboardReadList() []dashboardRead {
	all := []dashboardRead{
		{"session", "api/session"}, {"overview", "api/overview"}, {"schedules", "api/schedules?soon=true"}, {"jobs", "api/jobs?soon=true"},
		{"code", "api/code"}, {"cluster", "api/cluster"},
	}
	for _, filter := range listFilters {
		all = append(all, dashboardRead{"instances, " + filter, "api/instances?filter=" + url.QueryEscape(filter)})
	}
	return all
}

// firstList is the index of the first list in dashboardReadList.
const firstList = 2

// listFilters are those of the list pages that are measured.
var listFilters = []string{
	"order=-updated", "order=id", "order=-created", "order=timer", "order=-ended",
	"state=failed order=-updated", "state=running order=-updated", "name=listed order=-updated",
	"tag.region=r2 order=-updated", "tag.customer=7 order=-updated", "attr.tenant=t0 order=-updated",
	"error=code-63 order=-updated", "waiting=activity:unbound order=-updated", "id=listed-7* order=-updated",
}

// readPages reads each page in turn. A target bounds the slowest list.
func (s *dashboardServer) readPages(ctx context.Context, result *measure.Result) error {
	reads := dashboardReadList()
	latencies, lists := make([]measure.Histogram, len(reads)), &measure.Histogram{}
	rounds := max(1, min(dashboardReads, s.env.N/10))
	for round := range rounds {
		s.env.Progress(fmt.Sprintf("pages, round %d of %d", round+1, rounds))
		for i, read := range reads {
			took, err := s.get(ctx, read.path)
			if err != nil {
				return err
			}
			if latencies[i].Record(took); i >= firstList {
				lists.Record(took)
			}
		}
	}
	slowest := time.Duration(0)
	for i, read := range reads {
		result.AddLatency(read.name, &latencies[i], "", "")
		if i >= firstList {
			slowest = max(slowest, latencies[i].Quantile(0.99))
		}
	}
	result.AddLatency("all lists", lists, "", "")
	result.Add(measure.Metric{Name: "slowest list p99", Unit: measure.Duration, Value: float64(slowest)})
	return nil
}

// readLong reads what the page of the long instance shows first. The first of the reads loads the
// instance.
func (s *dashboardServer) readLong(ctx context.Context, result *measure.Result) error {
	latency := &measure.Histogram{}
	for range dashboardInstanceReads {
		began := time.Now()
		var group sync.WaitGroup
		paths := []string{"", "/timeline", "/pending", "/history?execution=1&limit=500&payloads=true"}
		failures := make([]error, len(paths))
		for i, path := range paths {
			group.Go(func() { _, failures[i] = s.get(ctx, "api/instances/"+longID+path) })
		}
		group.Wait()
		if err := errors.Join(failures...); err != nil {
			return err
		}
		latency.Record(time.Since(began))
	}
	result.AddLatency("long instance, first screen", latency, "", "")
	return nil
}
