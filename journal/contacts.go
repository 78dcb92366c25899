package journal

import (
	"context"
	"log/slog"
	"time"
)

const (
	// contactInterval is how often a node checks which members it has not heard from.
	contactInterval = time.Second
	// contactLogAfter is how long a member or the leader may be away before that is logged; a
	// restart takes less.
	contactLogAfter = 10 * time.Second
)

// contactMonitor logs members that do not answer the leader, and the absence of a leader. It
// logs each case once; the library would log it ten times a second.
type contactMonitor struct {
	logger           *slog.Logger
	lastFailure      func(node string) error // why a node has not answered
	loggedMissing    map[string]bool         // members logged as not answering
	leaderlessSince  time.Time               // zero: there is a leader
	loggedLeaderless bool                    // the missing leader was logged
}

// monitorContacts runs a contactMonitor until ctx ends.
func (j *Journal) monitorContacts(ctx context.Context) {
	w := &contactMonitor{logger: j.config.Logger, lastFailure: j.liveness.LastFailure, loggedMissing: map[string]bool{}}
	var asked time.Time
	tick := time.NewTicker(contactInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			leader, _ := j.Leader()
			members := j.Members()
			w.checkMembers(now, leader, members)
			if leader == j.config.Node && now.Sub(asked) >= lineagesInterval {
				j.lineages.askUnreachable(ctx, members)
				asked = now
			}
		}
	}
}

func (c *contactMonitor) checkMembers(now time.Time, leader string, members []Member) {
	c.checkLeader(now, leader, members)
	for _, m := range members {
		switch missing := c.loggedMissing[m.Node]; {
		case !m.ContactKnown:
			delete(c.loggedMissing, m.Node)
		case missing && m.BehindKnown && !m.Unreachable: // has answered this leader
			delete(c.loggedMissing, m.Node)
			c.logger.Info("member answers again", "member", m.Node)
		case !missing && m.SinceContact >= contactLogAfter:
			c.loggedMissing[m.Node] = true
			c.logger.Warn("member does not answer: check that it runs and is reachable", "member", m.Node, "address", m.Address,
				"silence", m.SinceContact.Round(time.Millisecond), "error", c.lastFailure(m.Node))
		}
	}
}

func (c *contactMonitor) checkLeader(now time.Time, leader string, members []Member) {
	switch {
	case leader != "" || len(members) == 0:
		if c.loggedLeaderless {
			c.logger.Info("leader known again", "leader", leader)
		}
		c.leaderlessSince, c.loggedLeaderless = time.Time{}, false
	case c.leaderlessSince.IsZero():
		c.leaderlessSince = now
	case !c.loggedLeaderless && now.Sub(c.leaderlessSince) >= contactLogAfter:
		c.loggedLeaderless = true
		attributes := []any{"since", c.leaderlessSince}
		for _, m := range members {
			if err := c.lastFailure(m.Node); err != nil {
				attributes = append(attributes, slog.Group(m.Node, "address", m.Address, "error", err))
			}
		}
		c.logger.Warn("no leader known: check that a majority of the members runs and is reachable", attributes...)
	}
}
