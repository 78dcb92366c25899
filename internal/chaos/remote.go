package main

import (
	"context"

	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

// remoteID names the remote client, which has a place in the network like a node.
const remoteID = "remote"

// startRemote starts the process that calls the cluster from outside. It is never restarted: its
// client must find the nodes again after every fault.
func (f *fleet) startRemote(ctx context.Context) error {
	if _, _, err := f.network.Add(remoteID); err != nil {
		return err
	}
	config := host.Config{NodeID: remoteID, Dial: f.addresses}
	var err error
	if config.Keys, err = f.keys.issueClient(remoteID); err != nil {
		return err
	}
	remote, err := f.process(config)
	if err != nil {
		return err
	}
	f.remote = remote
	return remote.start(ctx)
}
