// Package dashboard shows a cluster in a browser: a handler with pages, a JSON API and live
// streams.
//
//	mux.Handle("/tenuto/", http.StripPrefix("/tenuto", dashboard.Handler(node.Client(), dashboard.Options{
//		Principal: func(r *http.Request) (string, error) { return userOf(r) },
//	})))
//
// Pages use relative URLs, so any prefix works, behind a proxy too. The API is at api/ below the
// prefix. The guide is cluster/docs/dashboard.md.
//
// # Guarantees
//
//  1. Without Options.Principal nothing can be changed, except by third parties with signed tokens.
//  2. With it, each read and each change asks the Config.Authorize of the client's node about the
//     user, with a cluster.Principal of the kind operate.PrincipalUser. Histories show who changed
//     what, and why; Options.Logger gets the changes that no history records.
//  3. A page of another site can neither change nor read anything: GET changes nothing, changes
//     need a header that a form cannot send. Names that were not meant are kept out on loopback, on
//     other addresses by Options.Hosts.
//  4. Payloads, IDs and errors are shown as text. The Content-Security-Policy allows no inline
//     script.
//  5. The handler sets no cookies and loads nothing from other hosts.
//
// # What may not be assumed
//
//   - That pages show the latest state: they read the replica of the client's node, and follow it.
//   - That a client of cluster.Dial knows the rights of users: nodes check what its program may do.
//     Refuse requests in Options.Principal. Nor can it verify the signed tokens of third parties:
//     at a time it serves 4 requests with one token, 32 from one remote address, and 128 in all.
//     Requests with forged tokens from four addresses can occupy all 128. A dashboard on a node
//     rejects forged tokens before it reads a body.
//   - That the handler authenticates users: Options.Principal, or a handler around it, does.
package dashboard
