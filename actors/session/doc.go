// Package session runs the connection between the leader of a partition and a worker, which runs
// activities for it.
//
// It guarantees:
//
//  1. Each side sends at least one message per [Pings].Interval, and ends the session after
//     Pings.Timeout of silence: 200 and 600 ms between nodes, 2 and 10 s with other workers. A
//     pause of its own process counts as one interval of silence.
//  2. Each side's messages arrive in the order in which they were put into its [Outbox], except
//     that a later heartbeat of an attempt replaces one that is not sent.
//
// Callers must not assume that a message in the outbox arrives: the session may end first. The
// worker therefore sends its registration, attempts and results again in the next session.
package session
