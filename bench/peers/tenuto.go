package main

import (
	"context"
	"log/slog"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay"
)

// tenuto is this module's engine.
type tenuto struct{}

func (tenuto) name() string     { return "Tenuto" }
func (tenuto) settings() string { return "this commit, one node, default settings" }
func (tenuto) amounts() amounts { return amounts{hellos: 20_000, concurrency: 1_000, steps: 2_000} }

var (
	work       = replay.Activity[int, int]("work")
	inSequence = replay.Orchestration[int, int]("in sequence")
	atOnce     = replay.Orchestration[int, int]("at once")
)

func (tenuto) open(ctx context.Context, dir string) (instance, error) {
	node, err := cluster.Start(context.WithoutCancel(ctx), cluster.Config{
		Dir:    dir,
		Logger: slog.New(slog.DiscardHandler),
		Definitions: []replay.Definition{
			work.Bind(workBody), inSequence.Bind(tenutoSequence), atOnce.Bind(tenutoFanout),
		},
	})
	return &tenutoInstance{node}, err
}

// workBody is the activity of every engine.
func workBody(_ context.Context, n int) (int, error) { return n + 1, nil }

func tenutoSequence(ctx *replay.Context, activities int) (n int, err error) {
	for range activities {
		if n, err = work.Call(ctx, n); err != nil {
			return 0, err
		}
	}
	return n, nil
}

func tenutoFanout(ctx *replay.Context, activities int) (int, error) {
	futures := make([]*replay.Future[int], activities)
	for i := range futures {
		futures[i] = work.Start(ctx, i)
	}
	results, err := replay.All(ctx, futures...)
	return len(results), err
}

type tenutoInstance struct{ node *cluster.Node }

func (i *tenutoInstance) sequence(ctx context.Context, id string, activities int) (int, error) {
	return cluster.Call(ctx, i.node.Client(), inSequence, id, activities)
}

func (i *tenutoInstance) fanout(ctx context.Context, id string, activities int) (int, error) {
	return cluster.Call(ctx, i.node.Client(), atOnce, id, activities)
}

func (i *tenutoInstance) close() error { return i.node.Close() }
