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
// The value holds what the key lacks, so that most instances need not be read to compare it: the
// time of creation (unless the order is by creation or change), then the time from creation to
// change, both varints, then a byte with a bit for each kind that the instance waits for (1 <<
// kind), and bit 0 if an activity fails. To not write an entry again for what often changes,
//
//   - the list of all instances, and all lists in the order by change, have all three
//   - lists by number or schedule lack the time to the change
//   - other lists have the time to the change only of ended instances, and no bits
//
// This is the second format. An index in another one is built anew.
//
// # Unwritten instances
//
// Instances that no flush has written are in no list. They are compared one after the other, by
// copies of a few fields; see Unwritten.
//
// # Plans
//
// A Walk visits the lists of a Plan in the order of the query: it merges the selected facets, and
// intersects the lists by moving each to the place of the others. If conditions remain that these
// lists do not answer, the instances of a short list in another order are collected, sorted by what
// their entries say, and looked up in the other lists before they are read. Every instance that is
// found is compared with the query, so entries need not be exact: a Term holds the hash of a long
// text. The work is bounded by a Budget.
package index
