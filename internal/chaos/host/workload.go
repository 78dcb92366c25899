package host

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/replay"
)

// The names of the orchestrations.
const (
	Chain    = "chaos.chain"
	Fan      = "chaos.fan"
	Cycle    = "chaos.cycle"
	Tree     = "chaos.tree"
	Register = "chaos.register"
	Relay    = "chaos.relay"
	Tally    = "chaos.tally"
)

// Number is the event that a cycle and a register take, and that ends a tally. Add is the update of
// a tally.
const (
	Number = "chaos.number"
	Add    = "chaos.add"
)

// The sizes of the workloads.
const (
	ChainLength = 5
	FanWidth    = 50
	TreeWidth   = 2
	RelayLegs   = 3
)

// A ChainInput is the input of a chain: ChainLength activities, one after the other, each on the
// result of the one before.
type ChainInput struct {
	Blob  string // returned unchanged
	Value int
	Pause time.Duration
}

// A ChainOutput is the output of a chain. Its value is the input's plus ChainLength.
type ChainOutput struct {
	Blob  string
	Value int
}

// A FanInput is the input of FanWidth concurrent activities, the i-th on Value + i. The output is
// the sum of the results, each of which is one more than the activity's input.
type FanInput struct {
	Value int
	Pause time.Duration
}

// A CycleInput is the input of an instance that continues as new Rounds times. Each round sets a
// timer between two activities and takes PerRound events. The output is all events taken, in order.
type CycleInput struct {
	Round, Rounds, PerRound int
	Delay                   time.Duration
	Got                     []string
}

// A TreeInput is the input of a tree of children, Depth levels deep. The output is the sum over the
// leaves of Value + 1.
type TreeInput struct {
	Depth, Value int
}

// A RelayInput is the input of one of RelayLegs instances, each of which starts the next one and
// completes. The output is Value + 1, and so is the Value of the next instance.
type RelayInput struct {
	First      string // the ID of the first instance
	Leg, Value int
}

// LegID returns the ID of an instance of a relay, counted from 0.
func LegID(first string, leg int) string {
	if leg == 0 {
		return first
	}
	return fmt.Sprintf("%s.%d", first, leg)
}

var (
	work     = replay.Activity[evidence.Task, evidence.TaskResult]("chaos.work")
	chain    = replay.Orchestration[ChainInput, ChainOutput](Chain)
	fan      = replay.Orchestration[FanInput, int](Fan)
	cycle    = replay.Orchestration[CycleInput, []string](Cycle)
	tree     = replay.Orchestration[TreeInput, int](Tree)
	register = replay.Orchestration[json.RawMessage, json.RawMessage](Register)
	relay    = replay.Orchestration[RelayInput, int](Relay)
	tally    = replay.Orchestration[int, int](Tally)
	number   = replay.Event[string](Number)
	add      = replay.Update[int, int](Add)
)

func runChain(ctx *replay.Context, in ChainInput) (ChainOutput, error) {
	for i := range ChainLength {
		done, err := work.Call(ctx, evidence.Task{Label: "link", Value: in.Value, Pause: in.Pause})
		if err != nil {
			return ChainOutput{}, err
		}
		in.Value = done.Value
		if err := replay.SetStatus(ctx, i); err != nil {
			return ChainOutput{}, err
		}
	}
	return ChainOutput{Blob: in.Blob, Value: in.Value}, nil
}

func runFan(ctx *replay.Context, in FanInput) (int, error) {
	var futures []*replay.Future[evidence.TaskResult]
	for i := range FanWidth {
		futures = append(futures, work.Start(ctx, evidence.Task{Label: "blade", Value: in.Value + i, Pause: in.Pause}))
	}
	all, err := replay.All(ctx, futures...)
	sum := 0
	for _, done := range all {
		sum += done.Value
	}
	return sum, err
}

func runCycle(ctx *replay.Context, in CycleInput) ([]string, error) {
	before, err := work.Call(ctx, evidence.Task{Label: "before", Value: in.Round})
	if err != nil {
		return nil, err
	}
	if err := ctx.Sleep(in.Delay); err != nil {
		return nil, err
	}
	after := evidence.Task{Label: "after", Value: in.Round, After: before.Nonce, Delay: in.Delay}
	if _, err := work.Call(ctx, after); err != nil {
		return nil, err
	}
	for range in.PerRound {
		got, err := number.Wait(ctx)
		if err != nil {
			return nil, err
		}
		in.Got = append(in.Got, got)
	}
	if in.Round++; in.Round == in.Rounds {
		return in.Got, nil
	}
	return nil, cycle.ContinueAsNew(ctx, in)
}

func runTree(ctx *replay.Context, in TreeInput) (int, error) {
	if in.Depth == 0 {
		done, err := work.Call(ctx, evidence.Task{Label: "leaf", Value: in.Value})
		return done.Value, err
	}
	var children []*replay.Future[int]
	for range TreeWidth {
		children = append(children, tree.Start(ctx, TreeInput{Depth: in.Depth - 1, Value: in.Value}))
	}
	all, err := replay.All(ctx, children...)
	sum := 0
	for _, value := range all {
		sum += value
	}
	return sum, err
}

// runRegister takes events until the instance is terminated.
func runRegister(ctx *replay.Context, _ json.RawMessage) (json.RawMessage, error) {
	for {
		if _, err := number.Wait(ctx); err != nil {
			return nil, err
		}
	}
}

func runRelay(ctx *replay.Context, in RelayInput) (int, error) {
	done, err := work.Call(ctx, evidence.Task{Label: "leg", Value: in.Value})
	if err != nil {
		return 0, err
	}
	if in.Leg++; in.Leg == RelayLegs {
		return done.Value, nil
	}
	in.Value = done.Value
	return done.Value, relay.Chain(ctx, in, replay.ChildID(LegID(in.First, in.Leg)))
}

// runTally adds up updates until an event arrives. Each update returns the sum.
func runTally(ctx *replay.Context, sum int) (int, error) {
	err := add.Handle(ctx, nil, func(_ *replay.Context, n int) (int, error) {
		sum += n
		return sum, nil
	})
	if err == nil {
		_, err = number.Wait(ctx)
	}
	return sum, err
}

// Orchestrations returns the orchestrations of the workloads, without activities. Replaying a
// history needs no more.
func Orchestrations() []replay.Definition {
	return []replay.Definition{
		chain.Bind(runChain), fan.Bind(runFan), cycle.Bind(runCycle), tree.Bind(runTree), register.Bind(runRegister),
		relay.Bind(runRelay), tally.Bind(runTally), entity.Bind(runEntity), approval.Bind(runApproval), blocked.Bind(runBlocked),
		brief.Bind(runBrief), open.Bind(runOpen), sender.Bind(runSender), receiver.Bind(runReceiver, replay.Receives(number)),
	}
}
