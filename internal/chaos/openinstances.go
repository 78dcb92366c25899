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

// openInstances are instances that stay open while faults are injected, each with a timer and an
// activity. Every new leader recovers all of them.
type openInstances struct {
	fleet  *fleet
	count  int
	memory int // the most memory that a node's process used, in bytes
}

// start starts the instances, an equal share through each node.
func (b *openInstances) start(ctx context.Context, out io.Writer) error {
	if b.count == 0 {
		return nil
	}
	began := time.Now()
	errs := make([]error, len(b.fleet.nodes))
	var filling sync.WaitGroup
	for i, node := range b.fleet.nodes {
		share := host.StartOpenRequest{Prefix: "open-" + node.id, Count: b.count / len(b.fleet.nodes)}
		filling.Go(func() { errs[i] = b.fleet.post(ctx, node, host.FillPath, share, new(struct{})) })
	}
	filling.Wait()
	fmt.Fprintf(out, "%d open instances started in %v\n", b.count, time.Since(began).Round(time.Second))
	return errors.Join(errs...)
}

// sampleMemory samples the memory of the nodes.
func (b *openInstances) sampleMemory() {
	for _, node := range b.fleet.nodes {
		if bytes, err := residentBytes(node.pid()); err == nil {
			b.memory = max(b.memory, bytes)
		}
	}
}

// report writes how long recoveries of the open instances took.
func (b *openInstances) report(out io.Writer) error {
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
			if operations, d, ok := parseRecovery(line); ok && operations >= b.count/(2*b.fleet.template.Partitions) {
				took = append(took, d)
			}
		}); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "open operations recovered %d times, in %v (p50), %v (max); a node used %d MB (max)\n",
		len(took), quantile(took, 0.5), quantile(took, 1), b.memory>>20)
	return nil
}

// parseRecovery parses the log line of a new leader that has recovered the open operations.
func parseRecovery(line string) (operations int, took time.Duration, ok bool) {
	_, fields, ok := strings.Cut(line, `msg="open operations recovered"`)
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
