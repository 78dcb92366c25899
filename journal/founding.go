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
)

// Several nodes found a group together, and an empty directory is no proof that there is
// none yet: it may be what is left of a lost one. So a node without a log founds nothing by
// itself:
//
//  1. It asks every other founder. When all of them, twice in a row, have said that they are
//     empty, with the same identities, then at one moment between the two rounds all were. So
//     nothing that any of them holds can be older than that moment.
//  2. It agrees: it writes down, and syncs, the founders with their identities. An identity
//     agrees to one list of founders only, ever. A node that learns of an agreement with its
//     identity in it agrees to the same.
//  3. When a majority of the founders has agreed to that list, it becomes the first entry of
//     the log, and Raft takes over. A founder that is slower, or stops in between, goes on
//     when it is there again; until then it has no log, and a leader brings it one.
//
// A node that has lost its directory meets others that are not empty in step 1, and waits:
// for its old directory, or to be adopted. Two lists cannot both have a majority, because the
// majorities have a founder in common, which would have lost its directory in between; and
// who agrees to the later list has found all founders empty after that.
const (
	foundEvery   = 50 * time.Millisecond
	foundTimeout = time.Second
	// foundLogEvery is how often is logged what a founder waits for.
	foundLogEvery  = 10 * time.Second
	foundingFile   = "founding"
	foundingFormat = 1
)

// A founder is a node in the list to which founders agree.
type founder struct {
	Node     string `json:"node"`
	Address  string `json:"address"`
	Identity string `json:"identity"`
}

// A foundingState is what a node says of itself to another that would found a group.
type foundingState struct {
	// Begun says that the node has a log. Recorded is what that says of the identity of the
	// node that asks, Member whether it is a member, and Removed whether it was removed.
	Begun    bool   `json:"begun,omitempty"`
	Member   bool   `json:"member,omitempty"`
	Recorded string `json:"recorded,omitempty"`
	Removed  bool   `json:"removed,omitempty"`
	// Touched says that the node has no log, but has taken part in an election.
	Touched bool `json:"touched,omitempty"`
	// Agreed is the list to which it has agreed; none if it has to none, or knows none any
	// more because it was added later.
	Agreed []founder `json:"agreed,omitempty"`
	// Peers are the founders by its configuration.
	Peers []Peer `json:"peers,omitempty"`
}

// founding is a node's part in the founding of its group.
type founding struct {
	journal *Journal
	mu      sync.Mutex
	agreed  []founder
}

// openFounding reads to what this node has agreed.
func (j *Journal) openFounding() error {
	j.founding = &founding{journal: j}
	if j.config.Dir == "" {
		return nil
	}
	path := filepath.Join(j.config.Dir, foundingFile)
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read founding: %w", err)
	}
	var agreement struct {
		Format   int       `json:"format"`
		Founders []founder `json:"founders"`
	}
	if err := readAsk(bytes.NewReader(content), &agreement); err != nil {
		return &DamagedError{Path: path, Reason: err.Error()}
	}
	if agreement.Format != foundingFormat {
		return &FormatError{Path: path, Want: fmt.Sprint(foundingFormat), Have: fmt.Sprint(agreement.Format)}
	}
	j.founding.agreed = agreement.Founders
	return nil
}

// agree binds this node's identity to a list of founders, for ever.
func (f *founding) agree(list []founder) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.agreed != nil {
		return errors.New("it has agreed to a founding before")
	}
	if dir := f.journal.config.Dir; dir != "" {
		var content bytes.Buffer
		err := writeAsk(&content, "", map[string]any{"format": foundingFormat, "founders": list})
		if err == nil {
			err = writeSynced(dir, foundingFile, content.Bytes())
		}
		if err != nil {
			return fmt.Errorf("write founding: %w", err)
		}
	}
	f.agreed = list
	return nil
}

func (f *founding) agreement() []founder {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.agreed
}

