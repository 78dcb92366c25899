package cases

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/bench/measure"
)

const (
	// The pages that are open, and how long a page collects changes before it reads.
	livePages    = 100
	liveCoalesce = time.Second
	// The pairs of windows, and the sequences of each, at most.
	windowPairs, windowMax = 6, 20_000
)

// A livePage is what an open page follows and what it reads after an event that does not say all.
type livePage struct {
	share  int // of livePages
	topic  string
	reads  []string
	silent []string // the kinds of events after which it reads nothing
}

// livePageKinds are the pages that are open: what assets/*.js do.
func livePageKinds() []livePage {
	all := []livePage{
		{40, "overview", []string{"api/overview"}, []string{"state"}},
		{8, "cluster", []string{"api/cluster"}, []string{"state"}},
		{5, "list:name=tenuto.schedule", []string{"api/schedules?soon=true"}, nil},
		{2, "list:name=tenuto.bulk", []string{"api/jobs?soon=true"}, nil},
		{5, "instance:" + longID, []string{"api/instances/" + longID, "api/instances/" + longID + "/pending"}, nil},
		listPage(20, "", "order=-updated"),
	}
	for _, filter := range []string{"state=failed", "state=completed", "tag.region=r2", "attr.tenant=t0"} {
		all = append(all, listPage(5, filter, filter+" order=-updated"))
	}
	return all
}

func listPage(share int, filter, ordered string) livePage {
	return livePage{share, "list:" + ordered, []string{
		"api/instances?limit=100&filter=" + url.QueryEscape(ordered), "api/instances/count?max=10000&filter=" + url.QueryEscape(filter),
	}, []string{"state", "count"}}
}

// livePageSet are open pages.
type livePageSet struct {
	*dashboardServer
	streams, reads sync.WaitGroup
	events, readAt atomic.Int64
	mu             sync.Mutex
	failures       []error
}

// openPages opens all pages and returns when each has its first event. close closes them.
func (s *dashboardServer) openPages(ctx context.Context) (pages *livePageSet, close func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	pages = &livePageSet{dashboardServer: s}
	opened := make(chan struct{}, livePages)
	count := 0
	for _, page := range livePageKinds() {
		for range page.share {
			count++
			pages.streams.Go(func() { pages.follow(ctx, &page, opened) })
		}
	}
	close = func() error {
		cancel()
		pages.streams.Wait()
		pages.reads.Wait()
		return errors.Join(pages.failures...)
	}
	for range count {
		select {
		case <-opened:
		case <-ctx.Done():
			return nil, nil, errors.Join(ctx.Err(), close())
		}
	}
	return pages, close, nil
}

func (p *livePageSet) fail(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failures = append(p.failures, err)
}

// follow reads a page's stream until the context ends.
func (p *livePageSet) follow(ctx context.Context, page *livePage, opened chan<- struct{}) {
	isOpened := false
	open := func() {
		if !isOpened {
			isOpened = true
			opened <- struct{}{}
		}
	}
	defer open()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base+"api/events?topics="+url.QueryEscape(page.topic), nil)
	if err != nil {
		p.fail(ctx, err)
		return
	}
	answer, err := p.client.Do(r)
	if err != nil {
		p.fail(ctx, err)
		return
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		p.fail(ctx, fmt.Errorf("stream of %s: %s", page.topic, answer.Status))
		return
	}
	var waits atomic.Bool
	p.fail(ctx, eachEvent(answer.Body, func(name []byte) {
		open()
		p.events.Add(1)
		kind := string(name[bytes.LastIndexByte(name, '-')+1:])
		for _, silent := range page.silent {
			if kind == silent {
				return
			}
		}
		if waits.CompareAndSwap(false, true) {
			p.reads.Go(func() { p.read(ctx, page, &waits) })
		}
	}))
}

// read reads what a page shows, after some more events may have come.
func (p *livePageSet) read(ctx context.Context, page *livePage, waits *atomic.Bool) {
	if sleep(ctx, liveCoalesce) != nil {
		return
	}
	waits.Store(false)
	for _, path := range page.reads {
		p.readAt.Add(1)
		_, err := p.get(ctx, path)
		p.fail(ctx, err)
	}
}

// eachEvent passes the names of the events of a stream.
func eachEvent(stream io.Reader, pass func(name []byte)) error {
	lines := bufio.NewReaderSize(stream, 64<<10)
	for isStart := true; ; {
		line, err := lines.ReadSlice('\n')
		if name, ok := bytes.CutPrefix(line, []byte("event: ")); ok && isStart {
			pass(bytes.TrimSpace(name))
		}
		isStart = err == nil // else the line goes on
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

// compareWindows runs sequences with and without open pages, in turn.
func (s *dashboardServer) compareWindows(ctx context.Context, result *measure.Result) error {
	n := min(s.env.N, windowMax)
	if _, err := s.window(ctx, 0, min(n, warmUpMax), false); err != nil {
		return err
	}
	var rates, costs []float64
	for pair := range windowPairs {
		s.env.Progress(fmt.Sprintf("windows, pair %d of %d", pair+1, windowPairs))
		var got [2]window
		for i := range got {
			open := (pair+i)%2 == 1 // without, with; with, without; …
			w, err := s.window(ctx, 1+2*pair+i, n, open)
			if err != nil {
				return err
			}
			at := 0
			if open {
				at = 1
			}
			got[at] = w
		}
		rates = append(rates, got[1].rate/got[0].rate)
		costs = append(costs, float64(got[1].processor)/float64(got[0].processor))
		result.Add(measure.Metric{Name: "hello5 without pages", At: float64(pair + 1), Unit: measure.PerSecond, Value: got[0].rate})
		result.Add(measure.Metric{Name: "hello5 with pages", At: float64(pair + 1), Unit: measure.PerSecond, Value: got[1].rate})
		result.Add(measure.Metric{Name: "events and reads of pages", At: float64(pair + 1), Unit: measure.PerSecond, Value: got[1].work})
	}
	for name, values := range map[string][]float64{"rate": rates, "processor time": costs} {
		for _, q := range []struct {
			name string
			at   float64
		}{{"", 0.5}, {", lower quartile", 0.25}, {", upper quartile", 0.75}} {
			result.Add(measure.Metric{
				Name: "hello5 with pages ÷ without: " + name + q.name, Unit: measure.Times, Value: measure.ExactQuantile(values, q.at),
			})
		}
	}
	return nil
}

// A window is a part of the run with or without open pages.
type window struct {
	rate      float64       // of sequences
	processor time.Duration // of this process, the pages among it
	work      float64       // events and reads of pages per second
}

// window runs n sequences.
func (s *dashboardServer) window(ctx context.Context, number, n int, open bool) (w window, err error) {
	var pages *livePageSet
	if open {
		opened, close, err := s.openPages(ctx)
		if err != nil {
			return w, err
		}
		defer func() { err = errors.Join(err, close()) }()
		pages = opened
	}
	measure.StartMeter()
	processor, began := measure.ProcessorTime(), time.Now()
	if _, err := s.env.burst(ctx, "sequences", n, s.env.C, s.callSequence(fmt.Sprint("window-", number), 5)); err != nil {
		return w, err
	}
	took := time.Since(began)
	w.rate, w.processor = float64(n)/took.Seconds(), measure.ProcessorTime()-processor
	if pages != nil {
		w.work = float64(pages.events.Load()+pages.readAt.Load()) / took.Seconds()
	}
	return w, nil
}
