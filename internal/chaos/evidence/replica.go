package evidence

import (
	"encoding/json"
	"errors"
	"io"
	"slices"
	"time"
)

// A Replica is one report of a node about its instances.
type Replica struct {
	Node       string
	Generation int
	// Whether the node read its own state, instead of reading through the leader.
	Stale bool
	// Whether the report covers all instances.
	Complete bool
	// Whether it is a restored backup, which no node has opened; Begin is when the backup began.
	Restored   bool `json:",omitempty"`
	Begin, End time.Duration
	// For the state of a cluster that was recovered from a lost majority: how. Begin is a time
	// before which everything acknowledged had reached the survivor.
	Recovery *Recovery `json:",omitempty"`
	// The index of each partition's journal that the node had applied before the report.
	Applied   []uint64
	Instances []Instance
}

// A Recovery is the recovery of a cluster that lost its majority.
type Recovery struct {
	// When the majority was lost.
	Lost time.Duration
	// What the survivor's state had, as digests, and how many instances may lack something, as the
	// recovery reports.
	Survivor []Instance
	Affected int
	// The number of nodes of the recovered cluster, and the calls that were made through each of
	// them.
	Nodes int
	Calls []Call
}

// An Instance is the state of an instance on a node.
type Instance struct {
	ID         string
	State      string
	Executions []Execution
}

// An Execution is the history of one execution, or what is needed to compare it.
type Execution struct {
	Number uint64
	// Encoded as on disk, except for the order of map entries. Omitted if only the digest was
	// requested.
	Events [][]byte `json:",omitempty"`
	Length int
	// SHA-256 over all events, each preceded by its length.
	Digest string
}

// WithoutEvents returns instances with the digests of their histories only.
func WithoutEvents(instances []Instance) []Instance {
	bare := slices.Clone(instances)
	for i := range bare {
		bare[i].Executions = slices.Clone(bare[i].Executions)
		for j := range bare[i].Executions {
			bare[i].Executions[j].Events = nil
		}
	}
	return bare
}

// ReadReplica reads a replica as JSON: first the replica, then one instance after the other.
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
