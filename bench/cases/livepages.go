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
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// How many pages are open.
	livePages = 100
	// A page waits between a change and its read: livePausePart times as long as its last read
	// took, but at least liveCoalesce and at most livePauseMax.
	liveCoalesce, livePausePart, livePauseMax = time.Second, 10, 10 * time.Second
)

// A livePage is a kind of open page: what it follows, and what it reads after events that do not
// contain all that it shows.
type livePage struct {
	share  int // how many of the livePages are of this kind
	topic  string
	reads  []string
	silent []string // the kinds of events that contain all: it reads nothing after them
}

// livePageKinds returns the kinds of open pages. They follow and read what the JavaScript modules
// do.
func livePageKinds() []livePage {
	long := "api/instances/" + longID
	all := []livePage{
		{40, "overview", []string{"api/overview"}, []string{"state"}},
		{8, "cluster", []string{"api/cluster"}, []string{"state"}},
		{5, "list:name=tenuto.schedule", []string{"api/schedules?soon=true"}, nil},
		{2, "list:name=tenuto.bulk", []string{"api/jobs?soon=true"}, nil},
		{5, "instance:" + longID, []string{long, long + "/pending"}, nil},
		liveList(20, "order=-updated"),
	}
	for _, filter := range []string{"state=failed", "state=completed", "tag.region=r2", "attr.tenant=t0"} {
		all = append(all, liveList(5, filter+" order=-updated"))
	}
	return all
}

func liveList(share int, filter string) livePage {
	escaped := url.QueryEscape(filter)
	return livePage{
		share, "list:" + filter,
		[]string{"api/instances?limit=100&filter=" + escaped, "api/count?max=10000&filter=" + escaped},
		[]string{"state", "count"},
	}
}

// livePageSet are open pages.
type livePageSet struct {
	*dashboardServer
	cancel         context.CancelFunc
	streams, reads sync.WaitGroup
	work           atomic.Int64 // events and reads
	mu             sync.Mutex
	failures       []error
}

// openPages opens all pages and returns after each has received its first event. The caller must
// close them.
func (s *dashboardServer) openPages(ctx context.Context) (*livePageSet, error) {
	pages := &livePageSet{dashboardServer: s}
	ctx, pages.cancel = context.WithCancel(ctx)
	var opening sync.WaitGroup
	for _, kind := range livePageKinds() {
		for range kind.share {
			opening.Add(1)
			page := &openPage{livePageSet: pages, livePage: kind, opened: sync.OnceFunc(opening.Done)}
			pages.streams.Go(func() { pages.fail(ctx, page.follow(ctx)) })
		}
	}
	opening.Wait()
	if ctx.Err() != nil {
		return nil, errors.Join(ctx.Err(), pages.close())
	}
	return pages, nil
}

// close closes the pages. It returns what failed while they were open.
func (p *livePageSet) close() error {
	p.cancel()
	p.streams.Wait()
	p.reads.Wait()
	return errors.Join(p.failures...)
}

// fail keeps an error, unless the pages are being closed.
func (p *livePageSet) fail(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failures = append(p.failures, err)
}

// An openPage is one of the pages.
type openPage struct {
	*livePageSet
	livePage
	opened func()
	waits  atomic.Bool  // until it reads
	took   atomic.Int64 // the last read, in nanoseconds
}

// follow reads the page's stream until the context ends.
func (p *openPage) follow(ctx context.Context) error {
	defer p.opened()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base+"api/events?topics="+url.QueryEscape(p.topic), nil)
	if err != nil {
		return err
	}
	answer, err := p.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("stream of %s: %s", p.topic, answer.Status)
	}
	return eachEvent(answer.Body, func(name []byte) {
		p.opened()
		p.work.Add(1)
		kind := string(name[bytes.LastIndexByte(name, '-')+1:])
		if !slices.Contains(p.silent, kind) && p.waits.CompareAndSwap(false, true) {
			p.livePageSet.reads.Go(func() { p.read(ctx) })
		}
	})
}

// read reads what the page shows, after a pause in which more may change.
func (p *openPage) read(ctx context.Context) {
	pause := min(max(liveCoalesce, livePausePart*time.Duration(p.took.Load())), livePauseMax)
	if sleep(ctx, pause) != nil {
		return
	}
	p.waits.Store(false)
	began := time.Now()
	for _, path := range p.livePage.reads {
		p.work.Add(1)
		_, err := p.get(ctx, path)
		p.fail(ctx, err)
	}
	p.took.Store(int64(time.Since(began)))
}

// eachEvent passes the names of the events of a stream. It returns the error that ends the stream.
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
