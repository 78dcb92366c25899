package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

const (
	pollInterval  = 100 * time.Millisecond
	printInterval = time.Second
	// After this the cluster counts as having no leader.
	membersTimeout = 300 * time.Millisecond
)

// leader returns the leader, or "" if no node answers.
func (c *console) leader(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, membersTimeout)
	defer cancel()
	members, err := c.client.Members(ctx)
	if err != nil {
		return ""
	}
	for _, member := range members {
		if member.Leader {
			return member.NodeID
		}
	}
	return ""
}

// awaitLeader waits for a leader and returns it, or "" if ctx ends first.
func (c *console) awaitLeader(ctx context.Context) string {
	for {
		if leader := c.leader(ctx); leader != "" || ctx.Err() != nil {
			return leader
		}
	}
}

// watch prints the state of the cluster until the returned function is called.
func (c *console) watch(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(pollInterval)
		defer ticker.Stop()
		before, printedAt := "", time.Time{}
		for ctx.Err() == nil {
			if now := c.clusterState(ctx); now != before || time.Since(printedAt) >= printInterval {
				c.out.Printf("%5.1fs  %s | %v", time.Since(c.load.startedAt).Seconds(), now, c.load)
				before, printedAt = now, time.Now()
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
			}
		}
	}()
	return func() {
		cancel()
		<-stopped
	}
}

// clusterState describes the role of each node.
func (c *console) clusterState(ctx context.Context) string {
	leader := c.leader(ctx)
	var all []string
	ids, states := c.nodes.states()
	for i, id := range ids {
		switch {
		case states[i] != running:
			all = append(all, fmt.Sprintf("%s is %s", id, states[i]))
		case leader == "":
			all = append(all, id+" runs")
		case leader == id:
			all = append(all, id+" leads")
		default:
			all = append(all, id+" follows")
		}
	}
	if leader == "" {
		all = append(all, "no leader")
	}
	return strings.Join(all, ", ")
}
