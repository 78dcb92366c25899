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

// The goals of a cluster under overload.
const (
	goodputShare  = 0.9 // of the capacity, under twice the load
	rejectionGoal = 50 * time.Millisecond
	recoveryGoal  = 10 * time.Second
	memoryGrowth  = 1.2 // the median of the last third of the samples, relative to that of the second third
	latencyFactor = 2   // the limit of a recovered latency
	latencySlack  = 20 * time.Millisecond
	recoverRun    = 5 // consecutive seconds
)

// The lengths of the phases.
const (
	capacityTime   = 15 * time.Second
	capacityWarmUp = 10 * time.Second
	capacityCalls  = 256 // callers on each node
	normalTime     = 20 * time.Second
	surgeTime      = 15 * time.Second
	surgeRounds    = 9
	memoryEvery    = time.Second
)

// saturatingLoad is a load that keeps the cluster at its capacity.
var saturatingLoad = host.Load{Callers: capacityCalls, RetryBusy: true}

// An overload measures a fleet at its capacity and beyond. The nodes' own processes make the load,
// like applications that embed a node, and every caller waits for the instance that it started to
// end.
type overload struct {
	fleet *fleet
	out   io.Writer
	// The goals that were missed.
	missedGoals []string
}

// measureOverload measures a fleet without faults, prints the results, and returns an error if a
// goal is missed. steady is how long the fleet runs at 80% of its capacity, during which the leader
// must not change.
func measureOverload(ctx context.Context, dir, kind string, partitions int, steady time.Duration, out io.Writer) (err error) {
	network, err := newNetwork(kind, out)
	if err != nil {
		return err
	}
	fleet, err := newFleet(dir, evidence.NewLog(partitions), network, nil, fleetSize, host.Config{Partitions: partitions})
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
	if _, err := o.runLoad(ctx, "warm", saturatingLoad, capacityWarmUp); err != nil {
		return err
	}
	capacity, err := o.measureCapacity(ctx, "capacity")
	if err != nil {
		return err
	}
	if steady > 0 {
		if err := o.runSteady(ctx, capacity, steady); err != nil {
			return err
		}
	}
	if err := o.runBeyondCapacity(ctx, capacity); err != nil {
		return err
	}
	if len(o.missedGoals) > 0 {
		return fmt.Errorf("goals missed: %s", strings.Join(o.missedGoals, "; "))
	}
	fmt.Fprintln(out, "all goals met")
	return nil
}

// A phase is the result of one load.
type phase struct {
	calls       []host.LoadCall
	rejected    map[string]float64 // by reason of the leader, or by the callers' nodes
	memory      [][]int            // bytes of each node, sampled every memoryEvery
	leaderships int                // leaderships that began in the phase
	duration    time.Duration
	runQueue    host.LatencyQuantiles // the largest of all nodes
	// The average number of processors that the nodes used, and that others used.
	fleetCPU, otherCPU float64
}

// goodput returns how many orchestrations a second ended in time for their callers.
func (p *phase) goodput() float64 {
	ended := 0
	for _, call := range p.calls {
		if call.Failure == "" && call.At+call.Took <= p.duration {
			ended++
		}
	}
	return float64(ended) / p.duration.Seconds()
}

// measureCapacity returns how many orchestrations a second end under saturating load.
func (o *overload) measureCapacity(ctx context.Context, name string) (float64, error) {
	p, err := o.runLoad(ctx, name, saturatingLoad, capacityTime)
	if err != nil {
		return 0, err
	}
	o.report(fmt.Sprintf("capacity, with %d callers", fleetSize*capacityCalls), p)
	return p.goodput(), nil
}

// runSteady runs the fleet at 80% of its capacity.
func (o *overload) runSteady(ctx context.Context, capacity float64, d time.Duration) error {
	p, err := o.runLoad(ctx, "steady", host.Load{PerSecond: 0.8 * capacity, RetryBusy: true}, d)
	if err != nil {
		return err
	}
	o.report(fmt.Sprintf("at 80%% for %v", d), p)
	o.checkGoal(p.leaderships == 0, "leader changes at 80%% of the capacity: %d, want 0", p.leaderships)
	return nil
}

