package cluster

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// With several partitions, some calls concern all of them. Any node accepts such a call: it asks
// the leader of each partition and merges the answers (scatter-gather).

// scatterGather makes the calls that concern all partitions.
type scatterGather struct{ node *Node }

// concernsAllPartitions reports whether a request is such a call.
func (s *scatterGather) concernsAllPartitions(request *clusterpb.Request) bool {
	return len(s.node.partitions) > 1 && request.Partition == 0 && kindOf(request).fanOut != nil
}

func (s *scatterGather) fanOut(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	return kindOf(request).fanOut(s, ctx, request)
}

// fanOutInOrder makes a change of members. The first partition decides; the others follow it
// eventually by themselves (see crosspartition.Leader). It is asked first, so that a rejection
// changes nothing.
func (s *scatterGather) fanOutInOrder(ctx context.Context, request *clusterpb.Request) (response *clusterpb.Response, err error) {
	for _, pa := range s.node.partitions {
		if response, err = pa.callPartition(ctx, request); err != nil {
			return nil, err
		}
	}
	return response, nil
}

func (s *scatterGather) fanOutMembers(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	parts, err := s.fanOutEach(request, func(pa *partition) (*clusterpb.Response, error) { return pa.currentMembers(ctx, request) })
	if err != nil {
		return nil, err
	}
	return s.mergeMembers(parts), nil
}

// membersWait bounds how long a request for the members waits until a leader is known. It also
// bounds the wait for that leader's answer; then the node checks whether it still leads.
const membersWait = time.Second

// currentMembers returns the members of the partition as known by its leader, or by this node while
// no leader is known.
func (pa *partition) currentMembers(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	if changed := pa.leaderNotifier.Next(); pa.leader() == "" {
		if _, err := admission.SleepUntil(ctx, pa.node.closing, changed, membersWait); err != nil {
			return nil, &UnavailableError{NotExecuted: true, Err: err}
		}
	}
	for pa.hasOtherLeader() || !pa.node.replicaCalls.knowsMembers() {
		limited, cancel := context.WithTimeout(ctx, membersWait)
		response, err := pa.callPartition(limited, request)
		late := limited.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil || !late {
			return response, err
		}
	}
	return pa.members.membersResponse(), nil
}

// listLocally answers a list from the replicas of this node.
func (s *scatterGather) listLocally(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	return s.mergeLists(request, func(pa *partition) (*clusterpb.Response, error) {
		return pa.read(ctx, pa.actorPartition.Load(), request)
	})
}

// callPartition sends a request, restricted to the partition, to its leader.
func (pa *partition) callPartition(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	part := proto.CloneOf(request)
	part.Partition = uint32(pa.number + 1)
	return pa.node.router.call(ctx, part)
}

// fanOutEach calls ask for all partitions concurrently, and returns the first error.
func (s *scatterGather) fanOutEach(request *clusterpb.Request, ask func(g *partition) (*clusterpb.Response, error)) ([]*clusterpb.Response, error) {
	parts, errs := make([]*clusterpb.Response, len(s.node.partitions)), make([]error, len(s.node.partitions))
	var asking sync.WaitGroup
	for i, g := range s.node.partitions {
		asking.Go(func() {
			errs[i] = s.node.recoverer.Call(request, func() (err error) {
				parts[i], err = ask(g)
				return err
			})
		})
	}
	asking.Wait()
	return parts, firstError(errs...)
}

// fanOutList lists the instances of all partitions, as their leaders know them.
func (s *scatterGather) fanOutList(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	return s.mergeLists(request, func(pa *partition) (*clusterpb.Response, error) { return pa.callPartition(ctx, request) })
}

