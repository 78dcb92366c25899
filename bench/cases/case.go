package cases

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tenuto-dev/tenuto/bench/measure"
	"github.com/tenuto-dev/tenuto/bench/yardstick"
)

// A Case is a load and what is measured of it.
type Case struct {
	Name        string
	Description string
	// How much is done, and how much of it at a time, unless an Env says
	// otherwise. What N counts is in the description.
	N, C int
	// Runs only where there is more than one node, or only where there is one.
	Several, Alone bool
	// Whether figures are compared with the yardsticks of a commit and of packed
	// records.
	Commit, Packed bool
	// Run measures once.
	Run func(ctx context.Context, e *Env) (*measure.Result, error)
}

// All returns the cases, in the order in which they are best read.
func All() []*Case {
	return []*Case{
		{Name: "hello3", Description: "orchestrations of three activities in sequence: N of them, C at a time, after some alone",
			N: 20_000, C: 1_000, Commit: true, Packed: true, Run: hello(3)},
		{Name: "hello5", Description: "orchestrations of five activities in sequence: N of them, C at a time, after some alone",
			N: 20_000, C: 1_000, Commit: true, Packed: true, Run: hello(5)},
		{Name: "fanout", Description: "activities at once in one instance, 100 to N of them; and in many instances, C at a time",
			N: 10_000, C: 100, Packed: true, Run: fanout},
		{Name: "sequence", Description: "one instance of N activities in sequence: a step when it is young and when it is old",
			N: 50_000, C: 1, Commit: true, Run: sequence},
		{Name: "events", Description: "N events into one instance, and into ten thousand, from C senders; two instances that play ping-pong",
			N: 50_000, C: 1_000, Commit: true, Packed: true, Run: events},
		{Name: "timers", Description: "N instances with a timer each, all due within one second: how late they are",
			N: 100_000, C: 1_000, Commit: true, Run: timers},
		{Name: "tree", Description: "N trees of child instances, 3/3/3 with an activity in each of the 27 leaves, C at a time",
			N: 250, C: 50, Packed: true, Run: tree},
		{Name: "start", Description: "N starts, one at a time: until it is acknowledged, and until its first activity runs",
			N: 500, C: 1, Commit: true, Run: start},
		{Name: "failover", Description: "the leader is killed N times while C callers start instances: how long none is acknowledged",
			N: 5, C: 16, Several: true, Run: failover},
		{Name: "restart", Description: "all nodes stop with N instances that wait, and start again: until one of them has made a step; the same with N timers that have come due meanwhile, until all have fired",
			N: 100_000, C: 1_000, Run: restart},
		{Name: "replay", Description: "histories of 10,000 events up to N, replayed: the turn alone, and the query that makes a node do it",
			N: 50_000, C: 1, Run: replays},
		{Name: "idle", Description: "instances that wait: memory for each, of N/10 that are resident and of N that are evicted",
			N: 1_000_000, C: 1_000, Alone: true, Run: idle},
		{Name: "quiet", Description: "nodes of which nobody asks anything, for N seconds: how often their goroutines wake up",
			N: 10, C: 1, Run: quiet},
		{Name: "mixed", Description: "N orchestrations of many kinds, C at a time: sequences, fan-outs, timers, children, events",
			N: 10_000, C: 500, Commit: true, Packed: true, Run: mixed},
	}
}

// Select returns the cases of these names, in the order of [All]; all of them if
// there are no names. An unknown name is an error.
func Select(names []string) ([]*Case, error) {
	all := All()
	if len(names) == 0 {
		return all, nil
	}
	var selected []*Case
	for _, c := range all {
		if slices.Contains(names, c.Name) {
			selected = append(selected, c)
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(c *Case) bool { return c.Name == name }) {
			return nil, fmt.Errorf("there is no case %q; there are %s", name, strings.Join(namesOf(all), ", "))
		}
	}
	return selected, nil
}

func namesOf(cases []*Case) []string {
	var names []string
	for _, c := range cases {
		names = append(names, c.Name)
	}
	return names
}

// Fits tells whether the case can run on such nodes.
func (c *Case) Fits(nodes Nodes) bool {
	return !(c.Several && nodes == OneNode || c.Alone && nodes != OneNode)
}

// How much the yardsticks do.
const (
	commitCount = 500
	packedCount = 2_000
	syncCount   = 500
)

// Subjects returns the cases as what [measure.Plan] measures, each with its
// yardsticks, in the environment e without its Dir and Progress. recordBytes is
// the size of the records of the yardsticks; see [RecordBytes]. effort, usually
// 1, is which part of their usual amount the yardsticks do.
func Subjects(cases []*Case, e Env, recordBytes int, effort float64) []*measure.Subject {
	part := func(n int) int { return max(1, int(float64(n)*effort)) }
	sync := yardstick.Sync(part(syncCount))
	commit := yardstick.Commit(e.Nodes.count(), recordBytes, part(commitCount))
	packed := yardstick.Packed(e.Nodes.count(), recordBytes, part(packedCount))
	var subjects []*measure.Subject
	for _, c := range cases {
		s := &measure.Subject{
			Name: c.Name, Description: c.Description,
			Run: func(ctx context.Context, dir string, progress func(string)) (*measure.Result, error) {
				own := e
				own.Dir, own.Progress = dir, progress
				return c.run(ctx, &own)
			},
		}
		if c.Commit {
			s.Yardsticks = append(s.Yardsticks, sync, commit)
		}
		if c.Packed {
			s.Yardsticks = append(s.Yardsticks, packed)
		}
		subjects = append(subjects, s)
	}
	return subjects
}

// run runs the case with its own amounts where the environment has none.
func (c *Case) run(ctx context.Context, e *Env) (*measure.Result, error) {
	if e.N == 0 {
		e.N = c.N
	}
	if e.C == 0 {
		e.C = c.C
	}
	return c.Run(ctx, e)
}
