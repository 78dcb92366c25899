package cluster

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// With several groups, some calls concern all of them. Any node takes them: it asks
// the leader of each group and puts the answers together.

// concernsAll tells whether a request is of that kind.
func (n *Node) concernsAll(request *clusterpb.Request) bool {
	if len(n.groups) == 1 || request.Group > 0 {
		return false
	}
	switch request.Call.(type) {
	case *clusterpb.Request_List, *clusterpb.Request_Purge, *clusterpb.Request_RemoveMember, *clusterpb.Request_AdoptMember:
		return true
	case *clusterpb.Request_Members:
		return !request.Stale
	}
	return false
}

// gather has a request answered by the leaders of all groups.
func (n *Node) gather(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	switch call := request.Call.(type) {
	case *clusterpb.Request_List:
		return n.gatherList(request, func(g *group) (*clusterpb.Response, error) { return g.pass(ctx, request) })
	case *clusterpb.Request_Purge:
		return n.gatherPurge(ctx, request, call.Purge)
	case *clusterpb.Request_RemoveMember, *clusterpb.Request_AdoptMember:
		// The first group decides; what it has removed or adopted the others do, sooner or
		// later. So it is asked first, and what refuses it has changed nothing.
		var response *clusterpb.Response
		for _, g := range n.groups {
			var err error
			if response, err = g.pass(ctx, request); err != nil {
				return nil, err
			}
		}
		return response, nil
	}
	parts, err := n.fromEach(request, func(g *group) (*clusterpb.Response, error) { return g.membersNow(ctx, request) })
	if err != nil {
		return nil, err
	}
	return n.mergeMembers(parts), nil
}

// membersWait is how long a call for the members waits for a leader to be known, and how
// long it asks another leader before it looks whether that still leads.
const membersWait = time.Second

// membersNow returns the members of the group as its leader knows them, or, while none is
// known, as this node does.
func (g *group) membersNow(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	if changed := g.moved.next(); g.leader() == "" {
		if _, err := restUntil(ctx, g.closing, changed, membersWait); err != nil {
			return nil, &UnavailableError{NotExecuted: true, Err: err}
		}
	}
	for g.ledElsewhere() || !g.knowsMembers() {
		limited, cancel := context.WithTimeout(ctx, membersWait)
		response, err := g.pass(limited, request)
		late := limited.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil || !late {
			return response, err
		}
	}
	return g.membersKnown(), nil
}

// gatherNear has a list answered by this node alone.
func (n *Node) gatherNear(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	return n.gatherList(request, func(g *group) (*clusterpb.Response, error) {
		return g.read(ctx, g.partition.Load(), request)
	})
}

// pass has the leader of the group answer its part of a request.
func (g *group) pass(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	part := proto.CloneOf(request)
	part.Group = uint32(g.number + 1)
	return g.call(ctx, part)
}

// fromEach asks for all groups at once, and returns the first error.
func (n *Node) fromEach(request *clusterpb.Request, ask func(g *group) (*clusterpb.Response, error)) ([]*clusterpb.Response, error) {
	parts, errs := make([]*clusterpb.Response, len(n.groups)), make([]error, len(n.groups))
	var asking sync.WaitGroup
	for i, g := range n.groups {
		asking.Go(func() {
			errs[i] = n.recovered(request, func() (err error) {
				parts[i], err = ask(g)
				return err
			})
		})
	}
	asking.Wait()
	return parts, firstError(errs...)
}

// gatherList merges the pages of all groups. Each has as many instances as the page
// may have, so the first of all are among them.
func (n *Node) gatherList(request *clusterpb.Request, ask func(g *group) (*clusterpb.Response, error)) (*clusterpb.Response, error) {
	parts, err := n.fromEach(request, ask)
	if err != nil {
		return nil, err
	}
	merged, response := new(clusterpb.ListResult), new(clusterpb.Response)
	for _, part := range parts {
		list := part.GetList()
		merged.Instances = append(merged.Instances, list.GetInstances()...)
		merged.Count += list.GetCount()
		merged.More = merged.More || list.GetMore()
		response.AppliedIndex += part.AppliedIndex
		response.AppliedIndexes = append(response.AppliedIndexes, part.AppliedIndex)
	}
	slices.SortFunc(merged.Instances, func(a, b *clusterpb.Status) int { return strings.Compare(a.Instance, b.Instance) })
	if limit := int(min(request.GetList().Limit, listMax)); !request.GetList().Count && len(merged.Instances) > limit {
		merged.Instances, merged.More = merged.Instances[:limit], true
	}
	response.Result = &clusterpb.Response_List{List: merged}
	return response, nil
}

// gatherPurge has each group purge those that are its own.
func (n *Node) gatherPurge(ctx context.Context, request *clusterpb.Request, r *clusterpb.PurgeRequest) (*clusterpb.Response, error) {
	ids := make(map[*group][]string)
	for _, id := range r.Instances {
		ids[n.of(id)] = append(ids[n.of(id)], id)
	}
	parts, err := n.fromEach(request, func(g *group) (*clusterpb.Response, error) {
		if len(ids[g]) == 0 {
			return nil, nil
		}
		part := proto.CloneOf(request)
		if part.FirstIndex != nil {
			part.FirstIndex = new(uint64) // it was another group's
		}
		part.Call = &clusterpb.Request_Purge{Purge: &clusterpb.PurgeRequest{Instances: ids[g]}}
		return g.pass(ctx, part)
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

// mergeMembers puts together what is known of the members in each group: who is one
// in any of them, and has a vote if it has one in all.
func (n *Node) mergeMembers(parts []*clusterpb.Response) *clusterpb.Response {
	merged := make(map[string]*clusterpb.Member)
	in := make(map[string]int)
	result := &clusterpb.MembersResult{Groups: uint32(len(n.groups)), LastIndex: parts[0].GetMembers().GetLastIndex()}
	for i, part := range parts {
		result.AppliedIndexes = append(result.AppliedIndexes, part.GetMembers().GetAppliedIndexes()...)
		result.ConfigurationIndexes = append(result.ConfigurationIndexes, part.GetMembers().GetConfigurationIndexes()...)
		for _, m := range part.GetMembers().GetMembers() {
			in[m.Node]++
			all := merged[m.Node]
			if all == nil {
				all = &clusterpb.Member{Node: m.Node, Address: m.Address, Identity: m.Identity, Voter: true, BehindKnown: true, SilenceKnown: true}
				merged[m.Node] = all
				result.Members = append(result.Members, all)
			}
			if m.Leader {
				all.Leads = append(all.Leads, uint32(i))
			}
			all.Leader = all.Leader || m.Leader && i == 0
			all.Voter = all.Voter && m.Voter
			all.Behind += m.Behind
			all.BehindKnown = all.BehindKnown && m.BehindKnown
			all.Silence = max(all.Silence, m.Silence)
			all.SilenceKnown = all.SilenceKnown && m.SilenceKnown
			all.Silent = all.Silent || m.Silent
		}
	}
	for _, m := range result.Members {
		m.Voter = m.Voter && in[m.Node] == len(parts)
	}
	slices.SortFunc(result.Members, func(a, b *clusterpb.Member) int { return strings.Compare(a.Node, b.Node) })
	return &clusterpb.Response{Result: &clusterpb.Response_Members{Members: result}}
}
