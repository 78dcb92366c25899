package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay/engine"
	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

// fetchStar is a site whose top page links to many pages, each of which links back.
func fetchStar(_ context.Context, path string) (Page, error) {
	page := Page{Path: path, Links: []string{"/"}}
	if path == "/" {
		for i := range 20 {
			page.Links = append(page.Links, fmt.Sprintf("/%d", i), fmt.Sprintf("/%d", i))
		}
	}
	return page, nil
}

func TestCrawl_FetchesEachPageOnceAndPaced(t *testing.T) {
	env := replaytest.New(t, Crawl.Bind(crawl))
	var began []time.Time
	replaytest.Stub(env, Fetch, func(ctx context.Context, path string) (Page, error) {
		began = append(began, time.Now())
		return fetchStar(ctx, path)
	})
	site := Site{Wave: []string{"/"}, Depth: 5, AtOnce: 3, Every: time.Second}
	found, err := replaytest.Call(env, Crawl, "crawl", site)
	if err != nil || found.Pages != 21 {
		t.Errorf("%+v: %v", found, err)
	}
	paths := replaytest.Calls(env, Fetch)
	slices.Sort(paths)
	if n := len(slices.Compact(paths)); n != 21 || len(began) != 21 {
		t.Errorf("%d pages, %d requests", n, len(began))
	}
	for i := 1; i < len(began); i++ {
		if delay := began[i].Sub(began[i-1]); delay < time.Second {
			t.Errorf("request %d began %v after the one before", i, delay)
		}
	}
}

func TestCrawl_StopsAtDepth(t *testing.T) {
	env := replaytest.New(t, Crawl.Bind(crawl))
	replaytest.Stub(env, Fetch, func(_ context.Context, path string) (Page, error) {
		return Page{Path: path, Links: []string{path + "x"}}, nil
	})
	found, err := replaytest.Call(env, Crawl, "crawl", Site{Wave: []string{"/"}, Depth: 5})
	if err != nil || found.Pages != 5 {
		t.Errorf("%+v: %v", found, err)
	}
}

// The result must not depend on which request is answered first.
func TestCrawl_ResultIsIndependentOfOrder(t *testing.T) {
	replaytest.Permute(t, 20, func(t *testing.T, env *replaytest.Env) Found {
		replaytest.Stub(env, Fetch, fetchStar)
		found, err := replaytest.Call(env, Crawl, "crawl", Site{Wave: []string{"/"}, Depth: 2})
		if err != nil {
			t.Error(err)
		}
		return found
	}, Crawl.Bind(crawl))
}

// The real activity with a real server: temporary failures are errors, permanent ones are
// results.
func TestFetch(t *testing.T) {
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/busy":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/gone":
			http.NotFound(w, r)
		default:
			fmt.Fprint(w, `<a href="/a"> <a href="http://elsewhere.example"> <a href="/b">`)
		}
	}))
	defer site.Close()
	r := &fetcher{site.URL, site.Client()}
	if page, err := r.fetch(t.Context(), "/x"); err != nil || page.Path != "/x" || !slices.Equal(page.Links, []string{"/a", "/b"}) {
		t.Errorf("%+v: %v", page, err)
	}
	if page, err := r.fetch(t.Context(), "/gone"); err != nil || !page.Broken {
		t.Errorf("%+v: %v", page, err)
	}
	if _, err := r.fetch(t.Context(), "/busy"); err == nil || engine.EncodeError(err).GetNonRetryable() {
		t.Errorf("a busy server is %v", err)
	}
}

func TestRun(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), "", &out); err != nil {
		t.Fatal(err)
	}
	if out.String() != "broken: /page/31\n30 pages, 1 broken links\n" {
		t.Error(out.String())
	}
}
