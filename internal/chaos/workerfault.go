package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
	"github.com/tenuto-dev/tenuto/internal/chaos/link"
)

const (
	// The number of workers, and how long they may take to connect and to get activities.
	workerCount   = 12
	workerTimeout = time.Minute
	// How long workers continue after they are healed.
	workersHealedTime = time.Second
	// Longer than the cluster waits for a worker that does not answer.
	disturbedMax = 14 * time.Second
)

// disturbWorkers lets a dozen workers run the activities. It kills a third of them, of which half
// are started again, pauses a third, and cuts a third off. Half of the injections also kill the
// leader. See invariant S35.
func disturbWorkers(ctx context.Context, s *injection) error {
	f := s.fleet
	s.onHeal(func(ctx context.Context) error { return f.changeSettings(ctx, func(*cluster.Settings) {}) })
	s.onHeal(func(context.Context) error { return eachWorker(f.workers, (*process).stop) })
	begin := f.log.Now()
	if err := f.startWorkers(ctx); err != nil {
		return err
	}
	if err := f.changeSettings(ctx, func(s *cluster.Settings) { s.ActivityPlacement = "workers first" }); err != nil {
		return err
	}
	if idle := f.awaitWorkers(ctx, begin); idle != "" {
		s.addShortcoming("%s ran no activity within %v", idle, workerTimeout)
	}
	s.onHeal(func(ctx context.Context) error {
		err := f.network.Heal()
		sleep(ctx, workersHealedTime)
		return err
	})
	workers := slices.Clone(f.workers)
	s.random.Shuffle(len(workers), func(i, j int) { workers[i], workers[j] = workers[j], workers[i] })
	third := workerCount / 3
	killed, paused, cut := workers[:third], workers[third:2*third], workers[2*third:]
	for _, worker := range paused {
		if err := worker.pause(); err != nil {
			return err
		}
		s.onHeal(func(context.Context) error { return worker.resume() })
	}
	for _, worker := range cut {
		for _, node := range f.nodes {
			if err := errors.Join(
				f.network.Set(node.id, worker.id, link.Condition{Cut: true}),
				f.network.Set(worker.id, node.id, link.Condition{Cut: true})); err != nil {
				return err
			}
		}
	}
	if err := eachWorker(killed, (*process).kill); err != nil {
		return err
	}
	if s.random.IntN(2) == 0 {
		if err := s.kill(s.leader); err != nil {
			return err
		}
	}
	for _, worker := range workers {
		s.addNodes(worker.id)
	}
	return eachWorker(killed[:third/2], func(p *process) error { return p.start(ctx) })
}

// startWorkers starts all workers.
func (f *fleet) startWorkers(ctx context.Context) error {
	for len(f.workers) < workerCount {
		worker, err := f.newRemote(host.Config{NodeID: fmt.Sprintf("worker%d", len(f.workers)+1), Worker: true})
		if err != nil {
			return err
		}
		f.workers = append(f.workers, worker)
	}
	for _, worker := range f.workers {
		config := worker.settings()
		config.Dial = f.addresses
		worker.setConfig(config)
	}
	return eachWorker(f.workers, func(p *process) error { return p.start(ctx) })
}

// awaitWorkers waits until each worker is connected and has begun an activity. It returns one that
// has not, or "".
func (f *fleet) awaitWorkers(ctx context.Context, since time.Duration) string {
	ctx, cancel := context.WithTimeout(ctx, workerTimeout)
	defer cancel()
	for i := 0; ; i++ {
		var names []string
		err := f.askOnce(ctx, f.nodes[i%len(f.nodes)], host.WorkersPath, struct{}{}, &names)
		idle := slices.IndexFunc(f.workers, func(p *process) bool {
			return err != nil || !slices.Contains(names, p.id) || !f.log.HasBegun(p.id, since)
		})
		if idle < 0 {
			return ""
		}
		if sleep(ctx, 50*time.Millisecond); ctx.Err() != nil {
			return f.workers[idle].id
		}
	}
}

// eachWorker does something with workers, concurrently.
func eachWorker(workers []*process, do func(*process) error) error {
	var doing sync.WaitGroup
	errs := make([]error, len(workers))
	for i, worker := range workers {
		doing.Go(func() { errs[i] = do(worker) })
	}
	doing.Wait()
	return errors.Join(errs...)
}