// runBeyondCapacity runs the fleet at half its capacity, at twice its capacity, and at half again.
func (o *overload) runBeyondCapacity(ctx context.Context, capacity float64) error {
	half := host.Load{PerSecond: capacity / 2, RetryBusy: true}
	before, err := o.runLoad(ctx, "before", half, normalTime)
	if err != nil {
		return err
	}
	o.report("at half", before)
	if err := o.runTwiceCapacity(ctx); err != nil {
		return err
	}
	after, err := o.runLoad(ctx, "after", half, normalTime)
	if err != nil {
		return err
	}
	o.report("at half again", after)
	o.checkRecovery(before.calls, after.calls)
	return nil
}

// checkRecovery compares the calls of the same load before and after twice the capacity.
func (o *overload) checkRecovery(before, after []host.LoadCall) {
	limit := latencyFactor*quantile(durations(before, ""), 0.99) + latencySlack
	slowBefore := len(slices.DeleteFunc(goodSeconds(before, limit), func(good bool) bool { return good }))
	recovered, slow, ok := recoveredAfter(goodSeconds(after, limit))
	o.checkGoal(ok && recovered <= recoveryGoal, "recovered within %v: %v (slow seconds: %d before, %d since then)",
		recoveryGoal, recovered, slowBefore, slow)
}

// A surge is the result of one kind of load at twice the capacity, round by round.
type surge struct {
	retryBusy bool // whether callers retry rejected starts
	rounds    []*phase
	shares    []float64 // goodput of each round, relative to the capacity
}

// name describes the load.
func (s *surge) name() string {
	if s.retryBusy {
		return "at twice the capacity, callers retry rejected starts"
	}
	return "at twice the capacity, callers do not retry"
}

// runTwiceCapacity runs the fleet at twice its capacity: with callers that do not retry, and with
// callers that do. The machine's speed and the stores' compactions vary from minute to minute. It
// therefore runs in rounds and compares each with the mean of the capacity measured before and
// after it.
func (o *overload) runTwiceCapacity(ctx context.Context) error {
	surges, memory := []*surge{{retryBusy: true}, {}}, make([][]int, fleetSize)
	before, err := o.measureCapacity(ctx, "capacity-twice")
	if err != nil {
		return err
	}
	for round := range surgeRounds {
		for _, s := range surges {
			load := host.Load{PerSecond: 2 * before, RetryBusy: s.retryBusy}
			p, err := o.runLoad(ctx, fmt.Sprintf("over-%v-%d", s.retryBusy, round), load, surgeTime)
			if err != nil {
				return err
			}
			o.report(s.name(), p)
			for i := range p.memory {
				memory[i] = append(memory[i], p.memory[i]...)
			}
			after, err := o.measureCapacity(ctx, fmt.Sprintf("capacity-%v-%d", s.retryBusy, round))
			if err != nil {
				return err
			}
			s.rounds, s.shares = append(s.rounds, p), append(s.shares, 2*p.goodput()/(before+after))
			before = after
		}
	}
	for _, s := range surges {
		o.checkSurge(s)
	}
	o.checkMemory(memory)
	return nil
}

// checkSurge checks all rounds of one kind of load against the goals.
func (o *overload) checkSurge(s *surge) {
	shares := slices.Sorted(slices.Values(s.shares))
	median := shares[len(shares)/2]
	fmt.Fprintf(o.out, "%s, %d rounds\n", s.name(), len(shares))
	o.checkGoal(median >= goodputShare, "goodput at least %.0f%% of the capacity: %.0f%% (median; %.0f%% to %.0f%%)",
		100*goodputShare, 100*median, 100*shares[0], 100*shares[len(shares)-1])
	if s.retryBusy {
		return
	}
	var rejections []time.Duration
	for _, p := range s.rounds {
		rejections = append(rejections, durations(p.calls, host.Busy)...)
	}
	slow := quantile(rejections, 0.99)
	o.checkGoal(len(rejections) > 0 && slow <= rejectionGoal, "starts are rejected within %v: %d, %v at the 99th percentile", rejectionGoal, len(rejections), slow)
}

// checkMemory checks the memory of all nodes together, over the rounds at twice the capacity in
// order. The memory of one node says less: a leader uses more, and the leader may change.
func (o *overload) checkMemory(nodes [][]int) {
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
	o.checkGoal(float64(after) <= memoryGrowth*float64(before), "the nodes' memory is flat: %d MB, later %d MB (medians), %d MB (max)",
		before>>20, after>>20, slices.Max(all)>>20)
}

