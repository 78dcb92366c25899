package telemetry

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/tenuto-dev/tenuto/actors"
)

// Bucket bounds of histograms: times in seconds, counts, sizes in bytes.
var (
	timeBounds = []float64{
		0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300,
	}
	countBounds = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048}
	sizeBounds  = []float64{256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20}
)

// A metricSet holds the instruments of one meter provider.
type metricSet struct {
	started, ended metric.Int64Counter

	attemptDuration, activityDelay, timerLateness metric.Float64Histogram
	queueDelay, entryRecords, entrySize           metric.Float64Histogram
	commitDuration, logWriteDuration              metric.Float64Histogram
	snapshotDuration                              metric.Float64Histogram

	activities       map[string]*labels[metric.RecordOption]
	orchestrations   map[string]*labels[metric.AddOption]
	nodeOptions      []metric.RecordOption   // with the node's attribute only
	partitionOptions [][]metric.RecordOption // by partition
	registration     metric.Registration
}

// labels are the recording options for one definition: attributes with its name. They are made
// once, so that recording in a turn allocates nothing.
type labels[O any] struct {
	withoutOutcome []O
	byOutcome      map[actors.State][]O // also with the outcome
}

// otherName replaces the names of definitions that this node has no code for. So the node's
// definitions bound the number of attribute values.
const otherName = "other"

func newLabels[O any](node string, key attribute.Key, names map[string]bool, outcomes []actors.State) map[string]*labels[O] {
	all := make(map[string]*labels[O])
	option := func(attributes ...attribute.KeyValue) []O {
		return []O{any(metric.WithAttributeSet(attribute.NewSet(attributes...))).(O)}
	}
	for name := range names {
		l := &labels[O]{withoutOutcome: option(nodeKey.String(node), key.String(name)), byOutcome: make(map[actors.State][]O)}
		for _, outcome := range outcomes {
			l.byOutcome[outcome] = option(nodeKey.String(node), key.String(name), outcomeKey.String(string(outcome)))
		}
		all[name] = l
	}
	return all
}

func labelsOf[O any](all map[string]*labels[O], name string) *labels[O] {
	if l := all[name]; l != nil {
		return l
	}
	return all[otherName]
}

func newMetricSet(m *Metrics, meter metric.Meter) (*metricSet, error) {
	node := m.config.Node
	activities, orchestrations := map[string]bool{otherName: true}, map[string]bool{otherName: true}
	for _, definition := range m.config.Definitions {
		if name, ok := definition.Activity(); ok {
			activities[name] = true
		} else if name, _, ok := definition.Orchestration(); ok {
			orchestrations[name] = true
		}
	}
	s := &metricSet{
		activities:     newLabels[metric.RecordOption](node, activityKey, activities, attemptOutcomes[:]),
		orchestrations: newLabels[metric.AddOption](node, orchestrationKey, orchestrations, outcomes[:]),
		nodeOptions:    []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(nodeKey.String(node)))},
	}
	for i := range m.config.Partitions {
		attributes := attribute.NewSet(append(m.attributesOf(i), nodeKey.String(node))...)
		s.partitionOptions = append(s.partitionOptions, []metric.RecordOption{metric.WithAttributeSet(attributes)})
	}
	if err := s.create(meter); err != nil {
		return nil, err
	}
	if m.config.AttemptsOnly {
		return s, nil
	}
	var err error
	s.registration, err = registerObservables(m, meter)
	return s, err
}

// create makes the instruments that record events as they happen.
func (s *metricSet) create(meter metric.Meter) error {
	var failures []error
	histogram := func(into *metric.Float64Histogram, name, unit string, bounds []float64, what string) {
		var err error
		*into, err = meter.Float64Histogram(name, metric.WithUnit(unit), metric.WithDescription(what),
			metric.WithExplicitBucketBoundaries(bounds...))
		failures = append(failures, err)
	}
	counter := func(into *metric.Int64Counter, name, unit, what string) {
		var err error
		*into, err = meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(what))
		failures = append(failures, err)
	}
	counter(&s.started, "tenuto.orchestrations.started", "{run}", "Runs whose start was committed while this node led.")
	counter(&s.ended, "tenuto.orchestrations.ended", "{execution}", "Executions whose end was committed while this node led.")
	histogram(&s.attemptDuration, "tenuto.activity.attempt.duration", "s", timeBounds, "Run time of activity functions on this node.")
	histogram(&s.activityDelay, "tenuto.activity.delay", "s", timeBounds, "From recording an activity to its first attempt on this node, without the transfer to this node.")
	histogram(&s.timerLateness, "tenuto.timer.lateness", "s", timeBounds, "Delay of timers: from their due time until they fired.")
	histogram(&s.queueDelay, "tenuto.journal.queue.delay", "s", timeBounds, "How long the oldest record of an entry waited in the queue.")
	histogram(&s.entryRecords, "tenuto.journal.entry.records", "{record}", countBounds, "Records in one Raft entry.")
	histogram(&s.entrySize, "tenuto.journal.entry.size", "By", sizeBounds, "Bytes of one Raft entry.")
	histogram(&s.commitDuration, "tenuto.journal.commit.duration", "s", timeBounds, "From proposing an entry until this node applied it.")
	histogram(&s.logWriteDuration, "tenuto.journal.log.write.duration", "s", timeBounds, "Duration of writes of the log and of votes, each synced to disk.")
	histogram(&s.snapshotDuration, "tenuto.journal.snapshot.duration", "s", timeBounds, "Duration of this node's snapshots.")
	return errors.Join(failures...)
}

// registerObservables makes the instruments that are read when a provider collects.
func registerObservables(m *Metrics, meter metric.Meter) (metric.Registration, error) {
	var all []metric.Observable
	var failures []error
	created := make([]metric.Float64Observable, len(observables))
	for i, f := range observables {
		var err error
		switch f.kind {
		case observableCounter:
			created[i], err = meter.Float64ObservableCounter(f.name, metric.WithUnit(f.unit), metric.WithDescription(f.description))
		case observableGauge:
			created[i], err = meter.Float64ObservableGauge(f.name, metric.WithUnit(f.unit), metric.WithDescription(f.description))
		}
		failures = append(failures, err)
		all = append(all, created[i])
	}
	if err := errors.Join(failures...); err != nil {
		return nil, err
	}
	node := nodeKey.String(m.config.Node)
	return meter.RegisterCallback(func(ctx context.Context, to metric.Observer) error {
		sample, ok := m.sample(ctx)
		if !ok {
			return nil
		}
		for i, f := range observables {
			f.read(sample, func(value float64, attributes ...attribute.KeyValue) {
				to.ObserveFloat64(created[i], value, metric.WithAttributes(append(attributes, node)...))
			})
		}
		return nil
	}, all...)
}
