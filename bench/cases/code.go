package cases

import (
	"context"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay"
)

// The activities, orchestrations, events, updates and queries of the cases.
var (
	work     = replay.Activity[int, int]("work")
	signal   = replay.Activity[string, int]("mark")
	sendWord = replay.Activity[string, int]("tell")
	unbound  = replay.Activity[int, int]("unbound") // no node has its code

	inSequence = replay.Orchestration[int, int]("in sequence") // the number of activities
	atOnce     = replay.Orchestration[int, int]("at once")     // the number of activities
	signaling  = replay.Orchestration[string, int]("marked")
	advancing  = replay.Orchestration[int, int]("advancing")
	collecting = replay.Orchestration[int, int]("collecting") // the number of events
	playing    = replay.Orchestration[pingPongInput, int]("playing")
	sleeping   = replay.Orchestration[int64, time.Duration]("sleeping")
	branching  = replay.Orchestration[treeInput, int]("branching")
	growing    = replay.Orchestration[int, int]("growing") // the number of activities
	listed     = replay.Orchestration[listedInput, int]("listed")
	holding    = replay.Orchestration[string, int]("holding") // waits for contents

	tenant  = replay.Attribute[string]("tenant")
	word    = replay.Event[int]("word")
	content = replay.Event[string]("content")
	advance = replay.Update[int, int]("advance") // by a number of activities
	grown   = replay.Query[int, int]("grown")
)

type pingPongInput struct {
	Other  string `json:"other"`
	Rounds int    `json:"rounds"`
}

type treeInput struct {
	Depth int `json:"depth"`
	Width int `json:"width"`
}

// code is shared by the definitions of one process.
type code struct {
	// By instance: a channel that receives the time at which the activity signal ran.
	waiters sync.Map // string → chan time.Time
	// Returns the client that activities use.
	client func() *cluster.Client
}

func (c *code) definitions() []replay.Definition {
	return []replay.Definition{
		work.Bind(func(_ context.Context, n int) (int, error) { return n + 1, nil }),
		signal.Bind(c.signal),
		sendWord.Bind(c.sendWord),
		inSequence.Bind(sequenceBody),
		atOnce.Bind(atOnceBody),
		signaling.Bind(func(ctx *replay.Context, id string) (int, error) { return signal.Call(ctx, id) }),
		advancing.Bind(advancingBody),
		collecting.Bind(collectingBody),
		playing.Bind(playingBody),
		sleeping.Bind(sleepingBody),
		branching.Bind(branchingBody),
		growing.Bind(growingBody),
		listed.Bind(listedBody),
		holding.Bind(holdingBody),
	}
}

func (c *code) signal(_ context.Context, id string) (int, error) {
	if waiter, ok := c.waiters.LoadAndDelete(id); ok {
		waiter.(chan time.Time) <- time.Now()
	}
	return 0, nil
}

func (c *code) sendWord(ctx context.Context, id string) (int, error) {
	attempt := replay.ActivityInfo(ctx)
	return 0, cluster.Send(ctx, c.client(), id, word, 1, cluster.RequestID(attempt.IdempotencyKey()))
}

func sequenceBody(ctx *replay.Context, steps int) (int, error) {
	n := 0
	for range steps {
		next, err := work.Call(ctx, n)
		if err != nil {
			return 0, err
		}
		n = next
	}
	return n, nil
}

func atOnceBody(ctx *replay.Context, activities int) (int, error) {
	futures := make([]*replay.Future[int], activities)
	for i := range futures {
		futures[i] = work.Start(ctx, i)
	}
	results, err := replay.All(ctx, futures...)
	return len(results), err
}

func advancingBody(ctx *replay.Context, _ int) (int, error) {
	if err := advance.Handle(ctx, nil, sequenceBody); err != nil {
		return 0, err
	}
	return word.Wait(ctx)
}

func collectingBody(ctx *replay.Context, events int) (int, error) {
	for range events {
		if _, err := word.Wait(ctx); err != nil {
			return 0, err
		}
	}
	return events, nil
}

func holdingBody(ctx *replay.Context, _ string) (int, error) {
	for {
		if _, err := content.Wait(ctx); err != nil {
			return 0, err
		}
	}
}

func playingBody(ctx *replay.Context, g pingPongInput) (int, error) {
	for range g.Rounds {
		if _, err := word.Wait(ctx); err != nil {
			return 0, err
		}
		if _, err := sendWord.Call(ctx, g.Other); err != nil {
			return 0, err
		}
	}
	return g.Rounds, nil
}

// sleepingBody returns the recorded lateness of its timer.
func sleepingBody(ctx *replay.Context, due int64) (time.Duration, error) {
	at := time.Unix(0, due)
	err := ctx.Sleep(at.Sub(ctx.Now()))
	return ctx.Now().Sub(at), err
}

func branchingBody(ctx *replay.Context, b treeInput) (int, error) {
	if b.Depth == 0 {
		return work.Call(ctx, 0)
	}
	children := make([]*replay.Future[int], b.Width)
	for i := range children {
		children[i] = branching.Start(ctx, treeInput{b.Depth - 1, b.Width})
	}
	leaves, err := replay.All(ctx, children...)
	sum := 0
	for _, n := range leaves {
		sum += n
	}
	return sum, err
}

// growthBatch is the number of concurrent activities of a growing instance.
const growthBatch = 100

func growingBody(ctx *replay.Context, activities int) (int, error) {
	done := 0
	if err := grown.Handle(ctx, func(int) (int, error) { return done, nil }); err != nil {
		return 0, err
	}
	for done < activities {
		n, err := atOnceBody(ctx, min(growthBatch, activities-done))
		if err != nil {
			return 0, err
		}
		done += n
	}
	return word.Wait(ctx)
}
