package api

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/bulk"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/cluster/schedule"
	"github.com/tenuto-dev/tenuto/replay"
)

// Config configures an API.
type Config struct {
	Client *cluster.Client
	// Principal returns the name of the user of a request. nil: there are no names, and nothing may
	// be changed.
	Principal func(*http.Request) (string, error)
	// ReadOnly refuses all changes.
	ReadOnly bool
	// Redact reports whether a payload is hidden. It may be nil, and is called concurrently.
	Redact func(replay.PayloadInfo) bool
	// StreamsMax bounds the streams of events that are open at a time.
	StreamsMax int
	// TopicsMax bounds the different topics that these streams follow together.
	TopicsMax int
	// Logger gets what no history records: changes, and requests that failed with an internal
	// error. Defaults to slog.Default().
	Logger *slog.Logger
}

// API serves the JSON API. Its methods may be called concurrently.
type API struct {
	config  Config
	mux     *http.ServeMux
	streams *streams
	cluster clusterAPI // must not be copied
	values  filterValues
	counts  *sharedCounts
	// The answers of schedules and jobs, for lists.
	schedules *descriptions[schedule.Description]
	jobs      *descriptions[bulk.Progress]
	// recheck is how often the rights of an open stream are asked again.
	recheck time.Duration
}

// request is a call whose user is known.
type request struct {
	*http.Request
	api  *API
	user string
}

// New returns the API.
func New(config Config) *API {
	config.Logger = cmp.Or(config.Logger, slog.Default())
	a := &API{
		config: config, mux: http.NewServeMux(), streams: newStreams(config.StreamsMax, config.TopicsMax), recheck: aliveInterval,
		cluster: clusterAPI{client: config.Client, schedules: scheduleChecker{now: time.Now}},
		values:  filterValues{read: func(ctx context.Context) (valueSet, bool) { return readValues(ctx, config.Client) }},
		counts:  newSharedCounts(config.Client), schedules: newScheduleDescriptions(config.Client), jobs: newJobDescriptions(config.Client),
	}
	a.cluster.schedules.list = a.firstSchedules
	for _, r := range a.routes() {
		a.mux.HandleFunc(r.pattern, a.handler(r))
	}
	complete := a.completionHandler()
	for _, pattern := range completionPatterns {
		a.mux.HandleFunc(pattern, complete)
	}
	a.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		writeError(w, notFound("the API has no such path, or not with this method"))
	})
	return a
}

// Refuse answers a request that the API must not see.
func Refuse(w http.ResponseWriter, status int, code, message string) {
	writeError(w, &statusError{status: status, code: code, message: message})
}

// ServeHTTP implements [http.Handler]. The path is below "api/".
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.mux.ServeHTTP(w, r) }

func (a *API) routes() []route {
	all := []route{
		{pattern: "GET /session", about: "Says who the user is and what the user may do.", service: answers(a.session)},
		{pattern: "GET /openapi.json", about: "Describes the API in OpenAPI 3.1.", stream: a.serveDocument},
		{pattern: "GET /events", query: "topics", stream: a.serveEvents,
			about: "Sends what has changed of topics, as server-sent events without IDs: a stream begins with the current state of each."},
	}
	all = append(all, a.readRoutes()...)
	return append(all, a.changeRoutes()...)
}

// handler returns the handler of a route.
func (a *API) handler(of route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		req, err := a.identify(r)
		if err == nil && r.Method == http.MethodPost {
			err = a.checkChange(w, r)
		}
		if err == nil {
			err = of.checkQuery(r)
		}
		if err == nil && of.action != "" {
			id := r.PathValue("id")
			if of.general {
				id = "" // an ID that is not the object of the action must not decide about it
			}
			err = req.authorize(of.action, id)
		}
		if err != nil {
			refuse(a.config.Logger, w, r, err)
			return
		}
		if of.stream != nil {
			if err := of.stream(w, req); err != nil {
				refuse(a.config.Logger, w, r, err)
			}
			return
		}
		answer, err := of.run(req.context(), req)
		if err != nil {
			refuse(a.config.Logger, w, r, err)
			return
		}
		writeJSON(w, http.StatusOK, answer)
	}
}

