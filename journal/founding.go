package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/internal/frame"
	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
	"github.com/tenuto-dev/tenuto/journal/internal/peer"
	"github.com/tenuto-dev/tenuto/journal/internal/raftnode"
)

// Several nodes found a partition together. An empty directory does not prove that the partition
// does not exist yet: the directory may replace a lost one. So a node without a log founds nothing
// by itself. The founders are known by their names (Config.Peers) and the same on each. Their
// addresses may still be unknown, or change (Config.Founders); the list holds those of the moment.
// A founder takes three steps:
//
//  1. It queries every other founder. If all of them report twice in a row that they are empty,
//     with the same identities, all were empty at one moment between the rounds. So nothing that
//     any of them holds can be older than that moment.
//  2. It agrees: it writes and syncs the list of founders with their identities. A directory never
//     agrees to a second list. If another founder has agreed to a list that contains this identity,
//     the node agrees to that list.
//  3. When a majority of the founders has agreed to that list, it becomes the first entry of the
//     log, and Raft takes over. A founder that is slower or was interrupted has no log at that
//     time. It continues these steps, or the leader sends it the log.
//
// A node that has lost its directory finds non-empty founders in step 1. It waits until it is
// started with its old directory, or the partition adopts the new one. Two lists cannot both have a
// majority. The two majorities would share a founder, which would have lost its directory in
// between. But a node agrees to the second list only if all founders were empty after that loss.
// Those that agreed to the first list were not.
const (
	foundingInterval = 50 * time.Millisecond
	foundingTimeout  = time.Second
	// foundingLogInterval is how often a founder logs what it waits for, after contactLogAfter.
	foundingLogInterval = 10 * time.Second
	foundingFile        = "founding"
	foundingFormat      = 1
)

// founder is a node in the list that founders agree to.
type founder struct {
	Node     string `json:"node"`
	Address  string `json:"address"`
	Identity string `json:"identity"`
}

// foundingState is what a node reports to another that wants to found a partition.
type foundingState struct {
	// HasLog means that the node has a log. RecordedIdentity is the querying node's identity in
	// that log. IsMember and IsRemoved report whether the querying node is a member there or was
	// removed.
	HasLog           bool   `json:"begun,omitempty"`
	IsMember         bool   `json:"member,omitempty"`
	RecordedIdentity string `json:"recorded,omitempty"`
	IsRemoved        bool   `json:"removed,omitempty"`
	// JoinedElection means that the node has no log but has taken part in an election.
	JoinedElection bool `json:"touched,omitempty"`
	// AgreedPeers is the list of founders that the node has agreed to. It is empty if the node has
	// agreed to none, for example because it was added later.
	AgreedPeers []founder `json:"agreed,omitempty"`
	// Peers are the founders as the node knows them at present; empty while it must not found.
	Peers []Peer `json:"peers,omitempty"`
}

// founding takes part in the founding of a partition by several nodes. It holds the list of
// founders that this node has agreed to; peers is nil before.
type founding struct {
	config     *Config
	raft       *raftnode.Node
	failStop   *failStop
	identities *identities
	members    *members

	mu    sync.Mutex
	peers []founder
}

// openFounding reads the list of founders that this node has agreed to.
func openFounding(c *Config) (*founding, error) {
	fd := &founding{config: c}
	if c.Dir == "" {
		return fd, nil
	}
	path := filepath.Join(c.Dir, foundingFile)
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return fd, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read list of founders: %w", err)
	}
	var agreement struct {
		Format   int       `json:"format"`
		Founders []founder `json:"founders"`
	}
	if err := frame.ReadJSON(bytes.NewReader(content), &agreement); err != nil {
		return nil, &DamagedError{Path: path, Reason: err.Error()}
	}
	if agreement.Format != foundingFormat {
		return nil, &FormatError{Path: path, Want: fmt.Sprint(foundingFormat), Have: fmt.Sprint(agreement.Format)}
	}
	fd.peers = agreement.Founders
	return fd, nil
}

// agree records permanently that this node has agreed to a list of founders.
func (fo *founding) agree(list []founder) error {
	fo.mu.Lock()
	defer fo.mu.Unlock()
	if fo.peers != nil {
		return errors.New("already agreed to a list of founders")
	}
	if dir := fo.config.Dir; dir != "" {
		var content bytes.Buffer
		err := frame.WriteJSON(&content, "", map[string]any{"format": foundingFormat, "founders": list})
		if err == nil {
			err = diskfile.WriteAtomic(dir, foundingFile, content.Bytes())
		}
		if err != nil {
			return fmt.Errorf("write list of founders: %w", err)
		}
	}
	fo.peers = list
	return nil
}

func (fo *founding) agreedPeers() []founder {
	fo.mu.Lock()
	defer fo.mu.Unlock()
	return fo.peers
}

