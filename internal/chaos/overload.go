package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

// What is asked of a cluster that has more to do than it can.
const (
	goodputShare  = 0.9 // of its capacity, at twice that
	refusalLimit  = 50 * time.Millisecond
	recoverLimit  = 10 * time.Second
	memoryGrowth  = 1.2 // the median of the last third of the time, against that of the second
	latencyFactor = 2   // what counts as recovered
	latencySlack  = 20 * time.Millisecond
	recoverRun    = 5 // seconds, one after the other
)

// How the phases are cut.
const (
	capacityTime   = 15 * time.Second
	capacityWarmUp = 10 * time.Second
	capacityCalls  = 256 // callers on each node
	normalTime     = 20 * time.Second
	surgeTime      = 15 * time.Second
	surgeRounds    = 9
	memoryEvery    = time.Second
)

// allThatCanBeDone is a load of which more would not help.
var allThatCanBeDone = host.Pressure{Callers: capacityCalls, Insist: true}

// An overload is a measurement of what a fleet does at its capacity and beyond it. The
// load is made in the nodes' processes, as by applications that embed them, and every
// caller waits for the end of what he starts.
type overload struct {
	fleet *fleet
	out   io.Writer
	// What was not as it should be.
	missed []string
}

// measureOverload measures a fleet without faults, prints what it finds, and returns an
// error if the goals are not met. steady is how long it is loaded with four fifths of
// its capacity, to see whether the leader stays.
func measureOverload(ctx context.Context, dir, kind string, groups int, steady time.Duration, out io.Writer) (err error) {
	network, err := newNetwork(kind, out)
	if err != nil {
		return err
	}
	fleet, err := newFleet(dir, evidence.NewLog(groups), network, nil, fleetSize, host.Config{Groups: groups})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fleet.close()) }()
	if err := fleet.start(ctx); err != nil {
		return err
	}
	if _, err := fleet.awaitLeaders(ctx); err != nil {
		return err
	}
	o := &overload{fleet: fleet, out: out}
	fmt.Fprintf(out, "%d processors for three nodes and their load; an orchestration has %d activities\n", runtime.NumCPU(), host.BriefLength)
	if _, err := o.press(ctx, "warm", allThatCanBeDone, capacityWarmUp); err != nil {
		return err
	}
	capacity, err := o.capacity(ctx, "capacity")
	if err != nil {
		return err
	}
	if steady > 0 {
		if err := o.steady(ctx, capacity, steady); err != nil {
			return err
		}
	}
	if err := o.beyond(ctx, capacity); err != nil {
		return err
	}
	if len(o.missed) > 0 {
		return fmt.Errorf("goals that are not met: %s", strings.Join(o.missed, "; "))
	}
	fmt.Fprintln(out, "all goals are met")
	return nil
}

// A phase is what came of a load.
type phase struct {
	calls    []host.Pressed
	refused  map[string]float64 // by those who refused: reasons of leaders, or callers' nodes
	memory   [][]int            // bytes, of each node, once in memoryEvery
	reigns   int                // begun meanwhile
	duration time.Duration
	runQueue host.Delays // the longest of the nodes'
	// How many processors the nodes have used, and others besides them.
	fleet, others float64
}

// goodput returns how many orchestrations a second have ended in time for their callers.
func (p *phase) goodput() float64 {
	ended := 0
	for _, call := range p.calls {
		if call.Trouble == "" && call.At+call.Took <= p.duration {
			ended++
		}
	}
	return float64(ended) / p.duration.Seconds()
}

// capacity returns how many orchestrations a second can be done.
func (o *overload) capacity(ctx context.Context, name string) (float64, error) {
	p, err := o.press(ctx, name, allThatCanBeDone, capacityTime)
	if err != nil {
		return 0, err
	}
	o.tell(fmt.Sprintf("capacity, with %d callers", fleetSize*capacityCalls), p)
	return p.goodput(), nil
}

// steady loads the fleet with four fifths of its capacity.
func (o *overload) steady(ctx context.Context, capacity float64, d time.Duration) error {
	p, err := o.press(ctx, "steady", host.Pressure{PerSecond: 0.8 * capacity, Insist: true}, d)
	if err != nil {
		return err
	}
	o.tell(fmt.Sprintf("at 80%% for %v", d), p)
	o.goal(p.reigns == 0, "no change of the leader at 80%%: %d", p.reigns)
	return nil
}

