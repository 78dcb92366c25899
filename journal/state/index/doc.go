// Package index says which instances a query selects, in which order, and how to find them.
//
// A Row is what can be queried of one instance: its latest run, as the replicated state machine
// derives it from records. Matches is the reference: whatever a faster way of answering a query
// does, it returns the rows that match.
//
// # Lists
//
// The index has one list of all instances, and one for each Term: a tag, an attribute, a parent, an
// error code, a kind of open operation, a kind and name, failing activities, and these by error
// code. In a list, instances are sorted by facet (state, name and version), then by a time, then by
// ID. Each list is stored by ID; that of all and those of tags, attributes and error codes also by
// creation and by change; that of all also by next timer; those of open operations also by when
// these were scheduled, and those of failing activities by the number of failed attempts.
//
// A key holds a byte for list and order or, of a Term, 's', the Term and the order; the number of
// the facet (four bytes, big-endian); the time, with its highest bit inverted (eight bytes, not in
// the order by ID); the ID. The value is empty.
//
// # Plans
//
// A Walk merges the selected facets of one list in the wanted order, or intersects several lists:
// each seeks to the place of the others. If other conditions remain, a short list of candidates in
// another order is read and sorted instead. Whatever is found is compared with the query, so entries
// need not be exact. The work is bounded; see Walk.Paused.
package index
