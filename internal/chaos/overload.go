package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
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
	memoryGrowth  = 1.2 // the last third of the time, against the second
	latencyFactor = 2   // what counts as recovered
	latencySlack  = 20 * time.Millisecond
)

// How the phases are cut.
const (
	capacityTime   = 20 * time.Second
	capacityWarmUp = 10 * time.Second
	capacityCalls  = 256 // callers on each node
	normalTime     = 20 * time.Second
	overloadTime   = time.Minute
	memoryEvery    = time.Second
)

// An overload is a measurement of what a fleet does at its capacity and beyond it. The
// load is made in the nodes' processes, as by applications that embed them.
type overload struct {
	fleet *fleet
	out   io.Writer
	// What was not as it should be.
	missed []string
}

// measureOverload measures a fleet without faults, prints what it finds, and returns an
// error if the goals are not met. steady is how long it is loaded with four fifths of
// its capacity, to see whether the leader stays.
func measureOverload(ctx context.Context, dir, kind string, steady time.Duration, out io.Writer) (err error) {
	network, err := newNetwork(kind, out)
	if err != nil {
		return err
	}
	fleet, err := newFleet(dir, evidence.NewLog(), network, nil, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fleet.close()) }()
	if err := fleet.start(ctx); err != nil {
		return err
	}
	if _, err := fleet.awaitLeader(ctx); err != nil {
		return err
	}
	o := &overload{fleet: fleet, out: out}
	fmt.Fprintf(out, "%d processors for three nodes and their load; an orchestration has %d activities\n", runtime.NumCPU(), host.BriefLength)
	capacity, err := o.capacity(ctx)
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
	goodput  float64 // orchestrations that ended, a second
	memory   [][]int // bytes, of each node, once in memoryEvery
	reigns   int     // begun meanwhile
	duration time.Duration
}

// capacity returns how many orchestrations a second can be done: with so many callers
// that more would not help.
func (o *overload) capacity(ctx context.Context) (float64, error) {
	load := host.Pressure{Callers: capacityCalls, Wait: true}
	if _, err := o.press(ctx, "warm", load, capacityWarmUp); err != nil {
		return 0, err
	}
	p, err := o.press(ctx, "capacity", load, capacityTime)
	if err != nil {
		return 0, err
	}
	fmt.Fprintf(o.out, "capacity: %.0f orchestrations a second, with %d callers\n", p.goodput, fleetSize*capacityCalls)
	return p.goodput, nil
}

// steady loads the fleet with four fifths of its capacity.
func (o *overload) steady(ctx context.Context, capacity float64, d time.Duration) error {
	p, err := o.press(ctx, "steady", host.Pressure{PerSecond: 0.8 * capacity}, d)
	if err != nil {
		return err
	}
	fmt.Fprintf(o.out, "at 80%% for %v: %.0f a second end, starts take %v, %d changes of the leader\n", d, p.goodput, took(p.calls, ""), p.reigns)
	o.goal(p.reigns == 0, "no change of the leader at 80%%: %d", p.reigns)
	return nil
}

// beyond loads the fleet with half of its capacity, twice that capacity, and half again.
func (o *overload) beyond(ctx context.Context, capacity float64) error {
	half := host.Pressure{PerSecond: capacity / 2, Wait: true}
	before, err := o.press(ctx, "before", half, normalTime)
	if err != nil {
		return err
	}
	normal := quantile(durations(before.calls, ""), 0.99)
	fmt.Fprintf(o.out, "at half: %.0f a second end, from start to end %v\n", before.goodput, took(before.calls, ""))
	over, err := o.press(ctx, "over", host.Pressure{PerSecond: 2 * capacity}, overloadTime)
	if err != nil {
		return err
	}
	o.judgeOverload(over, capacity)
	after, err := o.press(ctx, "after", half, normalTime)
	if err != nil {
		return err
	}
	recovered, ok := recoveredAfter(after.calls, latencyFactor*normal+latencySlack)
	fmt.Fprintf(o.out, "at half again: %.0f a second end, from start to end %v; as before after %v\n", after.goodput, took(after.calls, ""), recovered)
	o.goal(ok && recovered <= recoverLimit, "as before within %v: %v", recoverLimit, recovered)
	return nil
}

