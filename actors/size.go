package actors

import (
	"fmt"

	"github.com/tenuto-dev/tenuto/replay"
)

// Limits bound what one instance may come to. Zero values mean defaults.
type Limits struct {
	// The most operations that are open at once: activities, timers, children and
	// awaited events. An instance that asks for more is terminated, with the
	// reason. Defaults to 10,000.
	Open int
	// The most external events that wait for code to take them, and the bytes of
	// their payloads. Further ones are refused with a [BusyError]. Default to
	// 10,000 and 16 MiB.
	Buffered      int
	BufferedBytes int
	// The longest history of an execution, in events and in bytes of payloads. An
	// instance that goes on beyond is terminated, with the reason: it should have
	// continued as new. Default to 200,000 and 64 MiB.
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

func (l Limits) withDefaults() Limits {
	orDefault(&l.Open, openDefault)
	orDefault(&l.Buffered, bufferedDefault)
	orDefault(&l.BufferedBytes, bufferedBytesDefault)
	orDefault(&l.HistoryEvents, historyEventsDefault)
	orDefault(&l.HistoryBytes, historyBytesDefault)
	return l
}

// exceeded says which limit an execution has gone beyond; empty if none.
func (l *Limits) exceeded(size replay.Size) string {
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

// full tells whether one more external event of that name would be too many.
func (l *Limits) full(x *replay.Execution, name string) bool {
	size := x.Size()
	return (size.Buffered >= l.Buffered || size.BufferedBytes >= l.BufferedBytes) && !x.Awaits(name)
}
