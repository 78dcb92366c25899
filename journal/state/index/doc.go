// Package index says which instances a query selects, in which order, and how to find them.
//
// A Row is what can be queried of one instance: its latest run, as the replicated state machine
// derives it from records. Query.Matches defines which rows a query selects; lists and plans only
// find them faster.
//
// # Lists
//
// The index has one list of all instances, and one list for each Term. Each list is stored in
// several orders:
//
//	all instances                                     ID, creation, change, next timer
//	a tag; an attribute; an error code                ID, creation, change
//	a parent                                          ID
//	a kind of open operation; a kind and a name       ID, when the operation was scheduled
//	failing activities; those with an error code      ID, number of failed attempts
//
// In each order, instances are sorted by facet (state, name and version), then by the time or
// number, then by ID.
//
// A key consists of
//
//   - a byte for the order if the list is that of all instances; otherwise 's', the Term and a byte
//     for the order
//   - the number of the facet (four bytes, big-endian)
//   - the time or number with its highest bit inverted (eight bytes, big-endian); not in the order
//     by ID
//   - the ID
//
// The value holds times that the key lacks, as varints, so that most instances need not be read to
// compare times:
//
//   - in the order by ID: creation, and for an ended instance the time from creation to end
//   - in the order by creation: for an ended instance the time from creation to end
//   - in the order by change: the time from creation to change
//   - in the other orders: nothing
//
// # Plans
//
// A Walk visits the lists of a Plan in the order of the query: it merges the selected facets, and
// intersects the lists by moving each to the place of the others. If conditions remain that these
// lists do not answer, the instances of a short list in another order may be read and sorted
// instead. Every instance that is found is compared with the query, so entries need not be exact: a
// Term holds the hash of a long text. The work is bounded; see Walk.Paused.
package index
