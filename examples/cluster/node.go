package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay"
)

// nodeEnv is the environment variable with the settings of a node. It makes a process of this
// program run that node.
const nodeEnv = "TENUTO_EXAMPLE_NODE"

// Settings are the settings of a node.
type Settings struct {
	ID, Address, Dir string
	Peers            []cluster.Peer
}

var (
	Step   = replay.Activity[string, string]("step")
	Errand = replay.Orchestration[string, []string]("errand")
)

// errand runs two steps with a pause between them, and returns the nodes that ran them.
func errand(ctx *replay.Context, name string) ([]string, error) {
	first, err := Step.Call(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := ctx.Sleep(100 * time.Millisecond); err != nil {
		return nil, err
	}
	second, err := Step.Call(ctx, name)
	return []string{first, second}, err
}

// runNode runs a node until the program that started it ends.
func runNode(encoded string) error {
	var settings Settings
	if err := json.Unmarshal([]byte(encoded), &settings); err != nil {
		return err
	}
	signal.Ignore(os.Interrupt) // only the parent handles it
	step := func(context.Context, string) (string, error) { return settings.ID, nil }
	config := cluster.Config{
		NodeID: settings.ID, Listen: settings.Address, Dir: settings.Dir, Peers: settings.Peers,
		Definitions: append(shipmentDefinitions(), Step.Bind(step), Errand.Bind(errand)),
		Logger:      slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	node, err := cluster.Start(context.Background(), config)
	for errors.Is(err, addressInUse) { // taken while the node was down
		time.Sleep(100 * time.Millisecond)
		node, err = cluster.Start(context.Background(), config)
	}
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return node.Close()
}
