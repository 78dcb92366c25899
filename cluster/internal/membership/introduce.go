package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A node that looks for others introduces itself to every address that it has discovered, and the
// node there introduces itself in the answer. So both learn where the other is, although only one
// of them has found the other, and although the addresses in their logs are outdated.

// An Introducer introduces this node to others.
type Introducer struct {
	Node, Address string // of this node
	// Self returns what this node states of itself. It is called when the node is open.
	Self func() *clusterpb.IntroduceRequest
	// Recorded returns the identity that this node's log has for a member.
	Recorded func(node string) (identity string, member bool)
	// Ask sends an introduction to the node at an address, once.
	Ask    func(ctx context.Context, address string, self *clusterpb.IntroduceRequest) (*clusterpb.IntroduceResult, error)
	Book   *Book
	Logger *slog.Logger

	foundCluster atomic.Bool
	strangers    strangers
}

// strangers are the addresses at which a node of another cluster was found and logged. At most
// AddressesMax of them are kept.
type strangers struct {
	mu     sync.Mutex
	logged map[string]bool
}

// isNew reports whether an address was not logged yet, and records that it is.
func (s *strangers) isNew(address string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.logged[address] || len(s.logged) >= AddressesMax {
		return false
	}
	if s.logged == nil {
		s.logged = make(map[string]bool)
	}
	s.logged[address] = true
	return true
}

// ErrFoundCluster means that this node must not found a cluster, because it has found one.
var ErrFoundCluster = errors.New("a cluster was found that this node's directory does not belong to; the node asks to be added to it")

// Introduce introduces this node to the node at an address, and learns who that is. A node that
// does not answer is none.
func (i *Introducer) Introduce(ctx context.Context, address string) {
	self := i.Self()
	found, err := i.Ask(ctx, address, self)
	switch {
	case err != nil:
		i.Logger.Debug("no node found at a discovered address", "address", address, "error", err)
		return
	case found.GetNode() == self.Node:
		return
	case found.GetCluster() != self.Cluster:
		if i.strangers.isNew(address) {
			i.Logger.Warn("node of another cluster found at a discovered address", "address", address, "cluster", found.GetCluster())
		}
		return
	}
	i.Book.Learn(Found{Node: found.Node, Identity: found.Identity, Address: found.Address, Answered: address})
	if found.HasLog && (!found.Member || found.RecordedIdentity != "" && found.RecordedIdentity != self.Identity) {
		i.foundCluster.Store(true)
	}
}

// Answer answers the introduction of another node, which the caller has authenticated.
func (i *Introducer) Answer(from *clusterpb.IntroduceRequest) *clusterpb.IntroduceResult {
	self := i.Self()
	result := &clusterpb.IntroduceResult{Node: self.Node, Address: self.Address, Identity: self.Identity, Cluster: self.Cluster, HasLog: self.HasLog}
	if from.Cluster == self.Cluster && from.Node != self.Node {
		i.Book.Learn(Found{Node: from.Node, Identity: from.Identity, Address: from.Address})
		result.RecordedIdentity, result.Member = i.Recorded(from.Node)
	}
	return result
}

// HasFoundCluster reports whether another node has a log in which this node is no member, or has
// another directory.
func (i *Introducer) HasFoundCluster() bool { return i.foundCluster.Load() }

// Founders returns founding nodes with the addresses at which they were found. It returns an error
// if this node has found a cluster.
func (i *Introducer) Founders(nodes []journal.Peer) ([]journal.Peer, error) {
	founders := make([]journal.Peer, len(nodes))
	for at, peer := range nodes {
		switch {
		case peer.Node == i.Node:
			peer.Address = i.Address
		case peer.Address == "":
			peer.Address = i.Book.Address(peer.Node)
		}
		founders[at] = peer
	}
	if i.HasFoundCluster() {
		return founders, fmt.Errorf("not founding: %w", ErrFoundCluster)
	}
	return founders, nil
}
