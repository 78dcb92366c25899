package link

import (
	"context"
	"io"
	"time"
)

// Bounds on the data in flight in one direction of a connection.
const (
	chunkBytesMax = 32 << 10
	chunksMax     = 64
)

type chunk struct {
	data []byte
	due  time.Time
}

// forward copies data under the conditions of a direction, until either end is closed.
func (m *Mesh) forward(ctx context.Context, from io.Reader, to io.Writer, d direction) {
	chunks := make(chan chunk, chunksMax)
	m.goroutines.Go(func() {
		defer close(chunks)
		for {
			data := make([]byte, chunkBytesMax)
			n, err := from.Read(data)
			if n > 0 {
				select {
				case chunks <- chunk{data[:n], time.Now().Add(m.condition(d).latency())}:
				case <-ctx.Done():
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	for c := range chunks {
		if !sleepUntil(ctx, c.due) || !m.awaitUncut(ctx, d) {
			return
		}
		if _, err := to.Write(c.data); err != nil {
			return
		}
	}
}

func sleepUntil(ctx context.Context, due time.Time) bool {
	wait := time.Until(due)
	if wait <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
