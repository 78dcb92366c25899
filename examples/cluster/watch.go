package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

const (
	lookEvery = 100 * time.Millisecond
	tellEvery = time.Second
	// How long it may take to be told who leads before nobody does.
	askLimit = 300 * time.Millisecond
)

// leader returns the node that leads; "" if nobody says.
func (c *console) leader(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
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

// awaitLeader returns the node that leads, as soon as one does; "" if ctx ends
// first.
func (c *console) awaitLeader(ctx context.Context) string {
	for {
		if leader := c.leader(ctx); leader != "" || ctx.Err() != nil {
			return leader
		}
	}
}

// watch tells how things stand, until the function that it returns is called.
func (c *console) watch(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		look := time.NewTicker(lookEvery)
		defer look.Stop()
		before, told := "", time.Time{}
		for ctx.Err() == nil {
			if now := c.standings(ctx); now != before || time.Since(told) >= tellEvery {
				c.out.Printf("%5.1fs  %s | %v", time.Since(c.traffic.began).Seconds(), now, c.traffic)
				before, told = now, time.Now()
			}
			select {
			case <-look.C:
			case <-ctx.Done():
			}
		}
	}()
	return func() {
		cancel()
		<-stopped
	}
}

// standings says who leads, who follows and who does neither.
func (c *console) standings(ctx context.Context) string {
	leader := c.leader(ctx)
	var all []string
	ids, states := c.fleet.states()
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
		all = append(all, "nobody leads")
	}
	return strings.Join(all, ", ")
}
