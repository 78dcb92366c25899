package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/operate"
)

// An application is the processes, and a client that is none of them.
type application struct {
	options options
	peers   []cluster.Peer
	nodes   map[string]*process // that are up, by name
	workers []*process          // that are up
	killed  []*process          // workers
	client  *cluster.Client
}

func newApplication(o options) *application {
	return &application{options: o, nodes: make(map[string]*process)}
}

// restoreMax bounds the wait for anything that must happen by itself.
const restoreMax = 3 * time.Minute

// start starts all processes and waits until all workers are connected.
func (a *application) start(ctx context.Context) error {
	if err := a.choosePeers(); err != nil {
		return err
	}
	began := time.Now()
	for _, peer := range a.peers {
		if err := a.startNode(peer); err != nil {
			return err
		}
	}
	for _, p := range a.nodes {
		if err := p.awaitReady(ctx); err != nil {
			return err
		}
	}
	var addresses []string
	for _, peer := range a.peers {
		addresses = append(addresses, peer.Address)
	}
	var err error
	if a.client, err = cluster.Dial(ctx, cluster.DialConfig{Addresses: addresses, CallTimeout: restoreMax}); err != nil {
		return err
	}
	if _, err := a.awaitVoters(ctx); err != nil {
		return err
	}
	for i := range a.options.workers {
		p, err := startProcess(settings{Name: fmt.Sprintf("w%d", i+1), Peers: a.peers, Verbose: a.options.verbose})
		if err != nil {
			return err
		}
		a.workers = append(a.workers, p)
	}
	for _, p := range a.workers {
		if err := p.awaitReady(ctx); err != nil {
			return err
		}
	}
	err = a.await(ctx, "all workers are connected", func() (bool, error) {
		connected, err := operate.Workers(ctx, a.client)
		return len(connected) == len(a.workers), err
	})
	fmt.Printf("%d nodes (%d vote) and %d workers run: after %v\n", len(a.nodes), voters, len(a.workers), round(time.Since(began)))
	return err
}

func (a *application) choosePeers() error {
	for i := range nodes {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer listener.Close()
		a.peers = append(a.peers, cluster.Peer{NodeID: fmt.Sprintf("n%d", i+1), Address: listener.Addr().String()})
	}
	return nil
}

func (a *application) startNode(peer cluster.Peer) error {
	p, err := startProcess(settings{
		Name: peer.NodeID, Dir: filepath.Join(a.options.dir, peer.NodeID), Listen: peer.Address, Peers: a.peers, Verbose: a.options.verbose,
	})
	if err == nil {
		a.nodes[peer.NodeID] = p
	}
	return err
}

