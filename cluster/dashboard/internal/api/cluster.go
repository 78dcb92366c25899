package api

import (
	"context"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
)

// membersTimeout bounds the wait for a leader that knows the members.
const membersTimeout = 2 * time.Second

// clusterAnswer is the cluster as its leaders see it.
type clusterAnswer struct {
	Nodes []nodeView `json:"nodes"`
}

type nodeView struct {
	ID          string           `json:"id"`
	Address     string           `json:"address"`
	Voter       bool             `json:"voter"`
	LeaderOf    []int            `json:"leader_of"` // partitions, from 0
	Behind      *uint64          `json:"behind,omitempty"`
	Liveness    cluster.Liveness `json:"liveness"`
	LastContact float64          `json:"last_contact_seconds"`
}

func (a *API) showCluster(ctx context.Context, r *request) (any, error) { return a.cluster(ctx) }

func (a *API) cluster(ctx context.Context) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, membersTimeout)
	defer cancel()
	return a.members(ctx)
}

func (a *API) members(ctx context.Context) (*clusterAnswer, error) {
	members, err := a.config.Client.Members(ctx)
	if err != nil {
		return nil, err
	}
	answer := &clusterAnswer{Nodes: []nodeView{}}
	for _, m := range members {
		v := nodeView{ID: m.NodeID, Address: m.Address, Voter: m.Voter, LeaderOf: m.LeadsPartitions, Liveness: m.Liveness}
		if m.BehindKnown {
			v.Behind = &m.Behind
		}
		if m.Leader && v.LeaderOf == nil {
			v.LeaderOf = []int{0}
		}
		// A page that follows the cluster is sent what has changed: a time that always grows has not.
		if m.Liveness != cluster.MemberAlive {
			v.LastContact = m.LastContact.Round(time.Second).Seconds()
		}
		answer.Nodes = append(answer.Nodes, v)
	}
	return answer, nil
}