// beyond loads the fleet with half of its capacity, with twice that, and with half again.
func (o *overload) beyond(ctx context.Context, capacity float64) error {
	half := host.Pressure{PerSecond: capacity / 2, Insist: true}
	before, err := o.press(ctx, "before", half, normalTime)
	if err != nil {
		return err
	}
	o.tell("at half", before)
	if err := o.twice(ctx); err != nil {
		return err
	}
	after, err := o.press(ctx, "after", half, normalTime)
	if err != nil {
		return err
	}
	o.tell("at half again", after)
	o.judgeRecovery(before.calls, after.calls)
	return nil
}

// judgeRecovery holds the calls of the same load before and after twice the capacity
// against each other.
func (o *overload) judgeRecovery(before, after []host.Pressed) {
	limit := latencyFactor*quantile(durations(before, ""), 0.99) + latencySlack
	slowBefore := len(slices.DeleteFunc(secondsOf(before, limit), func(good bool) bool { return good }))
	recovered, slow, ok := recoveredAfter(secondsOf(after, limit))
	o.goal(ok && recovered <= recoverLimit, "as before within %v: %v (seconds that are slow: %d of all before, %d since then)",
		recoverLimit, recovered, slowBefore, slow)
}

// A surge is what came of one kind of load of twice the capacity, round by round.
type surge struct {
	insist bool // callers have their calls repeated
	rounds []*phase
	shares []float64 // of the capacity, of each round
}

// name says who makes the load.
func (s *surge) name() string {
	if s.insist {
		return "at twice, callers repeat what is refused"
	}
	return "at twice, callers take no for an answer"
}

// twice loads the fleet with twice its capacity: with callers that take the first refusal
// for an answer, and with such that have their calls repeated. The machine's speed is not
// the same from minute to minute, nor is what the stores have to compact; so this is done
// in rounds, the capacity is measured before and after each, and the mean of both is what
// counts.
func (o *overload) twice(ctx context.Context) error {
	surges, memory := []*surge{{insist: true}, {}}, make([][]int, fleetSize)
	before, err := o.capacity(ctx, "capacity-twice")
	if err != nil {
		return err
	}
	for round := range surgeRounds {
		for _, s := range surges {
			load := host.Pressure{PerSecond: 2 * before, Insist: s.insist}
			p, err := o.press(ctx, fmt.Sprintf("over-%v-%d", s.insist, round), load, surgeTime)
			if err != nil {
				return err
			}
			o.tell(s.name(), p)
			for i := range p.memory {
				memory[i] = append(memory[i], p.memory[i]...)
			}
			after, err := o.capacity(ctx, fmt.Sprintf("capacity-%v-%d", s.insist, round))
			if err != nil {
				return err
			}
			s.rounds, s.shares = append(s.rounds, p), append(s.shares, 2*p.goodput()/(before+after))
			before = after
		}
	}
	for _, s := range surges {
		o.judgeSurge(s)
	}
	o.judgeMemory(memory)
	return nil
}

// judgeSurge holds all rounds of twice the capacity against the goals.
func (o *overload) judgeSurge(s *surge) {
	shares := slices.Sorted(slices.Values(s.shares))
	middle := shares[len(shares)/2]
	fmt.Fprintf(o.out, "%s, %d rounds\n", s.name(), len(shares))
	o.goal(middle >= goodputShare, "at least %.0f%% of the capacity at twice that: %.0f%% (median; %.0f%% to %.0f%%)",
		100*goodputShare, 100*middle, 100*shares[0], 100*shares[len(shares)-1])
	if s.insist {
		return
	}
	var refusals []time.Duration
	for _, p := range s.rounds {
		refusals = append(refusals, durations(p.calls, host.Busy)...)
	}
	slow := quantile(refusals, 0.99)
	o.goal(len(refusals) > 0 && slow <= refusalLimit, "some are refused, and within %v: %d, %v at the 99th percentile", refusalLimit, len(refusals), slow)
}

// judgeMemory holds what the nodes have taken together in the rounds of twice the
// capacity, in their order, against the goal. (Of one alone it says less: a leader has
// more, and another may have come to lead.)
func (o *overload) judgeMemory(nodes [][]int) {
	var all []int
	for second := range slices.MinFunc(nodes, func(a, b []int) int { return len(a) - len(b) }) {
		sum := 0
		for _, memory := range nodes {
			sum += memory[second]
		}
		all = append(all, sum)
	}
	if len(all)/3 == 0 {
		return
	}
	before, after := memoryTrend(all)
	o.goal(float64(after) <= memoryGrowth*float64(before), "the nodes' memory is flat: %d MB, later %d MB (medians), %d MB at most",
		before>>20, after>>20, slices.Max(all)>>20)
}

// memoryTrend returns what was taken in the second third of the time, and in
// the last. What it takes goes up and down with the garbage collector, by half and more, so
// medians are what shows whether it grows.
func memoryTrend(samples []int) (before, after int) {
	third := len(samples) / 3
	median := func(part []int) int { return slices.Sorted(slices.Values(part))[len(part)/2] }
	return median(samples[third : 2*third]), median(samples[2*third:])
}

