package measure

import (
	"runtime"
	"runtime/metrics"
	"time"
)

// A Meter measures time and allocations of this process between its start and
// its stop.
type Meter struct {
	began     time.Time
	processor time.Duration
	objects   uint64
	bytes     uint64
}

// StartMeter collects garbage, so that a run does not pay for what was before
// it, and starts a meter.
func StartMeter() *Meter {
	runtime.GC()
	m := &Meter{}
	m.objects, m.bytes = allocated()
	m.processor = ProcessorTime()
	m.began = time.Now()
	return m
}

// Elapsed returns the time since the start.
func (m *Meter) Elapsed() time.Duration { return time.Since(m.began) }

// Stop adds to the result the rate of the operations that were done since the
// start, and the allocations for each, and returns how long they took.
func (m *Meter) Stop(r *Result, name string, operations int) time.Duration {
	took := m.Elapsed()
	objects, bytes := allocated()
	r.AddRate(name, operations, took)
	m.addAllocations(r, name, operations, objects, bytes)
	return took
}

// StopCost adds to the result what this process has spent on each of the
// operations since the start: processor time and allocations, but no rate, for
// operations that come when they come.
func (m *Meter) StopCost(r *Result, name string, operations int) {
	processor := ProcessorTime() - m.processor
	objects, bytes := allocated()
	r.Add(Figure{Name: name + ": processor time each", Unit: Duration, Value: float64(processor) / float64(max(1, operations))})
	m.addAllocations(r, name, operations, objects, bytes)
}

func (m *Meter) addAllocations(r *Result, name string, operations int, objects, bytes uint64) {
	each := float64(max(1, operations))
	r.Add(Figure{Name: name + ": allocations each", Unit: Count, Value: float64(objects-m.objects) / each})
	r.Add(Figure{Name: name + ": allocated each", Unit: Bytes, Value: float64(bytes-m.bytes) / each})
}

func allocated() (objects, bytes uint64) {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64(), s[1].Value.Uint64()
}

// Retained collects garbage and returns how many bytes this process then holds,
// in its heap and in the stacks of its goroutines.
func Retained() uint64 {
	// Finalizers and pools let go of things only with the second.
	runtime.GC()
	runtime.GC()
	return held()
}

// held returns how many bytes the heap and the stacks take now.
func held() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64() + s[1].Value.Uint64()
}