// refuse writes an error as the answer, and logs it if it is internal.
func refuse(logger *slog.Logger, w http.ResponseWriter, r *http.Request, err error) {
	if status := writeError(w, err); status == http.StatusInternalServerError {
		logger.Error("request of the dashboard failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
}

// identify returns a request with its user.
func (a *API) identify(r *http.Request) (*request, error) {
	req := &request{Request: r, api: a}
	if a.config.Principal == nil {
		return req, nil
	}
	user, err := a.config.Principal(r)
	switch {
	case err != nil:
		return nil, &statusError{status: http.StatusUnauthorized, code: "unauthenticated", message: err.Error()}
	case user == "":
		return nil, &statusError{status: http.StatusUnauthorized, code: "unauthenticated", message: "the request names no user"}
	}
	req.user = user
	return req, nil
}

// bodyMax bounds the body of a change, in bytes: a payload of the largest size, escaped.
const bodyMax = 8 << 20

// checkChange returns an error for a change that a page of another site may have sent, or that is
// not permitted at all.
func (a *API) checkChange(w http.ResponseWriter, r *http.Request) error {
	switch {
	case a.isReadOnly():
		return &statusError{status: http.StatusForbidden, code: "read_only", message: "the dashboard is read-only"}
	case r.Header.Get("Tenuto-Request") == "":
		return &statusError{status: http.StatusForbidden, code: "cross_origin", message: "a change needs the header Tenuto-Request"}
	}
	r.Body = http.MaxBytesReader(w, r.Body, bodyMax)
	return nil
}

func (a *API) isReadOnly() bool { return a.config.ReadOnly || a.config.Principal == nil }

// context returns the context of the calls that a request makes.
func (r *request) context() context.Context {
	if r.user == "" {
		return r.Request.Context()
	}
	return operate.WithPrincipal(r.Request.Context(), r.user)
}

// authorize returns an error if the user may not do something to an instance; the ID is "" for an
// action that concerns none. For a client of cluster.Dial, the nodes check the calls instead.
func (r *request) authorize(action cluster.Action, id string) error {
	if r.user == "" {
		return nil
	}
	internals, err := r.api.config.Client.Internal(access.Key{})
	if err != nil || internals.Authorize == nil {
		return err
	}
	return internals.Authorize(r.Request.Context(), r.user, string(action), id)
}

// readOptions returns the options of a read.
func (r *request) readOptions() []replay.Option {
	if r.FormValue("fresh") == "true" {
		return nil
	}
	return []replay.Option{cluster.Stale()}
}

// soon returns how long a list waits for the answers of its entries; 0: until all have answered.
func (r *request) soon() time.Duration {
	if r.FormValue("soon") == "true" {
		return describeSoon
	}
	return 0
}

// number reads a query parameter between bounds.
func (r *request) number(name string, fallback, least, most uint64) (uint64, error) {
	text := r.FormValue(name)
	if text == "" {
		return fallback, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n < least || n > most {
		return 0, &replay.InvalidError{Field: name, Reason: "must be a number from " + strconv.FormatUint(least, 10) + " to " + strconv.FormatUint(most, 10)}
	}
	return n, nil
}

// sessionAnswer says who the user is and what the user may do.
type sessionAnswer struct {
	Time      time.Time       `json:"time"` // of the server's clock
	Principal string          `json:"principal,omitempty"`
	ReadOnly  bool            `json:"read_only"`
	Actions   map[string]bool `json:"actions"` // on an instance that the rules do not single out
}

func (a *API) session(ctx context.Context, r *request) (*sessionAnswer, error) {
	answer := &sessionAnswer{Time: time.Now(), Principal: r.user, ReadOnly: a.isReadOnly(), Actions: map[string]bool{}}
	for _, action := range actions {
		answer.Actions[string(action)] = r.authorize(action, "") == nil
	}
	return answer, nil
}

// actions are what the API can be asked for.
var actions = []cluster.Action{
	cluster.ActionStart, cluster.ActionSend, cluster.ActionCancel, cluster.ActionTerminate, cluster.ActionSuspend,
	cluster.ActionResume, cluster.ActionRetry, cluster.ActionUpdate, cluster.ActionPurge, cluster.ActionGet, cluster.ActionHistory,
	cluster.ActionQuery, cluster.ActionList, cluster.ActionSeeMembers, cluster.ActionRemoveMember, cluster.ActionSeeSettings, cluster.ActionSeeTokens,
	operate.ActionRerun, operate.ActionRewind, operate.ActionFork, operate.ActionRetryNow, operate.ActionHold,
	operate.ActionRelease, operate.ActionAdjust, operate.ActionComplete, operate.ActionFail, operate.ActionFireNow,
	operate.ActionPauseActivity, operate.ActionResumeActivity, operate.ActionTransfer,
}