// tell prints what came of a load.
func (o *overload) tell(name string, p *phase) {
	fmt.Fprintf(o.out, "%s: %.0f a second end in time; %d changes of the leader\n", name, p.goodput(), p.reigns)
	var accepted []time.Duration
	troubles := make(map[string]int)
	for _, call := range p.calls {
		if call.Accepted > 0 {
			accepted = append(accepted, call.Accepted)
		}
		troubles[call.Trouble]++
	}
	fmt.Fprintf(o.out, "  accepted: %s\n  ended:    %s\n  refused:  %s\n", took(accepted), took(durations(p.calls, "")), took(durations(p.calls, host.Busy)))
	delete(troubles, "")
	delete(troubles, host.Busy)
	for _, trouble := range slices.Sorted(maps.Keys(troubles)) {
		fmt.Fprintf(o.out, "  %d: %.200s\n", troubles[trouble], trouble)
	}
	for _, reason := range slices.Sorted(maps.Keys(p.refused)) {
		fmt.Fprintf(o.out, "  refusals, %s: %.0f\n", reason, p.refused[reason])
	}
	fmt.Fprintf(o.out, "  run queues: p50 %v p99 %v max %v; processors: %.1f for the nodes, %.1f for others, of %d\n",
		p.runQueue.P50, p.runQueue.P99, p.runQueue.Max, p.fleet, p.others, runtime.NumCPU())
	if p.others > othersMax {
		fmt.Fprintln(o.out, "  the machine has had other things to do: these figures are not the cluster's alone")
	}
	fmt.Fprint(o.out, "  memory:")
	for i, memory := range p.memory {
		if len(memory) > 0 {
			fmt.Fprintf(o.out, " n%d %d to %d MB", i+1, memory[0]>>20, memory[len(memory)-1]>>20)
		}
	}
	fmt.Fprintln(o.out)
}

// othersMax is how many processors others than the nodes, the harness among them, may
// use without a word.
const othersMax = 0.2

func (o *overload) goal(met bool, format string, arguments ...any) {
	text := fmt.Sprintf(format, arguments...)
	if met {
		fmt.Fprintln(o.out, "  met:     ", text)
		return
	}
	fmt.Fprintln(o.out, "  NOT MET: ", text)
	o.missed = append(o.missed, text)
}

// press has every node put a third of a load on itself.
func (o *overload) press(ctx context.Context, name string, load host.Pressure, d time.Duration) (*phase, error) {
	load.For, load.PerSecond = d, load.PerSecond/fleetSize
	p := &phase{duration: d, memory: make([][]int, fleetSize), refused: make(map[string]float64)}
	reigns, err := o.reigns()
	if err != nil {
		return nil, err
	}
	if err := o.countRefusals(ctx, p, -1); err != nil {
		return nil, err
	}
	begin, busy := time.Now(), processorsBusy()
	burdens := make([]host.Burden, fleetSize)
	errs := make([]error, fleetSize)
	var pressing sync.WaitGroup
	for i, node := range o.fleet.nodes {
		load := load // each its own
		load.Prefix = fmt.Sprintf("%s-%s", name, node.id)
		pressing.Go(func() { errs[i] = o.fleet.ask(ctx, node, host.PressPath, load, burdens[i].Read) })
	}
	o.watchMemory(ctx, p)
	pressing.Wait()
	lasted := time.Since(begin).Seconds()
	p.others = (processorsBusy() - busy).Seconds() / lasted
	for i, burden := range burdens {
		if errs[i] != nil {
			return nil, errs[i]
		}
		p.add(burden, lasted)
	}
	if err := o.countRefusals(ctx, p, 1); err != nil {
		return nil, err
	}
	began, err := o.reigns()
	p.reigns = began - reigns
	return p, err
}

// add adds what a load was to one node, which has lasted for some seconds.
func (p *phase) add(burden host.Burden, seconds float64) {
	for _, lot := range burden.Calls {
		p.calls = append(p.calls, lot...)
	}
	used := burden.Processors.Seconds() / seconds
	p.fleet, p.others = p.fleet+used, max(p.others-used, 0)
	p.runQueue.P50 = max(p.runQueue.P50, burden.RunQueue.P50)
	p.runQueue.P99 = max(p.runQueue.P99, burden.RunQueue.P99)
	p.runQueue.Max = max(p.runQueue.Max, burden.RunQueue.Max)
}

