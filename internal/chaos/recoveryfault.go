package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/recovery"
	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

const (
	// The number of nodes of a recovered cluster, and how long its instances may take to end.
	recoveredSize    = 3
	recoveredTimeout = time.Minute
	// How long a survivor is cut off before the majority is lost, and how long a node of the old
	// cluster is watched.
	survivorCutTime = time.Second
	returnedTime    = 3 * time.Second
)

// loseMajority kills all nodes and recovers another cluster from the directory of one of them, with
// new nodes, while the old cluster is down. Half of the injections cut the survivor off before, so
// that it lacks what is acknowledged meanwhile. A lost node that returns must be refused. Healing
// continues the old cluster. See invariant S33.
func loseMajority(ctx context.Context, s *injection) error {
	f := s.fleet
	survivor := f.nodes[s.random.IntN(len(f.nodes))]
	begin := f.log.Now()
	if err := f.awaitApplied(ctx, survivor); err != nil {
		return err
	}
	if s.random.IntN(2) == 0 {
		if err := s.isolate(survivor.id, true, true); err != nil {
			return err
		}
		sleep(ctx, survivorCutTime)
	}
	lost := f.log.Now()
	if err := errors.Join(s.kill(f.nodeIDsExcept()...), f.network.Heal()); err != nil {
		return err
	}
	f.recoveries++
	dir := filepath.Join(f.dir, fmt.Sprintf("recovery%d", f.recoveries))
	data := filepath.Join(dir, "data") // dir keeps the logs
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	s.onHeal(func(context.Context) error { return os.RemoveAll(data) })
	copied := filepath.Join(data, "survivor")
	if err := os.CopyFS(copied, os.DirFS(survivor.settings().Dir)); err != nil {
		return err
	}
	r, err := s.newRecovered(dir)
	if err != nil {
		return err
	}
	how := evidence.Recovery{Lost: lost, Nodes: recoveredSize}
	if err := r.recover(ctx, f, survivor, copied, &how); err != nil {
		return err
	}
	if how.Calls, err = r.work(ctx); err != nil {
		return err
	}
	if err := s.expectRefused(ctx, r, f.node(f.nodeIDsExcept(survivor.id)[0])); err != nil {
		return err
	}
	state, err := r.report(ctx, r.nodes[0], host.ReportRequest{})
	if err != nil {
		return err
	}
	state.Node, state.Begin, state.End = fmt.Sprintf("recovery %d", f.recoveries), begin, f.log.Now()
	state.Stale, state.Complete, state.Recovery = true, false, &how
	f.log.Replica(state)
	return nil
}

// awaitApplied waits until a node has applied what the leaders have applied by now.
func (f *fleet) awaitApplied(ctx context.Context, node *process) error {
	target, err := f.appliedByLeaders(ctx)
	for ; err == nil; sleep(ctx, 20*time.Millisecond) {
		var state host.NodeStatus
		var applied []uint64
		failed := f.askOnce(ctx, node, host.NodePath, struct{}{}, &state)
		for _, partition := range state.Partitions {
			applied = append(applied, partition.Applied)
		}
		if failed == nil && !isBehind(applied, target) {
			return nil
		}
		err = ctx.Err()
	}
	return fmt.Errorf("%s has not applied %d: %w", node.id, target, err)
}

// A sharedNetwork is the network of another fleet, which closes it.
type sharedNetwork struct{ network }

func (sharedNetwork) Close() error { return nil }

// newRecovered prepares a fleet without nodes that has its own log and ledger, and the network and
// the keys of the fleet. Healing ends it.
func (inj *injection) newRecovered(dir string) (*fleet, error) {
	f := inj.fleet
	r := &fleet{dir: dir, log: evidence.NewLog(f.template.Partitions), network: sharedNetwork{f.network}, template: f.template, keys: f.keys}
	r.http = &http.Client{Transport: &http.Transport{DialContext: r.dialSocket}}
	inj.onHeal(func(context.Context) error {
		err := r.close()
		for _, exit := range r.log.Record().Exits {
			if !exit.Expected {
				inj.addViolation("the process of %s in the recovered cluster ended: %s", exit.Node, exit.Status)
			}
		}
		return err
	})
	return r, r.openSockets()
}