func (o *overload) judgeOverload(p *phase, capacity float64) {
	refusals := durations(p.calls, host.Busy)
	other := len(p.calls) - len(durations(p.calls, "")) - len(refusals)
	fmt.Fprintf(o.out, "at twice: %.0f a second end, %.0f%% of the capacity; starts: %s; refused: %s; neither: %d; %d changes of the leader\n",
		p.goodput, 100*p.goodput/capacity, took(p.calls, ""), took(p.calls, host.Busy), other, p.reigns)
	o.goal(p.goodput >= goodputShare*capacity, "at least %.0f%% of the capacity at twice that: %.0f%%", 100*goodputShare, 100*p.goodput/capacity)
	o.goal(quantile(refusals, 0.99) <= refusalLimit, "refused within %v: %v at the 99th percentile", refusalLimit, quantile(refusals, 0.99))
	for i, memory := range p.memory {
		third := len(memory) / 3
		if third == 0 {
			continue
		}
		middle, last := slices.Max(memory[third:2*third]), slices.Max(memory[2*third:])
		fmt.Fprintf(o.out, "  memory of n%d: %d MB, %d MB at the end of the second third, %d MB at the end\n", i+1, memory[0]>>20, middle>>20, last>>20)
		o.goal(float64(last) <= memoryGrowth*float64(middle), "memory of n%d is flat: from %d MB to %d MB", i+1, middle>>20, last>>20)
	}
}

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
	p := &phase{duration: d, memory: make([][]int, fleetSize)}
	reigns, err := o.reigns()
	if err != nil {
		return nil, err
	}
	ended, err := o.ended(ctx)
	if err != nil {
		return nil, err
	}
	told := make([][]host.Pressed, fleetSize)
	errs := make([]error, fleetSize)
	var pressing sync.WaitGroup
	for i, node := range o.fleet.nodes {
		load.Prefix = fmt.Sprintf("%s-%s", name, node.id)
		pressing.Go(func() { errs[i] = o.fleet.post(ctx, node, host.PressPath, load, &told[i]) })
	}
	o.watchMemory(ctx, p)
	now, err := o.ended(ctx)
	if err != nil {
		return nil, err
	}
	p.goodput = (now - ended) / d.Seconds()
	pressing.Wait()
	for i, calls := range told {
		if errs[i] != nil {
			return nil, errs[i]
		}
		p.calls = append(p.calls, calls...)
	}
	began, err := o.reigns()
	p.reigns = began - reigns
	return p, err
}

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

// ended returns how many orchestrations have completed, by what the nodes count.
func (o *overload) ended(ctx context.Context) (float64, error) {
	sum := 0.0
	for _, node := range o.fleet.nodes {
		address, _ := node.door()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+host.FiguresPath, nil)
		if err != nil {
			return 0, err
		}
		response, err := o.fleet.http.Do(request)
		if err != nil {
			return 0, err
		}
		n, err := sumOf(response.Body, "tenuto_orchestrations_ended_total", host.Brief, "completed")
		_ = response.Body.Close()
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
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
func took(calls []host.Pressed, trouble string) string {
	all := durations(calls, trouble)
	return fmt.Sprintf("%d, p50 %v p99 %v max %v", len(all), quantile(all, 0.5), quantile(all, 0.99), quantile(all, 1))
}

// recoveredAfter returns the second since which, in every second, all but one call in a
// hundred took no longer than a limit.
func recoveredAfter(calls []host.Pressed, limit time.Duration) (time.Duration, bool) {
	seconds := make(map[time.Duration][]host.Pressed)
	last := time.Duration(0)
	for _, call := range calls {
		second := call.At.Truncate(time.Second)
		seconds[second] = append(seconds[second], call)
		last = max(last, second)
	}
	since := last + time.Second
	for second := last; second >= 0; second -= time.Second {
		good := durations(seconds[second], "")
		if len(good) < len(seconds[second])*99/100 || quantile(good, 0.99) > limit {
			break
		}
		since = second
	}
	return since, since <= last
}
