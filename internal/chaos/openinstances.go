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
func (o *openInstances) start(ctx context.Context, out io.Writer) error {
	if o.count == 0 {
		return nil
	}
	began := time.Now()
	errs := make([]error, len(o.fleet.nodes))
	var filling sync.WaitGroup
	for i, node := range o.fleet.nodes {
		share := host.StartOpenRequest{Prefix: "open-" + node.id, Count: o.count / len(o.fleet.nodes)}
		filling.Go(func() { errs[i] = o.fleet.post(ctx, node, host.FillPath, share, new(struct{})) })
	}
	filling.Wait()
	fmt.Fprintf(out, "%d open instances started in %v\n", o.count, time.Since(began).Round(time.Second))
	return errors.Join(errs...)
}

// sampleMemory samples the memory of the nodes.
func (o *openInstances) sampleMemory() {
	for _, node := range o.fleet.nodes {
		if bytes, err := residentBytes(node.pid()); err == nil {
			o.memory = max(o.memory, bytes)
		}
	}
}

// report writes how long recoveries of the open instances took.
func (o *openInstances) report(out io.Writer) error {
	if o.count == 0 {
		return nil
	}
	logs, err := filepath.Glob(filepath.Join(o.fleet.dir, "*.log"))
	if err != nil {
		return err
	}
	var took []time.Duration
	for _, log := range logs {
		if err := eachLine(log, func(line string) {
			if operations, d, ok := parseRecovery(line); ok && operations >= o.count/(2*o.fleet.template.Partitions) {
				took = append(took, d)
			}
		}); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "open operations recovered %d times, in %v (p50), %v (max); a node used %d MB (max)\n",
		len(took), quantile(took, 0.5), quantile(took, 1), o.memory>>20)
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