// stateFor answers a node that wants to found a partition.
func (fo *founding) stateFor(h *handshake) *foundingState {
	s := &foundingState{HasLog: len(fo.identities.servers()) > 0, JoinedElection: fo.raft.CurrentTerm() > 0}
	if peers, err := fo.config.Founders(); err == nil {
		s.Peers = peers
	}
	if s.HasLog {
		s.RecordedIdentity, s.IsMember = fo.identities.recordedIdentity(h.Node)
		s.IsRemoved = fo.members.membership().isRemoved(h.Node)
	}
	s.AgreedPeers = fo.agreedPeers()
	return s
}

// needsFounding reports whether this node must agree with others before it has a log.
func (c *Config) needsFounding() bool {
	return !c.Join && len(c.Peers) > 1 && c.Protocol >= identityProtocol
}

// run takes part in the founding until this node has a log, or ctx ends.
func (fo *founding) run(ctx context.Context) {
	var before []founder
	next := time.Now().Add(contactLogAfter) // when to log what this node waits for
	for len(fo.identities.servers()) == 0 && fo.failStop.Err() == nil {
		round := fo.queryFounders(ctx)
		if ctx.Err() != nil {
			return
		}
		agreeing, err := fo.advance(round, before)
		before = agreeing
		if now := time.Now(); err != nil && now.After(next) {
			next = now.Add(foundingLogInterval)
			fo.config.Logger.Warn("waiting to found the cluster", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(foundingInterval):
		}
	}
}

// foundingRound holds the answers of the other founders, by node.
type foundingRound map[string]*foundingAnswer

type foundingAnswer struct {
	reply *handshakeReply
	err   error
}

func (fo *founding) queryFounders(ctx context.Context) foundingRound {
	round := make(foundingRound)
	var mu sync.Mutex
	var asking sync.WaitGroup
	peers, _ := fo.config.Founders()
	for _, p := range peers {
		if p.Node == fo.config.Node || p.Address == "" {
			continue
		}
		asking.Go(func() {
			r, err := fo.queryFounder(ctx, p)
			mu.Lock()
			defer mu.Unlock()
			round[p.Node] = &foundingAnswer{r, err}
		})
	}
	asking.Wait()
	return round
}

func (fo *founding) queryFounder(ctx context.Context, p Peer) (*handshakeReply, error) {
	r, err := fo.identities.dialHandshake(ctx, p.Address, fo.identities.newHandshake(purposeFounding), foundingTimeout)
	switch {
	case err != nil:
		return nil, err
	case r.Rejection != "":
		return nil, errors.New(r.Rejection)
	case r.Node != p.Node:
		return nil, fmt.Errorf("node %q answers at %s", r.Node, p.Address)
	case r.Founding == nil:
		return nil, errors.New("no founding state in the answer")
	}
	return r, nil
}

// advance takes the next step that the answers of a round allow. It returns the list of
// founders if all are empty, and an error that says what this node waits for. before is the list
// that the previous round returned.
func (fo *founding) advance(round foundingRound, before []founder) ([]founder, error) {
	if err := fo.checkExistingPartition(round); err != nil {
		return nil, err
	}
	if agreed := fo.agreedPeers(); agreed != nil {
		return nil, fo.foundIfAgreed(round, agreed)
	}
	peers, err := fo.config.Founders()
	if err != nil {
		return nil, err
	}
	if list := round.findAgreement(fo.config.Node, fo.identities.self.Identity); list != nil {
		return nil, fo.agree(list)
	}
	list, err := fo.emptyFounders(round, peers)
	if err != nil || !slices.Equal(list, before) {
		return list, err
	}
	fo.config.Logger.Info("all founders are empty, agreeing to found the cluster", "founders", len(list))
	return nil, fo.agree(list)
}

// checkExistingPartition returns an error if another node has a log in which this node was removed,
// has another directory, or is no member.
func (fo *founding) checkExistingPartition(round foundingRound) error {
	for node, answer := range round {
		if answer.err != nil || !answer.reply.Founding.HasLog {
			continue
		}
		switch s := answer.reply.Founding; {
		case s.IsRemoved:
			_ = fo.failStop.Fail(ErrRemoved)
			return ErrRemoved
		case s.RecordedIdentity == fo.identities.self.Identity:
			continue // the partition exists, with this node
		case !s.IsMember:
			return fmt.Errorf("node %s belongs to a cluster that exists: %w there; start this one with Config.Join instead of Config.Peers", node, ErrNotMember)
		default:
			err := &DirectoryError{Node: fo.config.Node, Identity: fo.identities.self.Identity, Recorded: s.RecordedIdentity}
			fo.identities.recordDirectoryRejection(node, err)
			return err
		}
	}
	return nil
}

// findAgreement returns a list that a founder has agreed to and that contains node with identity;
// nil if there is none.
func (round foundingRound) findAgreement(node, identity string) []founder {
	for _, answer := range round {
		if answer.err != nil {
			continue
		}
		list := answer.reply.Founding.AgreedPeers
		if slices.ContainsFunc(list, func(f founder) bool { return f.Node == node && f.Identity == identity }) {
			return list
		}
	}
	return nil
}

// emptyFounders returns the list of the founders if all are empty and have the same peers.
func (fo *founding) emptyFounders(round foundingRound, peers []Peer) ([]founder, error) {
	var list []founder
	var missing []error
	for _, p := range peers {
		f := founder{p.Node, p.Address, fo.identities.self.Identity}
		if p.Address == "" {
			missing = append(missing, fmt.Errorf("node %s: its address is not known yet", p.Node))
			continue
		}
		if p.Node != fo.config.Node {
			answer := round[p.Node]
			if err := checkEmpty(answer, peers); err != nil {
				missing = append(missing, fmt.Errorf("node %s at %s: %w", p.Node, p.Address, err))
				continue
			}
			f.Identity = answer.reply.Identity
		}
		list = append(list, f)
	}
	if len(missing) > 0 {
		return nil, errors.Join(missing...)
	}
	slices.SortFunc(list, func(a, b founder) int { return strings.Compare(a.Node, b.Node) })
	return list, nil
}

func checkEmpty(answer *foundingAnswer, peers []Peer) error {
	switch {
	case answer == nil:
		return errors.New("it was not asked yet")
	case answer.err != nil:
		return answer.err
	}
	switch s := answer.reply.Founding; {
	case len(s.Peers) == 0:
		return errors.New("it does not know the founders yet, or is not one")
	case !equalPeers(s.Peers, peers):
		return fmt.Errorf("it has other founders, or other addresses of them: %v there, %v on this node", s.Peers, peers)
	case s.AgreedPeers != nil:
		return errors.New("it has agreed to found the cluster with another directory of this node, which was lost since: " +
			"if no node of the cluster has data yet, empty all directories and start again")
	case s.HasLog:
		return errors.New("it belongs to the cluster and knows this node; waiting for the leader")
	case s.JoinedElection:
		return errors.New("it has taken part in an election")
	}
	return nil
}

// HasAgreedToFound reports whether this node has agreed to found the partition with others. It
// remains true when the partition exists.
func (fo *founding) HasAgreedToFound() bool { return fo.agreedPeers() != nil }

func equalPeers(a, b []Peer) bool {
	sorted := func(peers []Peer) []Peer {
		return slices.SortedFunc(slices.Values(peers), func(a, b Peer) int { return strings.Compare(a.Node, b.Node) })
	}
	return slices.Equal(sorted(a), sorted(b))
}

// foundIfAgreed writes the first entry of the log if a majority of the founders, including this
// one, has agreed to the same list, or another founder already has a log that begins with it.
func (fo *founding) foundIfAgreed(round foundingRound, list []founder) error {
	agreed, founded := 0, false
	for _, f := range list {
		if f.Node == fo.config.Node || round.hasAgreed(f, list) {
			agreed++
		}
		founded = founded || f.Node != fo.config.Node && round.hasFounded(f, list, fo.identities.self.Identity)
	}
	if agreed <= len(list)/2 && !founded {
		return fmt.Errorf("%d of %d founders have agreed, waiting for a majority", agreed, len(list))
	}
	err := fo.raft.BootstrapCluster(initialConfiguration(list)).Error()
	switch {
	case err == nil:
		fo.config.Logger.Info("cluster founded", "founders", len(list))
	case errors.Is(err, raft.ErrCantBootstrap):
		return errors.New("this node already has a log, waiting for the leader")
	case !errors.Is(err, raft.ErrRaftShutdown):
		_ = fo.failStop.Fail(fmt.Errorf("write first log entry: %w", err))
	}
	return err
}

func (round foundingRound) hasAgreed(f founder, list []founder) bool {
	answer := round[f.Node]
	return answer != nil && answer.err == nil && answer.reply.Identity == f.Identity &&
		slices.Equal(answer.reply.Founding.AgreedPeers, list)
}

// hasFounded reports whether a founder has a log that begins with the list and records that
// identity.
func (round foundingRound) hasFounded(f founder, list []founder, identity string) bool {
	return round.hasAgreed(f, list) && round[f.Node].reply.Founding.HasLog && round[f.Node].reply.Founding.RecordedIdentity == identity
}

// initialConfiguration returns the first configuration of a partition: the same on every founder.
func initialConfiguration(list []founder) (configuration raft.Configuration) {
	for _, f := range list {
		configuration.Servers = append(configuration.Servers, raft.Server{ID: raft.ServerID(f.Node), Address: peer.Address(f.Address, f.Identity)})
	}
	return configuration
}
