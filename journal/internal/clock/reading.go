package clock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/internal/frame"
)

// Reading is a node's answer to a request for the cluster time.
type Reading struct {
	// Time is the node's cluster time, or the time from its clock sample and its wall clock.
	Time clustertime.Time `json:"time"`
	// Epoch is that of the leader that Time comes from, 0 if Time is only this node's wall clock.
	Epoch uint64 `json:"epoch,omitempty"`
	// Current means that the node has received a leader's time since its start.
	Current bool `json:"kept,omitempty"`
}

// combineReadings returns the present cluster time from the readings of several nodes, at least
// one.
//
// If any reading is current, combineReadings ignores those that are not. It takes the median, the
// lower one of an even number. So with two nodes no single clock can advance the time, and with
// three no single clock can hold it back. The result is at most the median of the readings with the
// latest epoch. The other nodes do not know how far the leader of that epoch was behind its
// predecessor.
func combineReadings(known []Reading) clustertime.Time {
	isCurrent := func(r Reading) bool { return r.Current }
	if slices.ContainsFunc(known, isCurrent) {
		known = slices.DeleteFunc(slices.Clone(known), func(r Reading) bool { return !r.Current })
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
// (package snapshot):
//
//	ask    = "tenuto-now-1" frame(JSON of Request)
//	answer = frame(JSON of Reading)
//
// A node of a version that does not know the request closes the connection.
const (
	RequestMagic = "tenuto-now-1" // must be as long as snapshot.RequestMagic
	// RequestTimeout bounds how long a leader waits for all answers.
	RequestTimeout = time.Second
)

// Request asks for a Reading.
type Request struct {
	Cluster string `json:"cluster,omitempty"`
	Node    string `json:"node"`
}

// RequestReading asks the node at the other end of a connection, and closes the connection.
func RequestReading(ctx context.Context, conn net.Conn, from Request) (r Reading, err error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		if stop() {
			err = errors.Join(err, conn.Close())
		}
	}()
	if err := frame.WriteJSON(conn, RequestMagic, from); err != nil {
		return r, fmt.Errorf("send request: %w", err)
	}
	if err := frame.ReadJSON(conn, &r); err != nil {
		return r, fmt.Errorf("read answer: %w", err)
	}
	return r, nil
}

// ServeReading answers a Request of the given cluster, whose magic has been read.
func (c *Clock) ServeReading(conn net.Conn, cluster string) error {
	var q Request
	if err := frame.ReadJSON(conn, &q); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	if q.Cluster != cluster {
		return fmt.Errorf("request for the cluster time from node %s of cluster %q", q.Node, q.Cluster)
	}
	return frame.WriteJSON(conn, "", c.reading())
}
