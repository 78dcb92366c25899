package dashboard

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/tenuto-dev/tenuto/cluster/dashboard/internal/api"
)

// contentPolicy permits the dashboard's own scripts and styles, and nothing else.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// protect refuses requests that a page of another site has caused, and sets the headers that bound
// what pages may do.
func protect(hosts []string, next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refuse(w, r, http.StatusForbidden, "cross_origin", "A page of another site has sent the request.")
	}))
	sameOrigin := protection.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", contentPolicy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("X-Frame-Options", "DENY")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		if !isHostAllowed(hosts, r) {
			refuse(w, r, http.StatusMisdirectedRequest, "host_not_allowed",
				"The dashboard is not served under this host name. Add it to dashboard.Options.Hosts.")
			return
		}
		sameOrigin.ServeHTTP(w, r)
	})
}

// refuse answers with an error: of the API in its form, of pages as text.
func refuse(w http.ResponseWriter, r *http.Request, status int, code, message string) {
	if strings.HasPrefix(r.URL.Path, "/api/") {
		api.Refuse(w, status, code, message)
		return
	}
	http.Error(w, message, status)
}

// isHostAllowed reports whether the host name of a request is one of hosts. Without any, a request
// to a loopback address must name that address: a name that resolves to it may be another site's.
func isHostAllowed(hosts []string, r *http.Request) bool {
	name := hostname(r.Host)
	if len(hosts) > 0 {
		return slices.ContainsFunc(hosts, func(h string) bool { return strings.EqualFold(h, name) })
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return local == nil || !isLoopback(hostname(local.String())) || isLoopback(name)
}

// isLoopback reports whether a host is a loopback address or its usual name.
func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return err == nil && address.Unmap().IsLoopback() || strings.EqualFold(host, "localhost")
}

// hostname returns a host without its port and brackets.
func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return strings.Trim(host, "[]")
}
