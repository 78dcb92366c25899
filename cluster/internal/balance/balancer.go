package balance

import (
	"fmt"
	"slices"

	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

const (
	// A move requires this many rounds with the same leaders, unevenly spread.
	unevenRoundsMin = 3
	// balanceCooldown is the number of rounds between two moves. A node that declined a partition
	// is offered none for exclusionRounds: it may be ready again soon.
	balanceCooldown = 10
	exclusionRounds = 3
	// How much a move must reduce the difference in weight of two nodes, in mean partition weights.
	balanceGainMin = 0.25
)

// A Balancer holds what a node remembers between rounds.
type Balancer struct {
	appliedIndexes []uint64  // by partition, in the last round
	loads          []float64 // by partition: entries per round, smoothed
	leaders        []string  // by partition, in the last round
	unevenRounds   int       // how many rounds the leaders have been uneven
	cooldown       int
	excluded       Exclusions
}

// Exclusions maps nodes that declined a partition to the number of rounds in which they are still
// offered none.
type Exclusions map[string]int

// NextRound begins a round.
func (e Exclusions) NextRound() {
	for node := range e {
		if e[node]--; e[node] <= 0 {
			delete(e, node)
		}
	}
}

// Exclude excludes a node for exclusionRounds.
func (e Exclusions) Exclude(node string) { e[node] = exclusionRounds }

func (e Exclusions) filter(nodes []string) []string {
	return slices.DeleteFunc(nodes, func(node string) bool { return e[node] > 0 })
}

// New returns a balancer that has seen no round.
func New() *Balancer { return &Balancer{excluded: make(Exclusions)} }

// Weights returns the weight of each partition: one half is constant, the other half is
// proportional to its load. The mean weight is 1. applied holds the applied index of each
// partition.
func (b *Balancer) Weights(applied []uint64) []float64 {
	weights := make([]float64, len(applied))
	if b.appliedIndexes == nil {
		b.appliedIndexes, b.loads = make([]uint64, len(applied)), make([]float64, len(applied))
	}
	total := 0.0
	for i, now := range applied {
		if b.appliedIndexes[i] > 0 && now > b.appliedIndexes[i] {
			b.loads[i] += (float64(now-b.appliedIndexes[i]) - b.loads[i]) / 8
		} else {
			b.loads[i] -= b.loads[i] / 8
		}
		b.appliedIndexes[i] = now
		total += b.loads[i]
	}
	for i := range weights {
		weights[i] = 1
		// Clock samples alone are not counted as load.
		if mean := total / float64(len(applied)); mean > balanceLoadMin {
			weights[i] = 0.5 + 0.5*b.loads[i]/mean
		}
	}
	return weights
}

// balanceLoadMin is the mean number of entries per partition and round above which load counts.
const balanceLoadMin = 20

// Offer records that the last move is being offered to its node. The next move requires
// unevenRoundsMin uneven rounds again.
func (b *Balancer) Offer() { b.unevenRounds = 0 }

// Exclude records that a node has declined a partition.
func (b *Balancer) Exclude(node string) { b.excluded.Exclude(node) }

// Pause records that a partition was handed over: no move follows for balanceCooldown rounds.
func (b *Balancer) Pause() { b.cooldown = balanceCooldown }

// A Move is a partition that another node should lead.
type Move struct {
	Partition int
	From, To  string
}

// Decide returns the partition that node self should hand over now, if any. The leaders must have
// been uneven for unevenRoundsMin rounds. If nodes have nearly equal weights, the node with the
// most weight in the last of these rounds hands over.
func (b *Balancer) Decide(self string, nodes, leaders []string, weights []float64) (m Move, ok bool) {
	if b.cooldown > 0 {
		b.cooldown--
		return Move{}, false
	}
	same := slices.Equal(leaders, b.leaders)
	b.leaders = leaders
	b.excluded.NextRound()
	m, ok = chooseMove(b.excluded.filter(nodes), leaders, weights)
	if !ok || !same {
		b.unevenRounds = 0
	}
	if !ok {
		return Move{}, false
	}
	b.unevenRounds++
	return m, b.unevenRounds >= unevenRoundsMin && m.From == self
}

// chooseMove returns the best move, if any; leaders holds "" for an unknown leader. A move goes
// from the node with the most weight (the first by name) to the one with the least, and must reduce
// their difference by more than balanceGainMin.
func chooseMove(nodes, leaders []string, weights []float64) (m Move, ok bool) {
	if len(nodes) == 0 {
		return Move{}, false
	}
	nodeWeights := make(map[string]float64)
	for i, leader := range leaders {
		if leader == "" {
			return Move{}, false // wait until there is one
		}
		nodeWeights[leader] += weights[i]
	}
	most, least := nodes[0], nodes[0]
	for _, node := range nodes { // in order of their names
		if nodeWeights[node] > nodeWeights[most] {
			most = node
		}
		if nodeWeights[node] < nodeWeights[least] {
			least = node
		}
	}
	gap, best := nodeWeights[most]-nodeWeights[least], balanceGainMin
	for i, leader := range leaders {
		// A partition of weight w changes the gap to |gap-2w|.
		if after := gap - 2*weights[i]; leader == most && gap-max(after, -after) > best {
			m, ok, best = Move{i, most, least}, true, gap-max(after, -after)
		}
	}
	return m, ok
}

// NodeForCode returns the node that has code for the most waiting instances, that code, and
// the number of instances. to is "" if there is no such node.
func NodeForCode(waiting map[session.Code]int, workers []*clusterpb.RegisterWorker) (to string, codes []session.Code, instances int) {
	for _, worker := range workers {
		var has []session.Code
		count := 0
		names := make(map[string]bool)
		for _, entry := range worker.Orchestrations {
			code := session.CodeOf(entry)
			n := waiting[code]
			if !names[code.Name] { // instances that accept any version
				n += waiting[session.Code{Name: code.Name, Version: engine.NewestVersion}]
			}
			names[code.Name] = true
			if n > 0 {
				has, count = append(has, code), count+n
			}
		}
		if count > instances {
			to, codes, instances = worker.Node, has, count
		}
	}
	return to, codes, instances
}

// codeNamesMax bounds the orchestrations named in a log line.
const codeNamesMax = 10

// CodeNames returns the names of orchestrations for a log line.
func CodeNames(codes []session.Code) (names []string) {
	for _, code := range codes[:min(len(codes), codeNamesMax)] {
		name := fmt.Sprintf("%q", code.Name)
		if code.Version != "" {
			name += fmt.Sprintf(" version %q", code.Version)
		}
		names = append(names, name)
	}
	return names
}
