// Command crawler reads a web site page by page: each page once, at most three requests at a
// time, and with a rate limit. It serves the site itself.
//
//	go run ./examples/crawler            # in memory
//	go run ./examples/crawler -dir data  # continues after a kill
//
// # When to use it
//
// When a program discovers its work while it runs and an external limit bounds the rate: crawlers,
// paged APIs, imports with a quota.
//
// # What to look at
//
//   - The rate limiter is a variable of the orchestration, with ctx.Now and ctx.Sleep as its clock.
//     It survives a crash, so a restart does not send requests faster. It needs no lock and no
//     token server.
//   - The crawl proceeds in waves: the pages of one depth are read in parallel (replay.Map),
//     and their links are the next wave. They are sorted first, because map order differs on
//     replay.
//   - When the history is long (ctx.ShouldContinueAsNew), the crawl continues as new with the
//     seen pages as input.
//   - An unreadable page is a result, not an error.
//
// # When not to use it
//
//   - The limit is that of one instance. If several share a quota, use
//     Settings.ActivityRates (starts of an activity in the whole cluster) or
//     Config.ActivityLimits (concurrent attempts).
//   - The set of seen pages is a payload, at most 1 MiB. For more than some ten thousand
//     pages keep it in a database, in an activity.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
)

func main() {
	dir := flag.String("dir", "", "`directory` of the journal (default: in memory)")
	flag.Parse()
	slog.SetLogLoggerLevel(slog.LevelWarn)
	if err := run(context.Background(), *dir, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dir string, out io.Writer) error {
	site := httptest.NewServer(http.HandlerFunc(serve))
	defer site.Close()
	node, err := cluster.Start(ctx, cluster.Config{Dir: dir, InMemory: dir == "", Definitions: definitions(site.URL, site.Client())})
	if err != nil {
		return err
	}
	defer node.Close()
	found, err := cluster.Call(ctx, node.Client(), Crawl, "crawl",
		Site{Wave: []string{"/"}, Depth: 5, AtOnce: 3, Every: 20 * time.Millisecond}, cluster.Attach(), cluster.ReuseWhenEnded())
	if err != nil {
		return err
	}
	for _, path := range found.Broken {
		fmt.Fprintln(out, "broken:", path)
	}
	fmt.Fprintf(out, "%d pages, %d broken links\n", found.Pages, len(found.Broken))
	return nil
}

// serve is a site of 30 pages. Each links to two pages below it and to the top. The lowest
// pages link to missing ones.
func serve(w http.ResponseWriter, r *http.Request) {
	n := 1
	if r.URL.Path != "/" {
		if _, err := fmt.Sscanf(r.URL.Path, "/page/%d", &n); err != nil || n > 30 {
			http.NotFound(w, r)
			return
		}
	}
	fmt.Fprintf(w, `<a href="/page/%d">left</a> <a href="/page/%d">right</a> <a href="/">top</a>`, 2*n, 2*n+1)
}
