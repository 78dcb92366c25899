package actors

import (
	"fmt"

	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Limits bound one instance. Zero values mean defaults.
type Limits struct {
	// Open is the most operations that are open at once: activities, timers, children and awaited
	// events. An instance that exceeds it is terminated with that reason. Defaults to 10,000.
	Open int
	// Buffered and BufferedBytes bound the external events that wait for code to take them, and
	// the bytes of their payloads. Further events are rejected with a [BusyError]. They default to
	// 10,000 and 16 MiB.
	Buffered      int
	BufferedBytes int
	// HistoryEvents and HistoryBytes bound the history of an execution, in events and in bytes of
	// payloads. An instance that exceeds them is terminated with that reason: it should have
	// continued as new. They default to 200,000 and 64 MiB.
	HistoryEvents int
	HistoryBytes  int
}

const (
	openDefault          = 10_000
	bufferedDefault      = 10_000
	bufferedBytesDefault = 16 << 20
	historyEventsDefault = 200_000
	historyBytesDefault  = 64 << 20
)

// WithDefaults returns the limits with defaults instead of values that are not positive.
func (l Limits) WithDefaults() Limits {
	orDefault(&l.Open, openDefault)
	orDefault(&l.Buffered, bufferedDefault)
	orDefault(&l.BufferedBytes, bufferedBytesDefault)
	orDefault(&l.HistoryEvents, historyEventsDefault)
	orDefault(&l.HistoryBytes, historyBytesDefault)
	return l
}

// exceededLimit describes the limit that an execution has exceeded; "" if none.
func (l *Limits) exceededLimit(size engine.Size) string {
	switch {
	case size.Open > l.Open:
		return fmt.Sprintf("%d operations are open, the limit is %d: await some before starting more, or use Map", size.Open, l.Open)
	case size.Events > l.HistoryEvents:
		return fmt.Sprintf("the history has %d events, the limit is %d: continue as new", size.Events, l.HistoryEvents)
	case size.Bytes > l.HistoryBytes:
		return fmt.Sprintf("the history has %d bytes of payloads, the limit is %d: continue as new, or pass references", size.Bytes, l.HistoryBytes)
	}
	return ""
}

// isBufferFull reports whether one more external event of that name would exceed the limits.
func (l *Limits) isBufferFull(x *engine.Execution, name string) bool {
	size := x.Size()
	return (size.Buffered >= l.Buffered || size.BufferedBytes >= l.BufferedBytes) && !x.HasSubscription(name)
}
