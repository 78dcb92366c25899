package telemetry

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
	"github.com/tenuto-dev/tenuto/actors/activity"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// scope is the OpenTelemetry instrumentation scope of this module's metrics and spans.
const scope = "github.com/tenuto-dev/tenuto"

// Attributes of metrics and spans. Instance IDs are attributes of spans only.
const (
	nodeKey          = attribute.Key("tenuto.node")
	memberKey        = attribute.Key("tenuto.member")
	boundKey         = attribute.Key("tenuto.bound")
	stateKey         = attribute.Key("tenuto.state")
	roleKey          = attribute.Key("tenuto.role")
	livenessKey      = attribute.Key("tenuto.liveness")
	orchestrationKey = attribute.Key("tenuto.orchestration")
	activityKey      = attribute.Key("tenuto.activity")
	outcomeKey       = attribute.Key("tenuto.outcome")
	locationKey      = attribute.Key("tenuto.location")
	partitionKey     = attribute.Key("tenuto.partition")
)

// A Source is the node whose metrics are recorded.
type Source interface {
	// Sample returns the values of all observables, except instances by state.
	Sample() *Sample
	// CountInstances counts the instances of a partition by state. It returns false if ctx ends or
	// the node stops first.
	CountInstances(ctx context.Context, partition int) (map[actors.State]int, bool)
	// OrchestrationOf returns the name of an instance's orchestration.
	OrchestrationOf(instance string) (name string, ok bool)
}

// Config holds what bounds the values of attributes.
type Config struct {
	Node        string
	Partitions  int
	Definitions []replay.Definition
	Closed      error // that Attach returns after Close
	Rates       *Rates
	// AttemptsOnly says that there is no node: only instruments of attempts are made.
	AttemptsOnly bool
}

// Metrics records the metrics of a node for any number of meter providers. Observables are read
// when a provider collects; other instruments record events as they happen, if they are enabled.
type Metrics struct {
	config Config
	source Source
	sets   atomic.Pointer[[]*metricSet]

	mu             sync.Mutex // guards the fields below; held while observables are read
	closed         bool
	instanceCounts []*instanceCounts // by partition
}

// NewMetrics returns metrics without a provider.
func NewMetrics(config Config, source Source) *Metrics {
	m := &Metrics{config: config, source: source}
	m.sets.Store(new([]*metricSet))
	return m
}

// Attach records the metrics with one more meter provider, until Close.
func (m *Metrics) Attach(provider metric.MeterProvider) error {
	// Not under m.mu: a provider that collects holds its own lock and then takes m.mu.
	set, err := newMetricSet(m, provider.Meter(scope))
	if err != nil {
		return err
	}
	if !m.add(set) {
		if set.registration == nil {
			return m.config.Closed
		}
		return errors.Join(m.config.Closed, set.registration.Unregister())
	}
	return nil
}

func (m *Metrics) add(set *metricSet) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	list := append(slices.Clone(*m.sets.Load()), set)
	m.sets.Store(&list)
	return true
}

// Close detaches all meter providers. No observable is read afterwards.
func (m *Metrics) Close() {
	m.mu.Lock()
	m.closed = true
	list := m.sets.Swap(new([]*metricSet))
	m.mu.Unlock()
	for _, set := range *list {
		if set.registration != nil {
			_ = set.registration.Unregister() // fails only if not registered
		}
	}
}

// JournalObservers returns the observers of a partition's journal.
func (m *Metrics) JournalObservers(partition int) journal.Observers {
	histogram := func(of func(*metricSet) metric.Float64Histogram, unit float64) func(uint64) {
		return func(v uint64) {
			for _, set := range *m.sets.Load() {
				of(set).Record(context.Background(), float64(v)/unit, set.partitionOptions[partition]...)
			}
		}
	}
	nanos := float64(time.Second)
	return journal.Observers{
		QueueDelay:   histogram(func(s *metricSet) metric.Float64Histogram { return s.queueDelay }, nanos),
		EntryRecords: histogram(func(s *metricSet) metric.Float64Histogram { return s.entryRecords }, 1),
		EntryBytes:   histogram(func(s *metricSet) metric.Float64Histogram { return s.entrySize }, 1),
		CommitDelay:  histogram(func(s *metricSet) metric.Float64Histogram { return s.commitDuration }, nanos),
		LogWrite:     histogram(func(s *metricSet) metric.Float64Histogram { return s.logWriteDuration }, nanos),
		SnapshotTime: histogram(func(s *metricSet) metric.Float64Histogram { return s.snapshotDuration }, nanos),
	}
}

