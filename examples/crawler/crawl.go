package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// A Site is what to crawl, and the progress of earlier executions.
type Site struct {
	Wave   []string      // the paths to read next
	Depth  int           // the maximum number of waves
	AtOnce int           // the maximum number of concurrent requests
	Every  time.Duration // the minimum interval between requests
	Seen   map[string]bool
	Found  Found
}

// Found is the result of a crawl.
type Found struct {
	Pages  int
	Broken []string
}

// A Page is what was read under one path.
type Page struct {
	Path   string
	Links  []string
	Broken bool
}

var (
	Crawl = replay.Orchestration[Site, Found]("crawl")
	Fetch = replay.Activity[string, Page]("fetch")
)

// crawl reads wave after wave. The new links of one wave are the next wave.
func crawl(ctx *replay.Context, site Site) (Found, error) {
	limiter := &rateLimiter{every: site.Every}
	seen := make(map[string]bool)
	maps.Copy(seen, site.Seen)
	for _, path := range site.Wave {
		seen[path] = true
	}
	for site.Depth > 0 && len(site.Wave) > 0 {
		pages, err := replay.Map(ctx, site.AtOnce, site.Wave, func(ctx *replay.Context, path string) (Page, error) {
			if err := limiter.wait(ctx); err != nil {
				return Page{}, err
			}
			return Fetch.Call(ctx, path, replay.StartToClose(30*time.Second))
		})
		if err != nil {
			return site.Found, err
		}
		site.Wave = nil
		for i := range pages {
			site.Found.add(pages[i])
			for _, link := range pages[i].Links {
				if !seen[link] {
					seen[link] = true
					site.Wave = append(site.Wave, link)
				}
			}
		}
		slices.Sort(site.Wave)
		site.Depth--
		if ctx.ShouldContinueAsNew() {
			site.Seen = seen
			return site.Found, Crawl.ContinueAsNew(ctx, site)
		}
	}
	return site.Found, nil
}

func (f *Found) add(page Page) {
	if page.Broken {
		f.Broken = append(f.Broken, page.Path)
		return
	}
	f.Pages++
}

// A rateLimiter lets one caller pass per interval, first come, first served.
type rateLimiter struct {
	every time.Duration
	next  time.Time
}

func (r *rateLimiter) wait(ctx *replay.Context) error {
	now := ctx.Now()
	if r.next.Before(now) {
		r.next = now
	}
	delay := r.next.Sub(now)
	r.next = r.next.Add(r.every)
	if delay == 0 {
		return nil
	}
	return ctx.Sleep(delay)
}

var linkPattern = regexp.MustCompile(`href="(/[^"]*)"`)

// A fetcher knows the address of the site, which is not part of the history.
type fetcher struct {
	url    string
	client *http.Client
}

func (r *fetcher) fetch(ctx context.Context, path string) (Page, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+path, nil)
	if err != nil {
		return Page{}, replay.NonRetryable(err)
	}
	response, err := r.client.Do(request)
	if err != nil {
		return Page{}, err
	}
	defer response.Body.Close()
	page := Page{Path: path}
	switch {
	case response.StatusCode >= 500:
		return page, fmt.Errorf("%s: %s", path, response.Status) // retried
	case response.StatusCode != http.StatusOK:
		page.Broken = true
		return page, nil
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return page, err
	}
	for _, match := range linkPattern.FindAllSubmatch(content, -1) {
		page.Links = append(page.Links, string(match[1]))
	}
	return page, nil
}

func definitions(url string, client *http.Client) []replay.Definition {
	r := &fetcher{url, client}
	return []replay.Definition{Crawl.Bind(crawl), Fetch.Bind(r.fetch)}
}
