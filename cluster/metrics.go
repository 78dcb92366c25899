package cluster

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// scope names the instruments and spans of this module.
const scope = "github.com/tenuto-dev/tenuto"

// The attributes of metrics and spans. An instance ID is one of spans alone.
const (
	nodeKey          = attribute.Key("tenuto.node")
	memberKey        = attribute.Key("tenuto.member")
	boundKey         = attribute.Key("tenuto.bound")
	stateKey         = attribute.Key("tenuto.state")
	standingKey      = attribute.Key("tenuto.standing")
	orchestrationKey = attribute.Key("tenuto.orchestration")
	activityKey      = attribute.Key("tenuto.activity")
	outcomeKey       = attribute.Key("tenuto.outcome")
	placeKey         = attribute.Key("tenuto.place")
	partitionKey     = attribute.Key("tenuto.partition")
)

// metrics are the figures of a node, for any number of meter providers. What is
// counted anyway is read when somebody collects; what has to be recorded as it
// happens is recorded by those instruments that are enabled.
type metrics struct {
	node *Node
	list atomic.Pointer[[]*instruments]

	mu     sync.Mutex // guards what is below, and is held while figures are read
	closed bool
	census []*census // by group
}

func newMetrics(n *Node) *metrics {
	m := &metrics{node: n}
	m.list.Store(new([]*instruments))
	return m
}

// attach has the figures collected by a provider too, until close.
func (m *metrics) attach(provider metric.MeterProvider) error {
	// Without the lock: a provider that collects holds its own and asks for ours.
	set, err := newInstruments(m, provider.Meter(scope))
	if err != nil {
		return err
	}
	if !m.add(set) {
		return errors.Join(ErrClosed, set.registration.Unregister())
	}
	return nil
}

func (m *metrics) add(set *instruments) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	list := append(slices.Clone(*m.list.Load()), set)
	m.list.Store(&list)
	return true
}

// close ends the collecting. No figure is read after that.
func (m *metrics) close() {
	m.mu.Lock()
	m.closed = true
	list := m.list.Swap(new([]*instruments))
	m.mu.Unlock()
	for _, set := range *list {
		_ = set.registration.Unregister() // it fails for one that is not registered
	}
}

// taps passes on what the journal of a group measures.
func (m *metrics) taps(g *group) journal.Taps {
	tap := func(of func(*instruments) metric.Float64Histogram, unit float64) func(uint64) {
		return func(v uint64) {
			for _, set := range *m.list.Load() {
				of(set).Record(context.Background(), float64(v)/unit, set.grouped[g.number]...)
			}
		}
	}
	nanos := float64(time.Second)
	return journal.Taps{
		QueueDelay:   tap(func(s *instruments) metric.Float64Histogram { return s.queueDelay }, nanos),
		EntryRecords: tap(func(s *instruments) metric.Float64Histogram { return s.entryRecords }, 1),
		EntryBytes:   tap(func(s *instruments) metric.Float64Histogram { return s.entrySize }, 1),
		CommitDelay:  tap(func(s *instruments) metric.Float64Histogram { return s.commitDuration }, nanos),
		LogWrite:     tap(func(s *instruments) metric.Float64Histogram { return s.logWriteDuration }, nanos),
		SnapshotTime: tap(func(s *instruments) metric.Float64Histogram { return s.snapshotDuration }, nanos),
	}
}

// committed counts the starts of runs and the ends of executions.
func (m *metrics) committed(instance string, events []*journalpb.Event) {
	started := events[0].GetOrchestrationStarted()
	outcome := outcomeOf(events[len(events)-1])
	if started == nil && outcome == "" {
		return
	}
	for _, set := range *m.list.Load() {
		if !set.ended.Enabled(context.Background()) {
			continue
		}
		if started != nil {
			set.started.Add(context.Background(), 1, labelsOf(set.orchestrations, started.Name).all...)
		}
		if outcome == "" {
			continue
		}
		if known, ok := m.node.of(instance).journal.Instance(instance); ok {
			set.ended.Add(context.Background(), 1, labelsOf(set.orchestrations, known.Name).by[outcome]...)
		}
	}
}

// outcomes are the ends of executions, in the order of their events' types.
var outcomes = [...]State{Completed, Failed, Cancelled, Terminated, ContinuedAsNew}

// outcomeOf returns "" for an event that ends no execution.
func outcomeOf(event *journalpb.Event) State {
	if arm := event.Arm(); journalpb.Terminal(arm) {
		return outcomes[arm-journalpb.ArmOrchestrationCompleted]
	}
	return ""
}

func (m *metrics) timerFired(late time.Duration) {
	for _, set := range *m.list.Load() {
		set.timerLateness.Record(context.Background(), late.Seconds(), set.plain...)
	}
}

// attempted records an attempt; how long it had waited, of first ones alone,
// because others have paused as well.
func (m *metrics) attempted(a *replay.Attempt, waited, ran time.Duration, outcome actors.AttemptOutcome) {
	for _, set := range *m.list.Load() {
		if !set.attemptDuration.Enabled(context.Background()) {
			continue
		}
		options := labelsOf(set.activities, a.Name)
		set.attemptDuration.Record(context.Background(), ran.Seconds(), options.by[attemptOutcomes[outcome]]...)
		if a.Number == 1 && waited >= 0 {
			set.activityDelay.Record(context.Background(), waited.Seconds(), options.all...)
		}
	}
}

var attemptOutcomes = [...]State{
	actors.AttemptCompleted: Completed, actors.AttemptFailed: Failed, actors.AttemptPending: State(ActivityPending),
}

// AddMeterProvider records the metrics of this node with one more provider, beside
// Config.MeterProvider, until the node is closed; METRICS.md lists them. Package
// cluster/prometheus uses it. After [Node.Close] it returns [ErrClosed].
func (n *Node) AddMeterProvider(provider metric.MeterProvider) error {
	if err := n.check(); err != nil {
		return err
	}
	if provider == nil {
		return &InputError{"meter provider", "is nil"}
	}
	return n.metrics.attach(provider)
}

// observer tells metrics and traces what the actors do.
type observer struct {
	metrics *metrics
	tracing *tracing // nil: off
}

// Committed implements actors.Observer.
func (o *observer) Committed(instance string, execution uint64, events []*journalpb.Event) {
	o.metrics.committed(instance, events)
	if last := events[len(events)-1]; o.tracing != nil && journalpb.Terminal(last.Arm()) {
		o.tracing.ended(instance, execution, last)
	}
}

// TimerFired implements actors.Observer.
func (o *observer) TimerFired(late time.Duration) { o.metrics.timerFired(late) }

// Attempted implements actors.Observer.
func (o *observer) Attempted(a *replay.Attempt, waited, ran time.Duration, outcome actors.AttemptOutcome) {
	o.metrics.attempted(a, waited, ran, outcome)
}