// addRecovered prepares the nodes. They have other addresses than the old ones, at which clients of
// the old cluster would find them.
func (f *fleet) addRecovered(old *fleet, survivor *process) error {
	for i := range recoveredSize {
		config, place := survivor.settings(), fmt.Sprintf("recovered%d", i+1)
		var err error
		if config.Listen, config.Advertise, err = old.place(place); err != nil {
			return err
		}
		if i > 0 {
			if config.Keys, err = f.keys.Issue(place); err != nil {
				return err
			}
			config.NodeID, config.Join = place, f.addresses
		}
		config.Peers, config.Discover, config.Dir, config.Ledger = nil, "", filepath.Join(f.dir, "data", place), f.ledger.Socket()
		node, err := newProcess(place, config, f)
		if err != nil {
			return err
		}
		f.nodes, f.addresses = append(f.nodes, node), append(f.addresses, config.Advertise)
	}
	return nil
}

// recover recovers a cluster from a copy of the survivor's directory, and adds new nodes. It
// returns when all vote.
func (f *fleet) recover(ctx context.Context, old *fleet, survivor *process, copied string, how *evidence.Recovery) error {
	if err := f.addRecovered(old, survivor); err != nil {
		return err
	}
	first := f.nodes[0].settings()
	report, err := recovery.Recover(ctx, recovery.Target{
		Dir: first.Dir, NodeID: first.NodeID, Address: first.Advertise, Logger: slog.New(slog.DiscardHandler),
	}, copied)
	if err != nil {
		return err
	}
	for _, partition := range report.Partitions {
		how.Affected += partition.Affected
	}
	had, err := host.ReadRestored(copied, f.template.Partitions)
	if err != nil {
		return err
	}
	how.Survivor = evidence.WithoutEvents(had.Instances)
	if err := f.nodes[0].start(ctx); err != nil {
		return err
	}
	if err := f.start(ctx); err != nil {
		return err
	}
	return f.awaitMembers(ctx, host.MembersPath, struct{}{}, func(members []cluster.Member) bool {
		voters := 0
		for _, m := range members {
			if m.Voter {
				voters++
			}
		}
		return voters == recoveredSize && len(members) == recoveredSize
	})
}

// work runs an instance through each node, and returns the calls.
func (f *fleet) work(ctx context.Context) ([]evidence.Call, error) {
	ctx, cancel := context.WithTimeout(ctx, recoveredTimeout)
	defer cancel()
	var calls []evidence.Call
	for i, node := range f.nodes {
		id := "after-" + node.id
		caller := client{fleet: f, id: i + 1, firstNode: i}
		start := evidence.Request{Kind: evidence.Start, Instance: id, Name: host.Chain, RequestID: id, Input: encode(host.ChainInput{Value: i})}
		calls = append(calls, caller.do(ctx, start), caller.do(ctx, evidence.Request{Kind: evidence.Wait, Instance: id}))
	}
	return calls, ctx.Err()
}

// expectRefused starts a lost node of the old cluster with a copy of its directory, beside the
// recovered cluster. It must neither lead nor be ready.
func (inj *injection) expectRefused(ctx context.Context, r *fleet, lost *process) error {
	config := lost.settings()
	config.Dir, config.Ledger = filepath.Join(r.dir, "data", lost.id), r.ledger.Socket()
	config.Peers, config.Discover, config.Join = nil, "", r.addresses // so that it hears of the recovery
	if err := os.CopyFS(config.Dir, os.DirFS(lost.settings().Dir)); err != nil {
		return err
	}
	node, err := newProcess(lost.id, config, r)
	if err != nil {
		return err
	}
	node.setDamaged(true) // it may fail to start, or end
	defer func() {
		_ = node.kill()
		_ = node.stderr.Close()
	}()
	limited, cancel := context.WithTimeout(ctx, returnedTime)
	defer cancel()
	if node.start(limited) != nil {
		return nil
	}
	for ; limited.Err() == nil; sleep(limited, 50*time.Millisecond) {
		var state host.NodeStatus
		if err := r.askOnce(limited, node, host.NodePath, struct{}{}, &state); err != nil {
			continue
		}
		if state.IsLeader() || state.NotReady == "" {
			inj.addViolation("%s of the cluster that was lost takes part in the recovered one: %+v", config.NodeID, state)
			return nil
		}
	}
	return nil
}
