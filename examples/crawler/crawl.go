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

// A Site is what to crawl, and how far the executions before have come.
type Site struct {
	Wave   []string      // the paths to read next
	Depth  int           // how many waves there are at most
	AtOnce int           // how many requests run at the same time
	Every  time.Duration // at most one begins in this time
	Seen   map[string]bool
	Found  Found
}

// Found is what there was.
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

// crawl reads wave after wave: what the pages of one link to and was not seen
// yet is the next.
func crawl(ctx *replay.Context, site Site) (Found, error) {
	pace := &pace{every: site.Every}
	seen := make(map[string]bool)
	maps.Copy(seen, site.Seen)
	for _, path := range site.Wave {
		seen[path] = true
	}
	for site.Depth > 0 && len(site.Wave) > 0 {
		pages, err := replay.Map(ctx, site.AtOnce, site.Wave, func(ctx *replay.Context, path string) (Page, error) {
			if err := pace.wait(ctx); err != nil {
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

// A pace lets one through in so much time, first come, first served.
type pace struct {
	every time.Duration
	next  time.Time
}

func (p *pace) wait(ctx *replay.Context) error {
	now := ctx.Now()
	if p.next.Before(now) {
		p.next = now
	}
	pause := p.next.Sub(now)
	p.next = p.next.Add(p.every)
	if pause == 0 {
		return nil
	}
	return ctx.Sleep(pause)
}

var link = regexp.MustCompile(`href="(/[^"]*)"`)

// A reader knows where the site is, which may be elsewhere tomorrow.
type reader struct {
	url    string
	client *http.Client
}

func (r *reader) fetch(ctx context.Context, path string) (Page, error) {
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
		return page, fmt.Errorf("%s: %s", path, response.Status) // may be better next time
	case response.StatusCode != http.StatusOK:
		page.Broken = true
		return page, nil
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return page, err
	}
	for _, match := range link.FindAllSubmatch(content, -1) {
		page.Links = append(page.Links, string(match[1]))
	}
	return page, nil
}

func definitions(url string, client *http.Client) []replay.Definition {
	r := &reader{url, client}
	return []replay.Definition{Crawl.Bind(crawl), Fetch.Bind(r.fetch)}
}
