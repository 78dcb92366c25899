package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// lineEvery is how often the progress line is written.
const lineEvery = 100 * time.Millisecond

// A line is one line of a terminal that is written over and over.
type line struct {
	to io.Writer

	mu   sync.Mutex
	last time.Time
}

// say replaces the line, unless that was done a moment ago.
func (l *line) say(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.last) >= lineEvery {
		l.last = now
		fmt.Fprintf(l.to, "\r\x1b[K%s", what)
	}
}

// end leaves an empty line.
func (l *line) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprint(l.to, "\r\x1b[K")
}
