package journal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/journal/internal/frame"
)

// clockReading is what a node knows of the cluster time.
type clockReading struct {
	// Time is the node's cluster time, or the time from its clock sample and its wall clock.
	Time clustertime.Time `json:"time"`
	// Epoch is that of the leader that Time comes from, 0 if Time is only this node's wall clock.
	Epoch uint64 `json:"epoch,omitempty"`
	// Current means that the node has received a leader's time since its start.
	Current bool `json:"kept,omitempty"`
}

// combineClockReadings returns the present cluster time from the readings of several nodes, at least one.
//
// If any reading is current, combineClockReadings ignores those that are not. It takes the median, the lower
// one of an even number. So no single clock can advance the time, and with three nodes no single
// clock can hold it back. The result is at most the median of the readings with the latest epoch.
// The other nodes do not know how far the leader of that epoch was behind its predecessor.
func combineClockReadings(known []clockReading) clustertime.Time {
	isCurrent := func(r clockReading) bool { return r.Current }
	if slices.ContainsFunc(known, isCurrent) {
		known = slices.DeleteFunc(slices.Clone(known), func(r clockReading) bool { return !r.Current })
	}
	latest := uint64(0)
	for _, r := range known {
		latest = max(latest, r.Epoch)
	}
	var all, informed []clustertime.Time
	for _, r := range known {
		all = append(all, r.Time)
		if r.Epoch == latest {
			informed = append(informed, r.Time)
		}
	}
	return slices.MinFunc([]clustertime.Time{median(all), median(informed)}, clustertime.Time.Compare)
}

// median returns the median, the lower one of an even number.
func median(times []clustertime.Time) clustertime.Time {
	slices.SortFunc(times, clustertime.Time.Compare)
	return times[(len(times)-1)/2]
}

// A leader without a current time queries the others over connections like those for a snapshot
// (snapshotfetch.go):
//
//	ask    = "tenuto-now-1" frame(JSON of clockRequest)
//	answer = frame(JSON of clockReading)
//
// A node of a version that does not know the request closes the connection.
const (
	clockRequestMagic = "tenuto-now-1" // must be as long as snapshotRequestMagic
	// clockRequestTimeout bounds how long a leader waits for all answers.
	clockRequestTimeout = time.Second
)

// clockRequest asks for a clockReading.
type clockRequest struct {
	Cluster string `json:"cluster,omitempty"`
	Node    string `json:"node"`
}

// collectClockReadings returns the readings of the other voters that answer within
// clockRequestTimeout.
func (j *Journal) collectClockReadings(ctx context.Context) (known []clockReading) {
	if j.config.Network == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, clockRequestTimeout)
	defer cancel()
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, server := range j.membership().servers {
		if server.Suffrage != raft.Voter || string(server.ID) == j.config.Node {
			continue
		}
		asking.Go(func() {
			r, err := j.requestClockReading(ctx, addressOf(&server))
			if err != nil {
				j.config.Logger.Warn("cannot get cluster time from node", "node", server.ID, "error", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			known = append(known, r)
		})
	}
	asking.Wait()
	return known
}

func (j *Journal) requestClockReading(ctx context.Context, address string) (r clockReading, err error) {
	conn, err := j.config.Network.Dial(address, clockRequestTimeout)
	if err != nil {
		return r, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		if stop() {
			err = errors.Join(err, conn.Close())
		}
	}()
	if err := frame.WriteJSON(conn, clockRequestMagic, clockRequest{j.config.Cluster, j.config.Node}); err != nil {
		return r, fmt.Errorf("send request: %w", err)
	}
	if err := frame.ReadJSON(conn, &r); err != nil {
		return r, fmt.Errorf("read answer: %w", err)
	}
	return r, nil
}

// serveClockReading answers a clockRequest whose magic has been read.
func (j *Journal) serveClockReading(conn net.Conn) error {
	var q clockRequest
	if err := frame.ReadJSON(conn, &q); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	if q.Cluster != j.config.Cluster {
		return fmt.Errorf("request for the cluster time from node %s of cluster %q", q.Node, q.Cluster)
	}
	return frame.WriteJSON(conn, "", j.clock.reading())
}
