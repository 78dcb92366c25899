// Package voters decides which vote the leader of a partition gives or takes next, so that the
// members with votes become those that are to have them.
//
// # Guarantees
//
//  1. A member gets a vote only if it answers and has caught up.
//  2. No vote is taken while a member that is to have one has none.
//  3. After a vote was taken, a majority of the remaining voters answers and has caught up.
//  4. The leader keeps its vote: it transfers leadership first.
package voters
