// Package roles decides which members of the cluster vote. A voter holds a replica of every
// partition and votes; a standby holds the same replica and has no vote.
//
// The leader of the first partition decides ([Keeper], [Decide]) and records the decision in the
// metadata of that partition. The leaders of all partitions carry it out (journal.Config.Voters).
// As long as there are no more members than voters wanted, no zones and no pinned roles, nothing is
// recorded, and every member votes.
//
// # Guarantees
//
//  1. A member becomes a voter only if it answers and has caught up.
//  2. A voter that answers is replaced only because an operator asked for it, because fewer voters
//     are wanted, or to spread voters over zones.
//  3. A voter that does not answer keeps its role for the time that the settings state, and until a
//     standby can take over. When it returns, it is a standby, unless zones or a pin require
//     otherwise.
//  4. Without failures and requests, decisions end. No zone then has two voters more than another
//     in which a standby could vote.
//
// # What may not be assumed
//
//   - That a decision is carried out: each leader carries it out when its partition allows it.
//   - That the times are exact: a new leader first waits itself, for up to 10 s.
package roles
