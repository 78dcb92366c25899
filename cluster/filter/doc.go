// Package filter reads and writes a [cluster.Filter] as text, for command lines, dashboards and
// HTTP interfaces:
//
//	f, err := filter.Parse("state=failed name=checkout updated<2h order=-updated", time.Now())
//	...
//	page, err := client.List(ctx, f, "", 100)
//
// # Grammar
//
// A filter is a list of words with spaces between them. An instance must match all of them. The
// empty text selects all instances. A word may occur once; one with a bound, once with each
// operator.
//
//	filter  = [ word { space word } ]
//	word    = "state" "=" state { "," state }
//	        | ( "name" | "version" | "parent" | "error" ) "=" value
//	        | "id" "=" value ending in "*"              IDs with that prefix
//	        | ( "tag." key | "attr." key ) "=" value
//	        | ( "created" | "updated" | "ended" | "since" ) bound
//	        | "waiting" "=" ( kind [ ":" value ] | "any" ":" value )
//	        | "failing" ">=" number                     failed attempts of an open activity
//	        | "failing.error" "=" value                 code of the last failure of one
//	        | "order" "=" [ "-" ] order                 "-" is descending
//	bound   = "<" age | ">" age                         less, or more, than that long ago
//	        | "<" time | ">=" time                      before, or from, that moment on
//	state   = "running" | "hung" | "stalled" | "suspended" | "waiting-for-code"
//	        | "completed" | "failed" | "canceled" | "terminated"
//	kind    = "activity" | "event" | "timer" | "child"  what an open operation waits for
//	order   = "id" | "created" | "updated" | "ended" | "timer"
//	age     = number unit { number unit }               units: d h m s ms us ns; 1d12h, 1.5h
//	time    = 2026-01-02 (midnight UTC) | 2026-01-02T15:04:05Z (RFC 3339)
//	value   = characters other than spaces | quoted
//	key     = characters other than spaces, quotes, "=", "<" and ">" | quoted
//	quoted  = a Go string in double quotes: "a b", "say \"yes\""
//
// "since" bounds when the operation that "waiting" selects was scheduled; without "waiting", any
// open operation. The word "ended" and the order "ended" select only ended instances, the order
// "timer" only those with an open timer. The fields of [cluster.Filter] say what each word selects.
//
// Examples:
//
//	state=failed,terminated ended<1d
//	name=checkout attr.tenant=acme waiting=activity:charge since>1h
//	failing>=3 failing.error=timeout order=-updated
//	id=order-2026* tag.region="eu west"
//
// # Guarantees
//
//  1. Parse never panics and never ignores part of a text: a misspelled word or value is a
//     [*SyntaxError] that points at it.
//  2. For a filter f that Parse returned, Parse(Format(f), now) returns f, with any now.
//
// All functions may be called concurrently. Parse does not check what the cluster checks, such as
// the length of a name.
package filter
