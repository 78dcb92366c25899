package cases

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenuto-dev/tenuto/bench/baseline"
	"github.com/tenuto-dev/tenuto/bench/measure"
	"github.com/tenuto-dev/tenuto/cluster"
)

const (
	treeDepth = 3
	treeWidth = 3
)

// treeSize returns the number of leaves and instances of a tree.
func treeSize(depth, width int) (leaves, instances int) {
	leaves, instances = 1, 1
	for range depth {
		leaves *= width
		instances += leaves
	}
	return leaves, instances
}

func tree(ctx context.Context, e *Env) (result *measure.Result, err error) {
	d, err := deploy(ctx, e, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if _, err := e.burst(ctx, "warm-up", min(e.N, max(1, e.N/10)), e.C, d.callTree("warm", treeDepth, treeWidth)); err != nil {
		return nil, err
	}
	result = &measure.Result{}
	meter := measure.StartMeter()
	latency, err := e.burst(ctx, "trees", e.N, e.C, d.callTree("tree", treeDepth, treeWidth))
	if err != nil {
		return nil, err
	}
	_, instances := treeSize(treeDepth, treeWidth)
	took := meter.Stop(result, "trees", e.N)
	result.Add(measure.Metric{Name: "instances", Unit: measure.PerSecond,
		Value: float64(e.N*instances) / took.Seconds(), Baseline: baseline.PackedRecords})
	result.AddLatency("tree", latency, "", "")
	noteProcesses(result, e)
	return result, nil
}

// callTree returns a function that runs a tree to its end.
func (d *deployment) callTree(prefix string, depth, width int) func(context.Context, int) error {
	leaves, _ := treeSize(depth, width)
	return func(ctx context.Context, i int) error {
		got, err := cluster.Call(ctx, d.client(), branching, fmt.Sprintf("%s-%d", prefix, i), treeInput{depth, width})
		return expect(got, leaves, err)
	}
}
