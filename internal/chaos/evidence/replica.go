package evidence

import (
	"encoding/json"
	"errors"
	"io"
	"time"
)

// A Replica is what a node told of instances in one go.
type Replica struct {
	Node string
	Life int
	// Read from the node alone, or through the leader.
	Stale bool
	// All that there is, or some.
	Whole      bool
	Begin, End time.Duration
	// Up to which entry of each group's journal the node had come before.
	Applied   []uint64
	Instances []Instance
}

// An Instance is what a node has of one.
type Instance struct {
	ID         string
	State      string
	Executions []Execution
}

// An Execution is the history of one, or what is needed to compare it.
type Execution struct {
	Number uint64
	// Encoded as they are on disk, but for the order of map entries. Left out
	// where only the digest was asked for.
	Events [][]byte `json:",omitempty"`
	Length int
	// SHA-256 over all events, each with its length before it.
	Digest string
}

// ReadReplica reads a replica that is written as JSON: itself, and then instance
// after instance.
func ReadReplica(r io.Reader) (Replica, error) {
	var replica Replica
	decoder := json.NewDecoder(r)
	if err := decoder.Decode(&replica); err != nil {
		return replica, err
	}
	for {
		var instance Instance
		err := decoder.Decode(&instance)
		if errors.Is(err, io.EOF) {
			return replica, nil
		}
		if err != nil {
			return replica, err
		}
		replica.Instances = append(replica.Instances, instance)
	}
}
