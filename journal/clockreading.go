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
)

// A clockReading is what a node knows of the cluster time.
type clockReading struct {
	// What the node has kept, or what its mark and its wall clock come to.
	Time clustertime.Time `json:"time"`
	// Epoch is that of the leader whose time it is, 0 if it is the wall clock's alone.
	Epoch uint64 `json:"epoch,omitempty"`
	// Kept says that a leader was heard of since the node was started.
	Kept bool `json:"kept,omitempty"`
}

// agreed returns the cluster time of now by what several nodes know; at least one.
//
// What was kept by monotonic clocks counts before all that wall clocks say. Of what
// is left the middle is taken, the earlier one of two: so no clock alone has the time
// go ahead, whatever it shows, and with three no clock alone holds it up. And it is
// not later than the middle of those that have heard of the latest leader: the others
// do not know that it was behind the one before.
func agreed(known []clockReading) clustertime.Time {
	isKept := func(r clockReading) bool { return r.Kept }
	if slices.ContainsFunc(known, isKept) {
		known = slices.DeleteFunc(slices.Clone(known), func(r clockReading) bool { return !r.Kept })
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
	return slices.MinFunc([]clustertime.Time{middle(all), middle(informed)}, clustertime.Time.Compare)
}

// middle returns the median, the lower one of an even number.
func middle(times []clustertime.Time) clustertime.Time {
	slices.SortFunc(times, clustertime.Time.Compare)
	return times[(len(times)-1)/2]
}

// A leader that knows too little of the time asks the others over connections as
// those for a snapshot (ask.go):
//
//	ask    = "tenuto-now-1" frame(JSON of clockQuestion)
//	answer = frame(JSON of clockReading)
//
// A node of a version that does not know the question closes the connection.
const (
	clockMagic = "tenuto-now-1" // as long as askMagic
	// clockPatience bounds how long a leader waits for all answers.
	clockPatience = time.Second
)

// clockQuestion is what a node asks with.
type clockQuestion struct {
	Cluster string `json:"cluster,omitempty"`
	Node    string `json:"node"`
}

// askTime returns what the other nodes that have a vote say, of those that answer
// within clockPatience.
func (j *Journal) askTime(ctx context.Context) (known []clockReading) {
	if j.config.Network == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, clockPatience)
	defer cancel()
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, server := range j.roster().servers {
		if server.Suffrage != raft.Voter || string(server.ID) == j.config.Node {
			continue
		}
		asking.Go(func() {
			r, err := j.askTimeOf(ctx, addressOf(&server))
			if err != nil {
				j.config.Logger.Warn("a node was asked for the time and has not told", "node", server.ID, "error", err)
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

func (j *Journal) askTimeOf(ctx context.Context, address string) (r clockReading, err error) {
	conn, err := j.config.Network.Dial(address, clockPatience)
	if err != nil {
		return r, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		if stop() {
			err = errors.Join(err, conn.Close())
		}
	}()
	if err := writeAsk(conn, clockMagic, clockQuestion{j.config.Cluster, j.config.Node}); err != nil {
		return r, fmt.Errorf("ask: %w", err)
	}
	if err := readAsk(conn, &r); err != nil {
		return r, fmt.Errorf("read answer: %w", err)
	}
	return r, nil
}

// tellTime answers a clockQuestion whose magic has been read.
func (j *Journal) tellTime(conn net.Conn) error {
	var q clockQuestion
	if err := readAsk(conn, &q); err != nil {
		return fmt.Errorf("read question: %w", err)
	}
	if q.Cluster != j.config.Cluster {
		return fmt.Errorf("%s of the cluster %q asks for the time", q.Node, q.Cluster)
	}
	return writeAsk(conn, "", j.clock.reading())
}
