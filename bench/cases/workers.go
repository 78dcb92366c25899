package cases

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/bench/measure"
	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/replay"
)

// workersMeasured is how long the traffic of idle workers is measured.
const workersMeasured = 10 * time.Second

var idleActivity = replay.Activity[int, int]("idle")

// workers measures N workers without load, which run in this process with their leader: the memory
// of both ends, and what they send. Plain clients are measured first, for comparison.
func workers(ctx context.Context, e *Env) (result *measure.Result, err error) {
	proxy, err := newCountingProxy()
	if err != nil {
		return nil, err
	}
	defer proxy.close()
	probe, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	proxy.target = probe.Addr().String()
	_ = probe.Close()
	node, err := cluster.Start(ctx, cluster.Config{
		Dir: e.Dir, Listen: proxy.target, Advertise: proxy.listener.Addr().String(), Partitions: max(e.Partitions, 1), Logger: e.Logger,
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	proxy.running.Go(proxy.serve)
	result = &measure.Result{}
	body := idleActivity.Bind(func(_ context.Context, n int) (int, error) { return n, nil })
	for _, of := range []struct {
		name        string
		definitions []replay.Definition
	}{{"client", nil}, {"worker", []replay.Definition{body}}} {
		if err := measureIdle(ctx, e, node, proxy, of.name, of.definitions, result); err != nil {
			return nil, err
		}
	}
	return result, nil
}

// measureIdle connects N clients, waits, and measures what they use.
func measureIdle(ctx context.Context, e *Env, node *cluster.Node, proxy *countingProxy, name string, definitions []replay.Definition, result *measure.Result) (err error) {
	before := measure.Retained()
	var clients []*cluster.Client
	defer func() {
		for _, client := range clients {
			err = errors.Join(err, client.Close())
		}
	}()
	e.Progress("connecting each " + name)
	for range e.N {
		client, err := cluster.Dial(ctx, cluster.DialConfig{Addresses: []string{proxy.listener.Addr().String()}, Definitions: definitions, Logger: e.Logger})
		if err != nil {
			return err
		}
		clients = append(clients, client)
	}
	if err := sleep(ctx, idleNodesWarmUp); err != nil {
		return err
	}
	connected, err := operate.Workers(ctx, node.Client())
	if err == nil && definitions != nil && len(connected) != e.N {
		err = fmt.Errorf("%d workers are connected, want %d", len(connected), e.N)
	}
	if err != nil {
		return err
	}
	retained, err := settledMemory(ctx)
	if err != nil {
		return err
	}
	e.Progress("waiting")
	sent, processor, began := proxy.bytes.Load(), measure.ProcessorTime(), time.Now()
	if err := sleep(ctx, workersMeasured); err != nil {
		return err
	}
	each := float64(e.N) * time.Since(began).Seconds()
	addEach(result, name+", memory of both ends", e.N, float64(retained)-float64(before), e.N)
	result.Add(measure.Metric{Name: name + ", bytes in a second, both ways", At: float64(e.N), Unit: measure.Bytes, Value: float64(proxy.bytes.Load()-sent) / each})
	result.Add(measure.Metric{Name: name + ", processor time of both ends in a second", At: float64(e.N), Unit: measure.Duration,
		Value: float64(measure.ProcessorTime()-processor) / each})
	return nil
}

// A countingProxy passes connections on to a node and counts their bytes, without what TCP adds.
type countingProxy struct {
	listener net.Listener
	target   string
	bytes    atomic.Int64
	running  sync.WaitGroup

	mu     sync.Mutex
	conns  []net.Conn
	closed bool
}

func newCountingProxy() (*countingProxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	return &countingProxy{listener: listener}, err
}

func (p *countingProxy) serve() {
	for {
		from, err := p.listener.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", p.target)
		if err != nil || !p.keep(from, to) {
			_ = from.Close()
			continue
		}
		p.running.Go(func() { p.copy(to, from) })
		p.running.Go(func() { p.copy(from, to) })
	}
}

func (p *countingProxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.conns = append(p.conns, conns...)
	}
	return !p.closed
}

func (p *countingProxy) copy(to, from net.Conn) {
	defer func() { _, _ = to.Close(), from.Close() }()
	buffer := make([]byte, 4096)
	for {
		n, err := from.Read(buffer)
		p.bytes.Add(int64(n))
		if _, writeErr := to.Write(buffer[:n]); err != nil || writeErr != nil {
			return
		}
	}
}

func (p *countingProxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for _, conn := range p.conns {
		_ = conn.Close()
	}
	p.mu.Unlock()
	p.running.Wait()
}
