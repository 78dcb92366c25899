package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// What clients wait for over the network is cut into calls of bounded length,
// which any node answers from its own replica. Each says where it stands, so that
// a lost connection, or another node, loses nothing.
const (
	// How long a node holds such a call.
	pollTime = 5 * time.Second
	// How many events, and about how many bytes of them, one answer carries.
	pollEventsMax = 256
	pollBytesMax  = 1 << 20
	// How long a node holds a question for members of whom it has no news, and how often it
	// looks meanwhile.
	membersHold = 2 * time.Second
	membersLook = 100 * time.Millisecond
)

// nearby answers what any node may answer; nil if the leader is to.
func (n *Node) nearby(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	var answer func(context.Context, *clusterpb.Request) (*clusterpb.Response, error)
	switch request.Call.(type) {
	case *clusterpb.Request_Wait:
		answer = n.pollWait
	case *clusterpb.Request_Watch:
		answer = n.pollWatch
	case *clusterpb.Request_Offer:
		return n.takeOffer()
	case *clusterpb.Request_Members:
		if n.concernsAll(request) || !request.Stale && n.groupFor(request).ledElsewhere() {
			return nil, nil
		}
		answer = n.knownMembers
	default:
		if !request.Stale {
			return nil, nil
		}
		answer = n.near
	}
	if err := n.catchUpWith(ctx, request); err != nil {
		return nil, err
	}
	response, err := answer(ctx, request)
	if errors.Is(err, ErrClosed) {
		err = journal.ErrNotLeader // another node will answer
	}
	if err == nil {
		response.AppliedIndex = max(response.AppliedIndex, request.SeenIndex)
	}
	return response, err
}

// catchUpWith waits a little until this node has applied what a caller has seen.
func (n *Node) catchUpWith(ctx context.Context, request *clusterpb.Request) error {
	ctx, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	err := n.poll(ctx, func() bool { return n.groupFor(request).journal.AppliedIndex() >= request.SeenIndex })
	if len(request.SeenIndexes) == len(n.groups) {
		for i, seen := range request.SeenIndexes {
			err = firstError(err, n.poll(ctx, func() bool { return n.groups[i].journal.AppliedIndex() >= seen }))
		}
	}
	if err != nil {
		return journal.ErrNotLeader // one that is less behind will answer
	}
	return nil
}

func (n *Node) pollWait(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	soon, cancel := context.WithTimeout(ctx, pollTime)
	defer cancel()
	g := n.of(request.Instance)
	run := runRef{request.GetWait().GetFirstExecution(), request.GetWait().GetIncarnation()}
	status, err := g.await(soon, request.Instance, run)
	if err != nil && !timedOut(ctx, soon) {
		return nil, err
	}
	return &clusterpb.Response{
		AppliedIndex: g.journal.AppliedIndex(),
		Result:       &clusterpb.Response_Wait{Wait: &clusterpb.WaitResult{Status: status}},
	}, nil
}

// timedOut tells whether a call ends because its time is over, and not that of
// its caller.
func timedOut(caller, call context.Context) bool { return call.Err() != nil && caller.Err() == nil }

func (n *Node) pollWatch(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	g, asked := n.of(request.Instance), request.GetWatch()
	soon, cancel := context.WithTimeout(ctx, pollTime)
	defer cancel()
	result, size := new(clusterpb.WatchResult), 0
	f := &follower{group: g, id: request.Instance, at: Position{asked.Execution, asked.EventId}}
	if asked.Run != nil {
		f.run = &journalpb.Instance{FirstExecution: asked.Run.FirstExecution, CreatedAt: asked.Run.CreatedAt}
	}
	var encodeErr error
	f.pass = func(r Recorded) bool {
		var encoded []byte
		if encoded, encodeErr = proto.Marshal(r.Event); encodeErr != nil {
			return false
		}
		result.Events = append(result.Events, &clusterpb.WatchedEvent{Execution: r.Execution, Event: encoded})
		size += len(encoded)
		return len(result.Events) < pollEventsMax && size < pollBytesMax
	}
	// What is there is sent at once: nothing more is waited for behind it.
	f.pause = func() bool { return len(result.Events) > 0 }
	err := f.follow(soon)
	switch {
	case encodeErr != nil:
		return nil, encodeErr
	case err == nil:
		result.Ended = true
	case err != errEnough && !timedOut(ctx, soon):
		return nil, err
	}
	result.Execution, result.EventId = f.at.Execution, f.at.EventID
	if f.run != nil {
		result.Run = &clusterpb.WatchedRun{FirstExecution: f.run.FirstExecution, CreatedAt: f.run.CreatedAt}
	}
	return &clusterpb.Response{
		AppliedIndex: g.journal.AppliedIndex(),
		Result:       &clusterpb.Response_Watch{Watch: result},
	}, nil
}

// knownMembers tells who the members are as far as this node knows; of one group, if
// that is asked for.
// A node that is still being added, or reads its log, knows members of long ago: it says
// nothing before it is a member itself, and then only if it knows its leader as one. Nor does a
// node that was removed.
func (n *Node) knownMembers(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	if err := n.awaitMembers(ctx, request.GetMembers().GetKnownIndexes()); err != nil {
		return nil, err
	}
	if !n.knowsMembers() || errors.Is(n.Err(), ErrRemoved) {
		return nil, fmt.Errorf("%w: this node does not know yet who the members are", journal.ErrNotLeader)
	}
	if len(n.groups) == 1 || request.Group > 0 {
		return n.groupFor(request).membersKnown(), nil
	}
	var parts []*clusterpb.Response
	for _, g := range n.groups {
		parts = append(parts, g.membersKnown())
	}
	return n.mergeMembers(parts), nil
}

// awaitMembers waits, for membersHold at most, while this node knows of no newer members than
// the caller and goes on.
func (n *Node) awaitMembers(ctx context.Context, known []uint64) error {
	if len(known) != len(n.groups) {
		return nil
	}
	soon, cancel := context.WithTimeout(ctx, membersHold)
	defer cancel()
	for n.Err() == nil && n.knowsMembers() && !n.hasNewerMembers(known) {
		if n.rest(soon, membersLook) != nil {
			return ctx.Err() // or else the time is over, or the node stops: it says what it knows
		}
	}
	return nil
}

// hasNewerMembers reports whether this node knows a newer configuration of a group.
func (n *Node) hasNewerMembers(known []uint64) bool {
	return slices.ContainsFunc(n.groups, func(g *group) bool { return g.journal.ConfigurationIndex() > known[g.number] })
}

// ledElsewhere reports whether another node leads the group.
func (g *group) ledElsewhere() bool {
	leader := g.leader()
	return leader != "" && leader != g.config.NodeID
}

// knowsMembers reports whether what this node knows of the members is of now, or at least
// of a time when it was one itself.
func (n *Node) knowsMembers() bool {
	first := n.groups[0]
	leader := first.leader()
	return first.self() != nil && (leader == "" || first.journal.IsMember(leader))
}
