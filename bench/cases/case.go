package cases

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tenuto-dev/tenuto/bench/baseline"
	"github.com/tenuto-dev/tenuto/bench/measure"
)

// A Case is a load and what is measured of it.
type Case struct {
	Name        string
	Description string
	// The default amount and concurrency. The description says what N counts.
	N, C int
	// Needs more than one node, or exactly one.
	MultiNode, SingleNode bool
	// Whether metrics are compared with the baselines Commit and Packed.
	Commit, Packed bool
	// Measures once.
	Run func(ctx context.Context, e *Env) (*measure.Result, error)
}

// All returns the cases in reading order.
func All() []*Case {
	return []*Case{
		{Name: "hello3", Description: "orchestrations of three activities in sequence: N of them, C at a time, after some alone",
			N: 20_000, C: 1_000, Commit: true, Packed: true, Run: hello(3)},
		{Name: "hello5", Description: "orchestrations of five activities in sequence: N of them, C at a time, after some alone",
			N: 20_000, C: 1_000, Commit: true, Packed: true, Run: hello(5)},
		{Name: "fanout", Description: "activities at once in one instance, 100 to N of them; and in many instances, C at a time",
			N: 10_000, C: 100, Packed: true, Run: fanout},
		{Name: "sequence", Description: "one instance of N activities in sequence: the cost of a step by its age",
			N: 50_000, C: 1, Commit: true, Run: sequence},
		{Name: "events", Description: "N events to one instance, and to ten thousand, from C senders; two instances that play ping-pong",
			N: 50_000, C: 1_000, Commit: true, Packed: true, Run: events},
		{Name: "timers", Description: "N instances with a timer each, all due within one second: how late they are",
			N: 100_000, C: 1_000, Commit: true, Run: timers},
		{Name: "tree", Description: "N trees of child instances, 3/3/3 with an activity in each of the 27 leaves, C at a time",
			N: 250, C: 50, Packed: true, Run: tree},
		{Name: "start", Description: "N starts, one at a time: until acknowledged, and until the first activity runs",
			N: 500, C: 1, Commit: true, Run: start},
		{Name: "failover", Description: "the leader is killed N times while C callers start instances: the longest time without an acknowledged start",
			N: 5, C: 16, MultiNode: true, Run: failover},
		{Name: "restart", Description: "all nodes restart with N waiting instances: until one of them has made a step; the same with N overdue timers: until all have fired",
			N: 100_000, C: 1_000, Run: restart},
		{Name: "replay", Description: "histories of 10,000 to N events, replayed: the turn alone, and a query of a cold instance",
			N: 50_000, C: 1, Run: replays},
		{Name: "idle", Description: "waiting instances: memory of each, N/10 resident and N evicted",
			N: 1_000_000, C: 1_000, SingleNode: true, Run: idle},
		{Name: "list", Description: "pages of N instances by each indexed field, each two and each order, and counts by state, while sequences run",
			N: 50_000, C: 1_000, SingleNode: true, Run: list},
		{Name: "dashboard", Description: "a dashboard of N instances: first bytes of its pages beside sequences, a long history, and what 100 open pages cost C sequences at a time",
			N: 50_000, C: 1_000, SingleNode: true, Run: dashboards},
		{Name: "quiet", Description: "nodes without load for N seconds: wake-ups of goroutines",
			N: 10, C: 1, Run: idleNodes},
		{Name: "workers", Description: "N workers without load: memory, traffic and processor time of each, with its end at the leader",
			N: 200, C: 1, SingleNode: true, Run: workers},
		{Name: "backup", Description: "backups of a state of N megabytes: rates beside those of the disk, sizes of incremental ones, and C sequences at a time with and without",
			N: 500, C: 1_000, SingleNode: true, Run: backups},
		{Name: "compare", Description: "comparisons of the replicas of N ended instances: processor time and bytes of a round, and N sequences, C at a time, with and without",
			N: 5_000, C: 1_000, MultiNode: true, Run: comparisons},
		{Name: "mixed", Description: "N orchestrations of many kinds, C at a time: sequences, fan-outs, timers, children, events",
			N: 10_000, C: 500, Commit: true, Packed: true, Run: mixed},
	}
}

// Select returns the named cases in the order of [All], or all without names. An unknown name
// is an error.
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
			return nil, fmt.Errorf("no case %q; the cases are %s", name, strings.Join(namesOf(all), ", "))
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

// Fits reports whether the case can run on the given nodes.
func (c *Case) Fits(nodes Nodes) bool {
	return !(c.MultiNode && nodes == OneNode || c.SingleNode && nodes != OneNode)
}

// The amounts of the baselines.
const (
	commitCount = 500
	packedCount = 2_000
	syncCount   = 500
)

// Subjects returns the cases as subjects of a [measure.Plan], each with its baselines. It sets
// Dir and Progress of e. recordBytes is the record size of the baselines; see [RecordBytes].
// effort scales the amounts of the baselines; the default is 1.
func Subjects(cases []*Case, e Env, recordBytes int, effort float64) []*measure.Subject {
	part := func(n int) int { return max(1, int(float64(n)*effort)) }
	sync := baseline.Sync(part(syncCount))
	commit := baseline.Commit(e.Nodes.count(), recordBytes, part(commitCount))
	packed := baseline.Packed(e.Nodes.count(), recordBytes, part(packedCount))
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
			s.Baselines = append(s.Baselines, sync, commit)
		}
		if c.Packed {
			s.Baselines = append(s.Baselines, packed)
		}
		subjects = append(subjects, s)
	}
	return subjects
}

// run runs the case, with its default amounts if the environment has none.
func (c *Case) run(ctx context.Context, e *Env) (*measure.Result, error) {
	if e.N == 0 {
		e.N = c.N
	}
	if e.C == 0 {
		e.C = c.C
	}
	return c.Run(ctx, e)
}
