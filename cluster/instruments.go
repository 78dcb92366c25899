package cluster

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Bounds of the buckets of histograms: of times in seconds, and of counts and
// bytes.
var (
	timeBounds = []float64{
		0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300,
	}
	countBounds = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048}
	sizeBounds  = []float64{256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20}
)

// instruments are those of one meter provider.
type instruments struct {
	started, ended metric.Int64Counter

	attemptDuration, activityDelay, timerLateness metric.Float64Histogram
	queueDelay, entryRecords, entrySize           metric.Float64Histogram
	commitDuration, logWriteDuration              metric.Float64Histogram
	snapshotDuration                              metric.Float64Histogram

	activities     map[string]*labels[metric.RecordOption]
	orchestrations map[string]*labels[metric.AddOption]
	plain          []metric.RecordOption   // no name
	grouped        [][]metric.RecordOption // no name, but the group's, if there are several
	registration   metric.Registration
}

// labels are attributes with the name of a definition of this node. They are made
// once, so that what is recorded on the way of a turn allocates nothing.
type labels[O any] struct {
	all []O
	by  map[State][]O // with an outcome
}

// nameless is the name under which what this node has no code for is recorded:
// the names are as many as the definitions, whatever is asked for.
const nameless = "other"

func newLabels[O any](node string, key attribute.Key, names map[string]bool, outcomes []State) map[string]*labels[O] {
	all := make(map[string]*labels[O])
	option := func(attributes ...attribute.KeyValue) []O {
		return []O{any(metric.WithAttributeSet(attribute.NewSet(attributes...))).(O)}
	}
	for name := range names {
		l := &labels[O]{all: option(nodeKey.String(node), key.String(name)), by: make(map[State][]O)}
		for _, outcome := range outcomes {
			l.by[outcome] = option(nodeKey.String(node), key.String(name), outcomeKey.String(string(outcome)))
		}
		all[name] = l
	}
	return all
}

func labelsOf[O any](all map[string]*labels[O], name string) *labels[O] {
	if l := all[name]; l != nil {
		return l
	}
	return all[nameless]
}

func newInstruments(m *metrics, meter metric.Meter) (*instruments, error) {
	node := m.node.config.NodeID
	activities, orchestrations := map[string]bool{nameless: true}, map[string]bool{nameless: true}
	for _, definition := range m.node.config.Definitions {
		if name, ok := definition.Activity(); ok {
			activities[name] = true
		} else if name, _, ok := definition.Orchestration(); ok {
			orchestrations[name] = true
		}
	}
	s := &instruments{
		activities:     newLabels[metric.RecordOption](node, activityKey, activities, attemptOutcomes[:]),
		orchestrations: newLabels[metric.AddOption](node, orchestrationKey, orchestrations, outcomes[:]),
		plain:          []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(nodeKey.String(node)))},
	}
	for _, g := range m.node.groups {
		attributes := attribute.NewSet(append(g.attributes(), nodeKey.String(node))...)
		s.grouped = append(s.grouped, []metric.RecordOption{metric.WithAttributeSet(attributes)})
	}
	if err := s.make(meter); err != nil {
		return nil, err
	}
	var err error
	s.registration, err = newFigures(m, meter)
	return s, err
}

// make makes the instruments that are recorded as things happen.
func (s *instruments) make(meter metric.Meter) error {
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
	histogram(&s.attemptDuration, "tenuto.activity.attempt.duration", "s", timeBounds, "How long the bodies of attempts ran on this node.")
	histogram(&s.activityDelay, "tenuto.activity.delay", "s", timeBounds, "From the recording of an activity to its first attempt, on this node, without its way to this node.")
	histogram(&s.timerLateness, "tenuto.timer.lateness", "s", timeBounds, "How long after their time timers rang.")
	histogram(&s.queueDelay, "tenuto.journal.queue.delay", "s", timeBounds, "How long the oldest record of an entry waited to be packed.")
	histogram(&s.entryRecords, "tenuto.journal.entry.records", "{record}", countBounds, "Records in one Raft entry.")
	histogram(&s.entrySize, "tenuto.journal.entry.size", "By", sizeBounds, "Bytes of one Raft entry.")
	histogram(&s.commitDuration, "tenuto.journal.commit.duration", "s", timeBounds, "From the proposal of an entry until it was applied here.")
	histogram(&s.logWriteDuration, "tenuto.journal.log.write.duration", "s", timeBounds, "Writes of the log and of votes, each synced to disk.")
	histogram(&s.snapshotDuration, "tenuto.journal.snapshot.duration", "s", timeBounds, "How long own snapshots took.")
	return errors.Join(failures...)
}

// newFigures makes the instruments that are read when somebody collects.
func newFigures(m *metrics, meter metric.Meter) (metric.Registration, error) {
	var all []metric.Observable
	var failures []error
	made := make([]metric.Float64Observable, len(figures))
	for i, f := range figures {
		var err error
		switch f.kind {
		case counted:
			made[i], err = meter.Float64ObservableCounter(f.name, metric.WithUnit(f.unit), metric.WithDescription(f.what))
		case level:
			made[i], err = meter.Float64ObservableGauge(f.name, metric.WithUnit(f.unit), metric.WithDescription(f.what))
		}
		failures = append(failures, err)
		all = append(all, made[i])
	}
	if err := errors.Join(failures...); err != nil {
		return nil, err
	}
	node := nodeKey.String(m.node.config.NodeID)
	return meter.RegisterCallback(func(ctx context.Context, to metric.Observer) error {
		sample, ok := m.sample(ctx)
		if !ok {
			return nil
		}
		for i, f := range figures {
			f.read(sample, func(value float64, attributes ...attribute.KeyValue) {
				to.ObserveFloat64(made[i], value, metric.WithAttributes(append(attributes, node)...))
			})
		}
		return nil
	}, all...)
}
