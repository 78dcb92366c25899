package api

import (
	"net/http"
	"sync"

	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/cluster/internal/completion"
)

// completionPatterns are the calls of third parties. A signed token alone authorizes them: there is
// no user, they need no header, and are served although the dashboard is read-only.
var completionPatterns = []string{"POST /complete/{token}", "POST /fail/{token}"}

// completionHandler serves the calls of third parties, with errors in the form of the API. It asks
// the client when the first of them comes, because a client may be closed when the API is made.
func (a *API) completionHandler() http.HandlerFunc {
	handler := sync.OnceValues(func() (http.Handler, error) {
		internals, err := a.config.Client.Internal(access.Key{})
		if err != nil {
			return nil, err
		}
		config := internals.Completions
		config.Reject = func(w http.ResponseWriter, status int, message string) {
			writeError(w, &statusError{status: status, code: completionCodes[status], message: message})
		}
		return completion.NewHandler(config), nil
	})
	return func(w http.ResponseWriter, r *http.Request) {
		serve, err := handler()
		if err != nil {
			refuse(a.config.Logger, w, r, err)
			return
		}
		serve.ServeHTTP(w, r)
	}
}

// completionCodes are the codes of the errors that a handler of completions answers with.
var completionCodes = map[int]string{
	http.StatusBadRequest: "invalid", http.StatusNotFound: "not_found", http.StatusRequestTimeout: "slow_body",
	http.StatusConflict: "closed", http.StatusGone: "expired", http.StatusRequestEntityTooLarge: "too_large",
	http.StatusServiceUnavailable: "unavailable", http.StatusInternalServerError: "internal",
}