// await waits until holds reports true.
func (a *application) await(ctx context.Context, what string, holds func() (bool, error)) error {
	deadline := time.Now().Add(restoreMax)
	for {
		ok, err := holds()
		if ok && err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("not within %v: %s", restoreMax, what), err)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// awaitVoters waits until as many members vote as the setting says, and all of them are alive.
func (a *application) awaitVoters(ctx context.Context) (members []cluster.Member, err error) {
	return members, a.await(ctx, "all voters are alive", func() (bool, error) {
		if members, err = a.client.Members(ctx); err != nil {
			return false, err
		}
		alive := 0
		for _, m := range members {
			up := a.nodes[m.NodeID] != nil && m.Liveness == cluster.MemberAlive
			if m.Role == "voter" && m.Voter && up {
				alive++
			} else if m.Role == "voter" || m.Voter {
				return false, nil
			}
		}
		return alive == voters, nil
	})
}

// killAll kills three voters one after the other, the first and the last while they lead, and five
// workers. The first node comes back before the third is killed, because no standby is left.
func (a *application) killAll(ctx context.Context, load *load) error {
	var first string
	for round := range 3 {
		if err := load.awaitMore(ctx, 100); err != nil {
			return err
		}
		name, err := a.killVoter(ctx, round != 1)
		if err != nil {
			return err
		}
		switch round {
		case 0:
			first = name
			if err := a.killWorkers(ctx, 5); err != nil {
				return err
			}
		case 1:
			if err := a.restart(ctx, first); err != nil {
				return err
			}
		}
	}
	return load.awaitMore(ctx, 100)
}

// killVoter kills a voter, the leader or another, and waits until voters are restored.
func (a *application) killVoter(ctx context.Context, leader bool) (name string, err error) {
	members, err := a.awaitVoters(ctx)
	if err != nil {
		return "", err
	}
	at := slices.IndexFunc(members, func(m cluster.Member) bool { return m.Voter && m.Leader == leader })
	if at < 0 {
		return "", fmt.Errorf("no voter to kill among %+v", members)
	}
	name = members[at].NodeID
	began := time.Now()
	a.nodes[name].kill()
	delete(a.nodes, name)
	after, err := a.awaitVoters(ctx)
	if err != nil {
		return "", err
	}
	what := map[bool]string{true: "the leader", false: "a voter"}[leader]
	fmt.Printf("%s, %s, is killed: voters restored after %v (a voter is replaced after %v); now %s\n",
		name, what, round(time.Since(began)), replaceVoterAfter, describe(after))
	return name, nil
}

func describe(members []cluster.Member) (text string) {
	for _, m := range members {
		text += fmt.Sprintf(" %s:%s", m.NodeID, m.Role)
		if m.Liveness != cluster.MemberAlive {
			text += "(" + string(m.Liveness) + ")"
		}
	}
	return text[1:]
}

// restart starts a killed node again, which becomes a standby.
func (a *application) restart(ctx context.Context, name string) error {
	at := slices.IndexFunc(a.peers, func(p cluster.Peer) bool { return p.NodeID == name })
	began := time.Now()
	if err := a.startNode(a.peers[at]); err != nil {
		return err
	}
	if err := a.nodes[name].awaitReady(ctx); err != nil {
		return err
	}
	err := a.await(ctx, name+" is a standby and has caught up", func() (bool, error) {
		members, err := a.client.Members(ctx)
		i := slices.IndexFunc(members, func(m cluster.Member) bool { return m.NodeID == name })
		return i >= 0 && members[i].Role == "standby" && members[i].Liveness == cluster.MemberAlive && members[i].BehindKnown && members[i].Behind < 1000, err
	})
	fmt.Printf("%s is started again: a standby after %v\n", name, round(time.Since(began)))
	return err
}

// killWorkers kills the worker that runs most activities, n times.
func (a *application) killWorkers(ctx context.Context, n int) error {
	began := time.Now()
	for range n {
		var busy *process
		used := 0
		err := a.await(ctx, "a worker runs an activity", func() (bool, error) {
			connected, err := operate.Workers(ctx, a.client)
			for _, w := range connected {
				at := slices.IndexFunc(a.workers, func(p *process) bool { return strings.HasPrefix(w.ID, p.settings.Name+"-") })
				if w.Used > used && at >= 0 {
					busy, used = a.workers[at], w.Used
				}
			}
			return busy != nil, err
		})
		if err != nil {
			return err
		}
		busy.kill()
		a.workers = slices.DeleteFunc(a.workers, func(p *process) bool { return p == busy })
		a.killed = append(a.killed, busy)
	}
	fmt.Printf("%d workers are killed while they run activities, in %v\n", n, round(time.Since(began)))
	return nil
}

// all returns the processes whose attempts count.
func (a *application) all() []*process {
	all := slices.Concat(a.workers, a.killed)
	for _, p := range a.nodes {
		all = append(all, p)
	}
	return all
}

// stop ends all processes.
func (a *application) stop() {
	var stopping sync.WaitGroup
	for _, p := range a.workers {
		stopping.Go(p.stop)
	}
	stopping.Wait()
	for _, p := range a.nodes {
		stopping.Go(p.kill)
	}
	stopping.Wait()
	if a.client != nil {
		_ = a.client.Close()
	}
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

// measureIdleWorkers prints what a worker without load uses: medians of all workers.
func (a *application) measureIdleWorkers(ctx context.Context) error {
	measureAll := func() (all []use, err error) {
		for _, p := range a.workers {
			u, err := p.measure(ctx)
			if err != nil {
				return nil, err
			}
			all = append(all, u)
		}
		return all, nil
	}
	if err := pause(ctx, 5*time.Second); err != nil { // the work of starting ends
		return err
	}
	began := time.Now()
	before, err := measureAll()
	if err != nil {
		return err
	}
	if err := pause(ctx, a.options.idle); err != nil {
		return err
	}
	after, err := measureAll()
	if err != nil {
		return err
	}
	seconds := time.Since(began).Seconds()
	each := func(of func(before, after use) float64) float64 {
		var values []float64
		for i := range after {
			values = append(values, of(before[i], after[i]))
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	rate := func(of func(use) uint64) float64 {
		return each(func(b, a use) float64 { return float64(of(a)-of(b)) / seconds })
	}
	fmt.Printf("an idle worker (medians of %d, %v): %.1f MB resident, %.1f MB of heap; receives %.0f B/s in %.1f packets/s, sends %.0f B/s in %.1f packets/s\n",
		len(after), a.options.idle,
		each(func(_, a use) float64 { return float64(a.RSS) / 1e6 }), each(func(_, a use) float64 { return float64(a.Heap) / 1e6 }),
		rate(func(u use) uint64 { return u.BytesIn }), rate(func(u use) uint64 { return u.PacketsIn }),
		rate(func(u use) uint64 { return u.BytesOut }), rate(func(u use) uint64 { return u.PacketsOut }))
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