// mergeLists merges the pages of all partitions.
func (s *scatterGather) mergeLists(request *clusterpb.Request, ask func(g *partition) (*clusterpb.Response, error)) (*clusterpb.Response, error) {
	parts, err := s.fanOutEach(request, ask)
	if err != nil {
		return nil, err
	}
	response, lists := new(clusterpb.Response), make([]*clusterpb.ListResult, len(parts))
	for i, part := range parts {
		lists[i] = part.GetList()
		response.AppliedIndex += part.AppliedIndex
		response.AppliedIndexes = append(response.AppliedIndexes, part.AppliedIndex)
	}
	merged, err := instances.MergeLists(request.GetList(), lists)
	if err != nil {
		return nil, err
	}
	response.Result = &clusterpb.Response_List{List: merged}
	return response, nil
}

// fanOutPurge sends each partition the IDs that it owns.
func (s *scatterGather) fanOutPurge(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	owned := make(map[*partition]*clusterpb.PurgeRequest)
	for i, id := range request.GetPurge().GetInstances() {
		g := s.node.partitionOf(id)
		if owned[g] == nil {
			owned[g] = new(clusterpb.PurgeRequest)
		}
		owned[g].Instances = append(owned[g].Instances, id)
		owned[g].Incarnations = append(owned[g].Incarnations, runToPurge(request.GetPurge(), i))
	}
	parts, err := s.fanOutEach(request, func(g *partition) (*clusterpb.Response, error) {
		if owned[g] == nil {
			return nil, nil
		}
		part := proto.CloneOf(request)
		if part.FirstIndex != nil {
			part.FirstIndex = new(uint64) // the index was another partition's
		}
		part.Call = &clusterpb.Request_Purge{Purge: owned[g]}
		return g.callPartition(ctx, part)
	})
	if err != nil {
		return nil, err
	}
	result := new(clusterpb.PurgeResult)
	for _, part := range parts {
		result.Purged += part.GetPurge().GetPurged()
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Purge{Purge: result}}, nil
}

// mergeMembers merges the members of all partitions. A node is a member if it is one in any
// partition, and a voter if it is one in all.
func (s *scatterGather) mergeMembers(parts []*clusterpb.Response) *clusterpb.Response {
	merged := make(map[string]*clusterpb.Member)
	in := make(map[string]int)
	result := &clusterpb.MembersResult{Partitions: uint32(len(s.node.partitions)), LastIndex: parts[0].GetMembers().GetLastIndex(), PayloadMax: parts[0].GetMembers().GetPayloadMax()}
	result.Lineages = parts[0].GetMembers().GetLineages()
	for i, part := range parts {
		result.AppliedIndexes = append(result.AppliedIndexes, part.GetMembers().GetAppliedIndexes()...)
		result.ConfigurationIndexes = append(result.ConfigurationIndexes, part.GetMembers().GetConfigurationIndexes()...)
		for _, m := range part.GetMembers().GetMembers() {
			in[m.Node]++
			all := merged[m.Node]
			if all == nil {
				all = &clusterpb.Member{
					Node: m.Node, Address: m.Address, Identity: m.Identity, Voter: true, BehindKnown: true, ContactKnown: true,
					Zone: m.Zone, Standby: m.Standby, RoleKnown: m.RoleKnown, Pin: m.Pin,
				}
				merged[m.Node] = all
				result.Members = append(result.Members, all)
			}
			if m.Leader {
				all.LeadsPartitions = append(all.LeadsPartitions, uint32(i))
			}
			all.Leader = all.Leader || m.Leader && i == 0
			all.Voter = all.Voter && m.Voter
			all.Behind += m.Behind
			all.Quarantined, all.Stopped = all.Quarantined+m.Quarantined, all.Stopped+m.Stopped
			all.BehindKnown = all.BehindKnown && m.BehindKnown
			all.SinceContact = max(all.SinceContact, m.SinceContact)
			all.ContactKnown = all.ContactKnown && m.ContactKnown
			all.Unreachable = all.Unreachable || m.Unreachable
		}
	}
	for _, m := range result.Members {
		m.Voter = m.Voter && in[m.Node] == len(parts)
	}
	slices.SortFunc(result.Members, func(a, b *clusterpb.Member) int { return strings.Compare(a.Node, b.Node) })
	return &clusterpb.Response{Result: &clusterpb.Response_Members{Members: result}}
}
