package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// Photos are developed by the node without workers, by workers while there are some, and by the
// node again after the last has stopped.
func TestWorker(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	ctx, stopNode := context.WithCancel(t.Context())
	read, write := io.Pipe()
	var running sync.WaitGroup
	defer running.Wait()
	defer stopNode()
	running.Go(func() {
		if err := runNode(ctx, address, write); err != nil {
			t.Error(err)
		}
		_ = write.Close()
	})
	lines := bufio.NewScanner(read)
	awaitPlaces := func(wanted ...string) {
		t.Helper()
		for lines.Scan() {
			_, places, _ := strings.Cut(lines.Text(), " by ")
			all := true
			for _, place := range wanted {
				all = all && strings.Contains(places, place)
			}
			if all {
				return
			}
		}
		t.Fatalf("the node has ended before photos were developed by %q", wanted)
	}
	awaitPlaces(`["node" "node" "node" "node"]`)
	working, stopWorkers := context.WithCancel(t.Context())
	defer stopWorkers()
	for _, name := range []string{"first", "second"} {
		running.Go(func() {
			if err := runWorker(working, address, name); err != nil {
				t.Error(err)
			}
		})
	}
	awaitPlaces("first", "second")
	stopWorkers()
	awaitPlaces(`["node" "node" "node" "node"]`)
	stopNode()
	running.Go(func() { _, _ = io.Copy(io.Discard, read) }) // a line that is being written
}
