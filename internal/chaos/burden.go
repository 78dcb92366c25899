package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

// A burden is what a fleet has open while faults are made: instances that wait with a
// timer and an activity each. Whoever begins to lead takes them all up.
type burden struct {
	fleet  *fleet
	count  int
	memory int // the most that a node's process was seen to take, bytes
}

// lay starts the instances, a share through each node.
func (b *burden) lay(ctx context.Context, out io.Writer) error {
	if b.count == 0 {
		return nil
	}
	began := time.Now()
	errs := make([]error, len(b.fleet.nodes))
	var filling sync.WaitGroup
	for i, node := range b.fleet.nodes {
		share := host.Filling{Prefix: "open-" + node.id, Count: b.count / len(b.fleet.nodes)}
		filling.Go(func() { errs[i] = b.fleet.post(ctx, node, host.FillPath, share, new(struct{})) })
	}
	filling.Wait()
	fmt.Fprintf(out, "%d instances were opened in %v\n", b.count, time.Since(began).Round(time.Second))
	return errors.Join(errs...)
}

// weigh looks how much memory the nodes take.
func (b *burden) weigh() {
	for _, node := range b.fleet.nodes {
		if bytes, err := residentBytes(node.pid()); err == nil {
			b.memory = max(b.memory, bytes)
		}
	}
}

// tell writes what it took to take the burden up.
func (b *burden) tell(out io.Writer) error {
	if b.count == 0 {
		return nil
	}
	logs, err := filepath.Glob(filepath.Join(b.fleet.dir, "*.log"))
	if err != nil {
		return err
	}
	var took []time.Duration
	for _, log := range logs {
		if err := eachLine(log, func(line string) {
			if operations, d, ok := takenUpIn(line); ok && operations >= b.count/(2*b.fleet.pattern.Groups) {
				took = append(took, d)
			}
		}); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "taken up %d times, in %v (p50), %v at most; a node took %d MB at most\n",
		len(took), quantile(took, 0.5), quantile(took, 1), b.memory>>20)
	return nil
}

// takenUpIn reads a line of a node's log that tells that a new leader has taken up what
// is open.
func takenUpIn(line string) (operations int, took time.Duration, ok bool) {
	_, fields, ok := strings.Cut(line, `msg="open operations taken up"`)
	for field := range strings.FieldsSeq(fields) {
		switch key, value, _ := strings.Cut(field, "="); key {
		case "operations":
			operations, _ = strconv.Atoi(value)
		case "took":
			took, _ = time.ParseDuration(value)
		}
	}
	return operations, took, ok
}