// countCommitted counts the starts of runs and the ends of executions.
func (m *Metrics) countCommitted(instance string, events []*journalpb.Event) {
	started := events[0].GetOrchestrationStarted()
	outcome := outcomeOf(events[len(events)-1])
	if started == nil && outcome == "" {
		return
	}
	m.config.Rates.count(started != nil, outcome)
	for _, set := range *m.sets.Load() {
		if !set.ended.Enabled(context.Background()) {
			continue
		}
		if started != nil {
			set.started.Add(context.Background(), 1, labelsOf(set.orchestrations, started.Name).withoutOutcome...)
		}
		if outcome == "" {
			continue
		}
		if name, ok := m.source.OrchestrationOf(instance); ok {
			set.ended.Add(context.Background(), 1, labelsOf(set.orchestrations, name).byOutcome[outcome]...)
		}
	}
}

// outcomes are the ends of executions, in the order of their event types.
var outcomes = [...]actors.State{
	actors.StateCompleted, actors.StateFailed, actors.StateCanceled, actors.StateTerminated, actors.StateContinuedAsNew,
}

// outcomeOf returns "" for an event that does not end an execution.
func outcomeOf(event *journalpb.Event) actors.State {
	if eventType := event.TypeNumber(); journalpb.IsTerminal(eventType) {
		return outcomes[eventType-journalpb.TypeOrchestrationCompleted]
	}
	return ""
}

func (m *Metrics) recordTimerFired(late time.Duration) {
	for _, set := range *m.sets.Load() {
		set.timerLateness.Record(context.Background(), late.Seconds(), set.nodeOptions...)
	}
}

// recordAttempt records the duration of an attempt and, for first attempts, the delay. The delay of
// later attempts includes backoff.
func (m *Metrics) recordAttempt(a *replay.Attempt, waited, ran time.Duration, outcome actors.AttemptOutcome) {
	for _, set := range *m.sets.Load() {
		if !set.attemptDuration.Enabled(context.Background()) {
			continue
		}
		options := labelsOf(set.activities, a.Name)
		set.attemptDuration.Record(context.Background(), ran.Seconds(), options.byOutcome[attemptOutcomes[outcome]]...)
		if a.Number == 1 && waited >= 0 {
			set.activityDelay.Record(context.Background(), waited.Seconds(), options.withoutOutcome...)
		}
	}
}

var attemptOutcomes = [...]actors.State{
	actors.AttemptCompleted: actors.StateCompleted, actors.AttemptFailed: actors.StateFailed,
	actors.AttemptPending: actors.State(activity.Pending), actors.AttemptAbandoned: "abandoned",
}

// observer passes the actors' observations to metrics and traces.
type observer struct {
	metrics *Metrics
	tracing *Tracing // nil: off
}

// NewObserver returns an observer for the actors. tracing is nil if tracing is off.
func NewObserver(metrics *Metrics, tracing *Tracing) actors.Observer {
	return &observer{metrics, tracing}
}

// Committed implements actors.Observer.
func (o *observer) Committed(instance string, execution uint64, events []*journalpb.Event) {
	o.metrics.countCommitted(instance, events)
	if last := events[len(events)-1]; o.tracing != nil && journalpb.IsTerminal(last.TypeNumber()) {
		o.tracing.recordEnd(instance, execution, last)
	}
}

// TimerFired implements actors.Observer.
func (o *observer) TimerFired(late time.Duration) { o.metrics.recordTimerFired(late) }

// Attempted implements actors.Observer.
func (o *observer) Attempted(a *replay.Attempt, waited, ran time.Duration, outcome actors.AttemptOutcome) {
	o.metrics.recordAttempt(a, waited, ran, outcome)
}