// processorsBusy returns for how long processors of this machine have worked for
// whomever. Linux only.
func processorsBusy() time.Duration {
	content, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(content), "\n")
	busy := time.Duration(0)
	for i, field := range strings.Fields(line) {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil || i == idleField || i == idleField+1 || i > stealField {
			continue // the name; idle, and idle for the disk; what was counted already
		}
		busy += time.Duration(ticks) * (time.Second / ticksPerSecond)
	}
	return busy
}

// The layout of /proc/stat.
const (
	idleField      = 4
	stealField     = 8
	ticksPerSecond = 100
)

// watchMemory notes what the nodes' processes take, until the phase is over.
func (o *overload) watchMemory(ctx context.Context, p *phase) {
	ctx, cancel := context.WithTimeout(ctx, p.duration)
	defer cancel()
	for ctx.Err() == nil {
		for i, node := range o.fleet.nodes {
			if bytes, err := residentBytes(node.pid()); err == nil {
				p.memory[i] = append(p.memory[i], bytes)
			}
		}
		rest(ctx, memoryEvery)
	}
}

// residentBytes returns how much memory a process has. Linux only.
func residentBytes(pid int) (int, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	var size, resident int
	_, err = fmt.Sscan(string(content), &size, &resident)
	return resident * os.Getpagesize(), err
}

// countRefusals adds the nodes' counts of refusals to a phase, sign times.
func (o *overload) countRefusals(ctx context.Context, p *phase, sign float64) error {
	for _, node := range o.fleet.nodes {
		figures, err := o.figures(ctx, node)
		if err != nil {
			return err
		}
		for _, bound := range []string{"instance", "window", "delay"} {
			n, err := sumOf(strings.NewReader(figures), "tenuto_inbox_rejections_total", bound)
			if err != nil {
				return err
			}
			p.refused["by the leader, bound "+bound] += sign * n
		}
		n, err := sumOf(strings.NewReader(figures), "tenuto_starts_withheld_total")
		if err != nil {
			return err
		}
		p.refused["by the caller's node"] += sign * n
	}
	return nil
}

// figures returns those of a node.
func (o *overload) figures(ctx context.Context, node *process) (string, error) {
	address, _ := node.door()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+host.FiguresPath, nil)
	if err != nil {
		return "", err
	}
	response, err := o.fleet.http.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return string(content), err
}

// sumOf adds up the figures of a name that have some values of attributes.
func sumOf(figures io.Reader, name string, values ...string) (float64, error) {
	sum := 0.0
	lines := bufio.NewScanner(figures)
	lines.Buffer(nil, lineBytesMax)
	for lines.Scan() {
		line := lines.Text()
		missing := func(value string) bool { return !strings.Contains(line, `"`+value+`"`) }
		if !strings.HasPrefix(line, name+"{") || slices.ContainsFunc(values, missing) {
			continue
		}
		n, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, lines.Err()
}

// reigns counts those that the logs tell of.
func (o *overload) reigns() (int, error) {
	n := 0
	for _, node := range o.fleet.nodes {
		if err := eachLine(node.stderr.Name(), func(line string) {
			if _, ok := reignIn(line); ok {
				n++
			}
		}); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// durations returns how long the calls took that met this trouble, or none.
func durations(calls []host.Pressed, trouble string) (all []time.Duration) {
	for _, call := range calls {
		if call.Trouble == trouble {
			all = append(all, call.Took)
		}
	}
	return all
}

// took describes them.
func took(all []time.Duration) string {
	return fmt.Sprintf("%d, p50 %v p99 %v max %v", len(all), quantile(all, 0.5), quantile(all, 0.99), quantile(all, 1))
}

// secondsOf returns for each second whether all but one in a hundred of the calls that
// began in it ended as they should, and took no longer than a limit.
func secondsOf(calls []host.Pressed, limit time.Duration) (good []bool) {
	var seconds [][]host.Pressed
	for _, call := range calls {
		second := int(call.At / time.Second)
		for second >= len(seconds) {
			seconds = append(seconds, nil)
		}
		seconds[second] = append(seconds[second], call)
	}
	for _, all := range seconds {
		ended := durations(all, "")
		good = append(good, len(ended) >= len(all)*99/100 && quantile(ended, 0.99) <= limit)
	}
	return good
}

// recoveredAfter returns the first second with which recoverRun good ones begin, and how
// many behind them are not good: of those there are some without an overload, too.
func recoveredAfter(seconds []bool) (since time.Duration, slow int, ok bool) {
	run := 0
	for second, good := range seconds {
		switch {
		case run == recoverRun && !good:
			slow++
		case run == recoverRun:
		case good:
			run++
			since = time.Duration(second+1-run) * time.Second
		default:
			run = 0
		}
	}
	return since, slow, run == recoverRun
}
