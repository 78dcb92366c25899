package api

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay"
)

// A route is one call of the API.
type route struct {
	pattern string
	about   string // one sentence for the document of the API
	query   string // the names of the parameters in the query, with spaces between them
	header  string // the name of a header that the call reads
	service
	action  cluster.Action // "": the service asks the rights itself, or none are needed
	general bool           // the action concerns no single instance, whatever "id" is in the path
	stream  func(w http.ResponseWriter, r *request) error
}

// A service answers a call. The types are those of its body, nil without one, and of its answer.
type service struct {
	run          func(ctx context.Context, r *request) (any, error)
	body, answer reflect.Type
}

// answers makes a service of a function for a call without a body.
func answers[A any](serve func(ctx context.Context, r *request) (*A, error)) service {
	return service{answer: reflect.TypeFor[A](), run: func(ctx context.Context, r *request) (any, error) { return serve(ctx, r) }}
}

// takes makes a service of a function for a call with a body, which may be empty.
func takes[B, A any](serve func(ctx context.Context, r *request, body *B) (*A, error)) service {
	return service{body: reflect.TypeFor[B](), answer: reflect.TypeFor[A](), run: func(ctx context.Context, r *request) (any, error) {
		body := new(B)
		if err := r.decodeBody(body); err != nil {
			return nil, err
		}
		return serve(ctx, r, body)
	}}
}

// Parameters that are true or false, and those that may occur more than once.
var (
	switches = []string{"fresh", "payloads", "soon"}
	repeated = []string{"by", "topics"}
)

// checkQuery returns an error for a parameter that a route does not have, or whose value would be
// ignored: ignoring a misspelt filter would answer with all instances. It does not read the body,
// which may be declared as a form.
func (of *route) checkQuery(r *http.Request) error {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return &replay.InvalidError{Field: "query", Reason: err.Error()}
	}
	known := strings.Fields(of.query)
	for _, name := range slices.Sorted(maps.Keys(query)) {
		values := query[name]
		reason := ""
		switch {
		case !slices.Contains(known, name):
			reason = unknownParameter(known)
		case len(values) > 1 && !slices.Contains(repeated, name):
			reason = "must occur once"
		case slices.Contains(switches, name) && values[0] != "true" && values[0] != "false":
			reason = `must be "true" or "false"`
		}
		if reason != "" {
			return &replay.InvalidError{Field: name, Reason: reason}
		}
	}
	return nil
}

// unknownParameter says that a call has only the known parameters.
func unknownParameter(known []string) string {
	if len(known) == 0 {
		return "is no parameter of this call, which has none"
	}
	return "is no parameter of this call: it has " + strings.Join(known, ", ")
}