// foundingFor answers a node that would found a group.
func (j *Journal) foundingFor(h *hello) *foundingState {
	s := &foundingState{Begun: len(j.servers()) > 0, Touched: j.raft.CurrentTerm() > 0, Peers: j.config.Peers}
	if s.Begun {
		s.Recorded, s.Member = j.recorded(h.Node)
		s.Removed = j.roster().removed(h.Node)
	}
	s.Agreed = j.founding.agreement()
	return s
}

// awaitsFounding reports whether this node has to agree with others before it has a log.
func (c *Config) awaitsFounding() bool {
	return !c.Join && len(c.Peers) > 1 && c.Protocol >= identityProtocol
}

// found takes part in the founding until this node has a log, or ctx ends.
func (j *Journal) found(ctx context.Context) {
	var before []founder
	var told time.Time
	for len(j.servers()) == 0 && j.fence.err() == nil {
		round := j.askFounders(ctx)
		if ctx.Err() != nil {
			return
		}
		next, err := j.proceed(round, before)
		before = next
		if err != nil && time.Since(told) >= foundLogEvery {
			told = time.Now()
			j.config.Logger.Warn("waiting to found the cluster with Config.Peers", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(foundEvery):
		}
	}
}

// A foundingRound is what the other founders have answered.
type foundingRound map[string]*foundingAnswer

type foundingAnswer struct {
	reply *helloReply
	err   error
}

func (j *Journal) askFounders(ctx context.Context) foundingRound {
	round := make(foundingRound)
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, p := range j.config.Peers {
		if p.Node == j.config.Node {
			continue
		}
		asking.Go(func() {
			r, err := j.askFounder(ctx, p)
			mu.Lock()
			defer mu.Unlock()
			round[p.Node] = &foundingAnswer{r, err}
		})
	}
	asking.Wait()
	return round
}

func (j *Journal) askFounder(ctx context.Context, p Peer) (*helloReply, error) {
	conn, err := j.streams.dialPlain(p.Address, foundTimeout)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer conn.Close()
	r, err := exchangeHello(conn, j.helloOf(purposeFound), foundTimeout)
	switch {
	case err != nil:
		return nil, err
	case r.Refusal != "":
		return nil, errors.New(r.Refusal)
	case r.Node != p.Node:
		return nil, fmt.Errorf("node %q answers at %s", r.Node, p.Address)
	case r.Founding == nil:
		return nil, errors.New("it does not say what it has")
	}
	return r, nil
}

// proceed does what a round of answers allows. It returns the list of founders if all are
// empty, and why the group cannot be founded yet.
func (j *Journal) proceed(round foundingRound, before []founder) ([]founder, error) {
	if err := j.heedMembers(round); err != nil {
		return nil, err
	}
	if agreed := j.founding.agreement(); agreed != nil {
		return nil, j.foundIfAgreed(round, agreed)
	}
	if list := round.agreementWith(j.config.Node, j.self.Identity); list != nil {
		return nil, j.founding.agree(list)
	}
	list, err := j.emptyFounders(round)
	if err != nil || !slices.Equal(list, before) {
		return list, err
	}
	j.config.Logger.Info("all founders are empty: agreeing to found the cluster", "founders", len(list))
	return nil, j.founding.agree(list)
}

// heedMembers returns why this node cannot take part in a founding: one of the others has a
// log, and has recorded another directory of this node.
func (j *Journal) heedMembers(round foundingRound) error {
	for node, answer := range round {
		if answer.err != nil || !answer.reply.Founding.Begun {
			continue
		}
		switch s := answer.reply.Founding; {
		case s.Removed:
			j.fence.draw(ErrRemoved)
			return ErrRemoved
		case s.Recorded == j.self.Identity:
			continue // it is founded, with this node
		default:
			// One that is not a member there, too: Peers is of a cluster that has been founded.
			err := &DirectoryError{Node: j.config.Node, Identity: j.self.Identity, Recorded: s.Recorded}
			j.disown(node, err)
			return err
		}
	}
	return nil
}

// agreementWith returns the list to which any founder has agreed, if a node is in it with an
// identity.
func (round foundingRound) agreementWith(node, identity string) []founder {
	for _, answer := range round {
		if answer.err != nil {
			continue
		}
		list := answer.reply.Founding.Agreed
		if slices.ContainsFunc(list, func(f founder) bool { return f.Node == node && f.Identity == identity }) {
			return list
		}
	}
	return nil
}

// emptyFounders returns the list of the founders if all are empty and have the same Peers.
func (j *Journal) emptyFounders(round foundingRound) ([]founder, error) {
	var list []founder
	var lacking []error
	for _, p := range j.config.Peers {
		f := founder{p.Node, p.Address, j.self.Identity}
		if p.Node != j.config.Node {
			answer := round[p.Node]
			if err := j.isEmpty(answer); err != nil {
				lacking = append(lacking, fmt.Errorf("node %s at %s: %w", p.Node, p.Address, err))
				continue
			}
			f.Identity = answer.reply.Identity
		}
		list = append(list, f)
	}
	if len(lacking) > 0 {
		return nil, errors.Join(lacking...)
	}
	slices.SortFunc(list, func(a, b founder) int { return strings.Compare(a.Node, b.Node) })
	return list, nil
}

func (j *Journal) isEmpty(answer *foundingAnswer) error {
	if answer.err != nil {
		return answer.err
	}
	switch s := answer.reply.Founding; {
	case !samePeers(s.Peers, j.config.Peers):
		return fmt.Errorf("its Config.Peers are others: it has %v, this node %v", s.Peers, j.config.Peers)
	case s.Agreed != nil:
		return errors.New("it has agreed to a founding with another directory of this node, which was lost since: " +
			"if no node of the cluster has data yet, empty all directories and start again")
	case s.Begun:
		return errors.New("it belongs to the cluster and knows this node: waiting for the leader")
	case s.Touched:
		return errors.New("it has taken part in an election")
	}
	return nil
}

func samePeers(a, b []Peer) bool {
	sorted := func(peers []Peer) []Peer {
		return slices.SortedFunc(slices.Values(peers), func(a, b Peer) int { return strings.Compare(a.Node, b.Node) })
	}
	return slices.Equal(sorted(a), sorted(b))
}

// foundIfAgreed begins the log if a majority of the founders, this one among them, has
// agreed to the same list.
func (j *Journal) foundIfAgreed(round foundingRound, list []founder) error {
	agreed, founded := 0, false
	for _, f := range list {
		if f.Node == j.config.Node || round.hasAgreed(f, list) {
			agreed++
		}
		founded = founded || f.Node != j.config.Node && round.hasFounded(f, list, j.self.Identity)
	}
	if agreed <= len(list)/2 && !founded {
		return fmt.Errorf("%d of %d founders have agreed to the founding: waiting for more", agreed, len(list))
	}
	err := j.raft.BootstrapCluster(configurationOf(list)).Error()
	switch {
	case err == nil:
		j.config.Logger.Info("the cluster is founded", "founders", len(list))
	case errors.Is(err, raft.ErrCantBootstrap):
		return errors.New("another founder was faster: waiting for the leader")
	case !errors.Is(err, raft.ErrRaftShutdown):
		j.fence.draw(fmt.Errorf("write the founding entry: %w", err))
	}
	return err
}

func (round foundingRound) hasAgreed(f founder, list []founder) bool {
	answer := round[f.Node]
	return answer != nil && answer.err == nil && answer.reply.Identity == f.Identity &&
		slices.Equal(answer.reply.Founding.Agreed, list)
}

// hasFounded reports whether a founder has a log that begins with the list.
func (round foundingRound) hasFounded(f founder, list []founder, identity string) bool {
	return round.hasAgreed(f, list) && round[f.Node].reply.Founding.Begun && round[f.Node].reply.Founding.Recorded == identity
}

// configurationOf returns the first configuration of a group: the same on every founder.
func configurationOf(list []founder) (group raft.Configuration) {
	for _, f := range list {
		group.Servers = append(group.Servers, raft.Server{ID: raft.ServerID(f.Node), Address: withIdentity(f.Address, f.Identity)})
	}
	return group
}
