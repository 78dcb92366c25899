// Command crawler reads a web site page by page: no page twice, no more than
// three requests at once, no more than one request begun in so many milliseconds.
// The site is a server of its own.
//
//	go run ./examples/crawler            # in memory
//	go run ./examples/crawler -dir data  # goes on where it was when killed
//
// # When to use it
//
// Where what is to be done is only found on the way, and somebody else's rules
// bound how fast: crawlers, walks through paged APIs, imports against a quota.
//
// # What to look at
//
//   - The rate limit is a variable of the orchestration, and its clock is ctx.Now
//     with ctx.Sleep. After a crash it is where it was: the site is not asked
//     faster because the crawler was restarted. No lock, no token server.
//   - Wave by wave: the pages of one depth are read in parallel (replay.Map), and
//     the links that they have brought are the next wave. They are sorted before
//     anything follows from them: the order of a map would be another one on replay.
//   - When the history has become long (ctx.ShouldContinueAsNew) it continues as
//     new, with what was seen as its input.
//   - A page that cannot be read is a result and no error.
//
// # When not to use it
//
// The limit is that of one instance. For several that share a quota, put it where
// the requests are made: Config.ActivityRates bounds how often an activity begins
// in the whole cluster, Config.ActivityLimits how many run at once. And the set of what was seen is a payload, 1 MiB: a site of more than
// some ten thousand pages keeps it in a database, in an activity.
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
	dir := flag.String("dir", "", "where the journal lives; in memory without it")
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

// serve is a site of 30 pages. Each links to two below it and to the top; at the
// bottom are links to pages that are not there.
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
