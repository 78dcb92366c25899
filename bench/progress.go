package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progressInterval is the minimum interval between updates.
const progressInterval = 100 * time.Millisecond

// A progressLine is one line of a terminal that is overwritten.
type progressLine struct {
	to io.Writer

	mu   sync.Mutex
	last time.Time
}

// update replaces the line, at most once per progressInterval.
func (l *progressLine) update(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.last) >= progressInterval {
		l.last = now
		fmt.Fprintf(l.to, "\r\x1b[K%s", what)
	}
}

// erase clears the line.
func (l *progressLine) erase() {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprint(l.to, "\r\x1b[K")
}