// memoryTrend returns the medians of the second and the last third of the samples. Medians, because
// garbage collection makes single samples vary by more than half.
func memoryTrend(samples []int) (before, after int) {
	third := len(samples) / 3
	median := func(part []int) int { return slices.Sorted(slices.Values(part))[len(part)/2] }
	return median(samples[third : 2*third]), median(samples[2*third:])
}

// report prints the result of a load.
func (o *overload) report(name string, p *phase) {
	fmt.Fprintf(o.out, "%s: %.0f orchestrations a second end in time; %d leader changes\n", name, p.goodput(), p.leaderships)
	var accepted []time.Duration
	failures := make(map[string]int)
	for _, call := range p.calls {
		if call.Accepted > 0 {
			accepted = append(accepted, call.Accepted)
		}
		failures[call.Failure]++
	}
	fmt.Fprintf(o.out, "  accepted: %s\n  ended:    %s\n  rejected:  %s\n", describeDurations(accepted), describeDurations(durations(p.calls, "")), describeDurations(durations(p.calls, host.Busy)))
	delete(failures, "")
	delete(failures, host.Busy)
	for _, failure := range slices.Sorted(maps.Keys(failures)) {
		fmt.Fprintf(o.out, "  %d: %.200s\n", failures[failure], failure)
	}
	for _, reason := range slices.Sorted(maps.Keys(p.rejected)) {
		fmt.Fprintf(o.out, "  rejections, %s: %.0f\n", reason, p.rejected[reason])
	}
	fmt.Fprintf(o.out, "  run queues: p50 %v p99 %v max %v; processors: %.1f for the nodes, %.1f for others, of %d\n",
		p.runQueue.P50, p.runQueue.P99, p.runQueue.Max, p.fleetCPU, p.otherCPU, runtime.NumCPU())
	if p.otherCPU > otherCPUMax {
		fmt.Fprintln(o.out, "  other processes used the machine: these figures are not the cluster's alone")
	}
	fmt.Fprint(o.out, "  memory:")
	for i, memory := range p.memory {
		if len(memory) > 0 {
			fmt.Fprintf(o.out, " n%d %d to %d MB", i+1, memory[0]>>20, memory[len(memory)-1]>>20)
		}
	}
	fmt.Fprintln(o.out)
}

// otherCPUMax is how many processors other processes, including the harness, may use before the
// report warns.
const otherCPUMax = 0.2

func (o *overload) checkGoal(met bool, format string, arguments ...any) {
	text := fmt.Sprintf(format, arguments...)
	if met {
		fmt.Fprintln(o.out, "  met:     ", text)
		return
	}
	fmt.Fprintln(o.out, "  NOT MET: ", text)
	o.missedGoals = append(o.missedGoals, text)
}

// runLoad makes every node put an equal share of a load on itself.
func (o *overload) runLoad(ctx context.Context, name string, load host.Load, d time.Duration) (*phase, error) {
	load.For, load.PerSecond = d, load.PerSecond/fleetSize
	p := &phase{duration: d, memory: make([][]int, fleetSize), rejected: make(map[string]float64)}
	leaderships, err := o.countLeaderships()
	if err != nil {
		return nil, err
	}
	if err := o.countRejections(ctx, p, -1); err != nil {
		return nil, err
	}
	begin, busy := time.Now(), busyCPUTime()
	results := make([]host.LoadResult, fleetSize)
	errs := make([]error, fleetSize)
	var loading sync.WaitGroup
	for i, node := range o.fleet.nodes {
		load := load // a copy for each goroutine
		load.Prefix = fmt.Sprintf("%s-%s", name, node.id)
		loading.Go(func() { errs[i] = o.fleet.ask(ctx, node, host.LoadPath, load, results[i].Read) })
	}
	o.watchMemory(ctx, p)
	loading.Wait()
	lasted := time.Since(begin).Seconds()
	p.otherCPU = (busyCPUTime() - busy).Seconds() / lasted
	for i, result := range results {
		if errs[i] != nil {
			return nil, errs[i]
		}
		p.add(result, lasted)
	}
	if err := o.countRejections(ctx, p, 1); err != nil {
		return nil, err
	}
	began, err := o.countLeaderships()
	p.leaderships = began - leaderships
	return p, err
}

