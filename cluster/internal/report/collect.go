package report

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

const (
	// Timeout bounds the wait for a node's report.
	Timeout = 2 * time.Second
	// nodesMax is how many nodes are asked at once.
	nodesMax = 32
)

// Collect asks nodes, whose addresses are given by ID, for their reports. It returns an answer for
// each of them, in order of IDs, when ctx ends or after Timeout at the latest. ask sends one
// request to an address, and returns soon after its context has ended.
func Collect(ctx context.Context, addresses map[string]string, ask func(ctx context.Context, node, address string) (*clusterpb.NodeReport, error)) []access.NodeReport {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	answers := make([]access.NodeReport, 0, len(addresses))
	for node, address := range addresses {
		answers = append(answers, access.NodeReport{Node: node, Address: address})
	}
	slices.SortFunc(answers, func(a, b access.NodeReport) int { return cmp.Compare(a.Node, b.Node) })
	slots := make(chan struct{}, nodesMax)
	var asking sync.WaitGroup
	for i := range answers {
		asking.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			a := &answers[i]
			a.Report, a.Err = ask(ctx, a.Node, a.Address)
		})
	}
	asking.Wait()
	return answers
}
