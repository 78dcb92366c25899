package dashboard

import (
	"cmp"
	"log/slog"
	"net/http"
	"strings"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/dashboard/internal/api"
	"github.com/tenuto-dev/tenuto/cluster/dashboard/internal/web"
	"github.com/tenuto-dev/tenuto/replay"
)

// Options are the options of a dashboard. The zero value shows everything and changes nothing.
type Options struct {
	// Principal returns the name of the user who sends a request: 1 to 256 bytes of UTF-8 without
	// control characters. An error, or "", is answered with 401. It is called for each request to
	// the API, and every 15 s for each open stream, concurrently. Without it there are no users:
	// everything can be read, and nothing changed.
	Principal func(r *http.Request) (string, error)
	// ReadOnly refuses all changes.
	ReadOnly bool
	// Redact reports whether a payload is hidden: the input, output or status of an orchestration;
	// the input, output or details of an activity; the data of an event; the input or result of an
	// update; the result of a query; or the value of a side effect, a key-value map or an
	// attribute. PayloadInfo.Name is the name of that orchestration, activity and so on; a payload
	// whose name cannot be found is hidden. Tags, summaries and errors are shown, except for parts
	// of hidden payloads in errors of encoding and decoding. Filters can still select by hidden
	// attributes. Redact is called for each payload before it is shown, concurrently. Defaults to
	// showing all payloads.
	Redact func(payload replay.PayloadInfo) bool
	// Hosts are the host names under which the dashboard is reached, without ports. Defaults to any
	// name; on a loopback address to localhost and loopback addresses, because a page of another
	// site may give its own name the address 127.0.0.1.
	Hosts []string
	// StreamsMax bounds the streams of events that are open at a time; each open page has one.
	// Defaults to 1,000.
	StreamsMax int
	// TopicsMax bounds the different topics that these streams follow together: instances, and
	// lists with different filters. The overview, the code and the cluster do not count. A topic is
	// read every 1 to 10 s. Defaults to 500.
	TopicsMax int
	// Logger gets requests that fail with an internal error, and changes that no history records,
	// with principal and reason: of members, leaders and paused activities, retries and purges.
	// Defaults to slog.Default().
	Logger *slog.Logger
}

// Defaults of Options.StreamsMax and Options.TopicsMax.
const (
	streamsDefault = 1000
	topicsDefault  = 500
)

// Handler returns the handler of a dashboard. It serves at the root of its paths: mount it with
// http.StripPrefix. It may be called concurrently, and ends with its requests: shut the server down
// before the client is closed.
func Handler(client *cluster.Client, options Options) http.Handler {
	mux := http.NewServeMux()
	calls := http.StripPrefix("/api", rooted(api.New(api.Config{
		Client: client, Principal: options.Principal, ReadOnly: options.ReadOnly, Redact: options.Redact,
		StreamsMax: cmp.Or(max(options.StreamsMax, 0), streamsDefault),
		TopicsMax:  cmp.Or(max(options.TopicsMax, 0), topicsDefault), Logger: options.Logger,
	})))
	mux.Handle("/api/", calls)
	mux.Handle("/api", calls) // no redirect: it would lack the prefix
	mux.Handle("/", web.Handler())
	return rooted(protect(options.Hosts, mux))
}

// rooted makes paths without a leading slash, as http.StripPrefix leaves them, begin at the root.
func rooted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/") {
			r = r.Clone(r.Context())
			r.URL.Path = "/" + r.URL.Path
			if r.URL.RawPath != "" {
				r.URL.RawPath = "/" + r.URL.RawPath
			}
		}
		next.ServeHTTP(w, r)
	})
}
