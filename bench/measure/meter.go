package measure

import (
	"runtime"
	"runtime/metrics"
	"time"
)

// A Meter measures time and allocations of this process between start and stop.
type Meter struct {
	began     time.Time
	processor time.Duration
	objects   uint64
	bytes     uint64
}

// StartMeter collects the garbage of earlier work, so that it does not affect the run, and starts a
// meter.
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

// Stop adds the rate of the operations since the start and the allocations of each to the
// result, and returns the elapsed time.
func (m *Meter) Stop(r *Result, name string, operations int) time.Duration {
	took := m.Elapsed()
	objects, bytes := allocated()
	r.AddRate(name, operations, took)
	m.addAllocations(r, name, operations, objects, bytes)
	return took
}

// StopCost adds processor time and allocations of each operation since the start to the
// result, without a rate.
func (m *Meter) StopCost(r *Result, name string, operations int) {
	processor := ProcessorTime() - m.processor
	objects, bytes := allocated()
	r.Add(Metric{Name: name + ": processor time each", Unit: Duration, Value: float64(processor) / float64(max(1, operations))})
	m.addAllocations(r, name, operations, objects, bytes)
}

func (m *Meter) addAllocations(r *Result, name string, operations int, objects, bytes uint64) {
	each := float64(max(1, operations))
	r.Add(Metric{Name: name + ": allocations each", Unit: Count, Value: float64(objects-m.objects) / each})
	r.Add(Metric{Name: name + ": allocated each", Unit: Bytes, Value: float64(bytes-m.bytes) / each})
}

func allocated() (objects, bytes uint64) {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64(), s[1].Value.Uint64()
}

// Retained collects garbage and returns the bytes in the heap and in stacks of this process.
func Retained() uint64 {
	// Finalizers and pools release memory only with the second collection.
	runtime.GC()
	runtime.GC()
	return liveBytes()
}

// liveBytes returns the current bytes in the heap and in stacks.
func liveBytes() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64() + s[1].Value.Uint64()
}