// add adds the result of a load on one node, which lasted for some seconds.
func (p *phase) add(result host.LoadResult, seconds float64) {
	for _, batch := range result.Calls {
		p.calls = append(p.calls, batch...)
	}
	used := result.Processors.Seconds() / seconds
	p.fleetCPU, p.otherCPU = p.fleetCPU+used, max(p.otherCPU-used, 0)
	p.runQueue.P50 = max(p.runQueue.P50, result.RunQueue.P50)
	p.runQueue.P99 = max(p.runQueue.P99, result.RunQueue.P99)
	p.runQueue.Max = max(p.runQueue.Max, result.RunQueue.Max)
}

// busyCPUTime returns the busy time of all processors of this machine. Linux only.
func busyCPUTime() time.Duration {
	content, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(content), "\n")
	busy := time.Duration(0)
	for i, field := range strings.Fields(line) {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil || i == idleField || i == idleField+1 || i > stealField {
			continue // the name; idle and iowait; guest times, which are included in others
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

// watchMemory samples the memory of the nodes' processes until the phase is over.
func (o *overload) watchMemory(ctx context.Context, p *phase) {
	ctx, cancel := context.WithTimeout(ctx, p.duration)
	defer cancel()
	for ctx.Err() == nil {
		for i, node := range o.fleet.nodes {
			if bytes, err := residentBytes(node.pid()); err == nil {
				p.memory[i] = append(p.memory[i], bytes)
			}
		}
		sleep(ctx, memoryEvery)
	}
}

// residentBytes returns the resident memory of a process. Linux only.
func residentBytes(pid int) (int, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	var size, resident int
	_, err = fmt.Sscan(string(content), &size, &resident)
	return resident * os.Getpagesize(), err
}

// countRejections adds sign times the nodes' counts of rejections to a phase.
func (o *overload) countRejections(ctx context.Context, p *phase, sign float64) error {
	for _, node := range o.fleet.nodes {
		metrics, err := o.metrics(ctx, node)
		if err != nil {
			return err
		}
		for _, bound := range []string{"instance", "in flight", "delay"} {
			n, err := sumMetric(strings.NewReader(metrics), "tenuto_inbox_rejected_total", bound)
			if err != nil {
				return err
			}
			p.rejected["by the leader, bound "+bound] += sign * n
		}
		n, err := sumMetric(strings.NewReader(metrics), "tenuto_starts_shed_total")
		if err != nil {
			return err
		}
		p.rejected["by the caller's node"] += sign * n
	}
	return nil
}

// metrics returns the metrics of a node.
func (o *overload) metrics(ctx context.Context, node *process) (string, error) {
	address, _ := node.socket()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+host.MetricsPath, nil)
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

// sumMetric sums the samples of a metric that have all given attribute values.
func sumMetric(metrics io.Reader, name string, values ...string) (float64, error) {
	sum := 0.0
	lines := bufio.NewScanner(metrics)
	lines.Buffer(nil, logLineMax)
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

// countLeaderships counts the leaderships in the nodes' logs.
func (o *overload) countLeaderships() (int, error) {
	n := 0
	for _, node := range o.fleet.nodes {
		if err := eachLine(node.stderr.Name(), func(line string) {
			if _, ok := parseLeadership(line); ok {
				n++
			}
		}); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// durations returns the durations of the calls with that failure; "" selects the successful calls.
func durations(calls []host.LoadCall, failure string) (all []time.Duration) {
	for _, call := range calls {
		if call.Failure == failure {
			all = append(all, call.Took)
		}
	}
	return all
}

// describeDurations returns count and quantiles.
func describeDurations(all []time.Duration) string {
	return fmt.Sprintf("%d, p50 %v p99 %v max %v", len(all), quantile(all, 0.5), quantile(all, 0.99), quantile(all, 1))
}

// goodSeconds returns, for each second, whether 99% of the calls that began in it succeeded within
// a limit.
func goodSeconds(calls []host.LoadCall, limit time.Duration) (good []bool) {
	var seconds [][]host.LoadCall
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

// recoveredAfter returns the first second that starts recoverRun good ones, and how many later
// seconds are not good. Some are slow without overload, too.
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
