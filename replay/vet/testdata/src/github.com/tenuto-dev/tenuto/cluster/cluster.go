// Package cluster stands in for the real one, as package replay does:
// TestStub_MatchesClusterPackage checks it.
package cluster

import (
	"context"

	"github.com/tenuto-dev/tenuto/replay"
)

type (
	Client     struct{ address string }
	Node       struct{ id string }
	Run[O any] struct{ id string }
	Status     struct{ state string }
)

const stub = "this is no code to run"

func Call[I, O any](ctx context.Context, client *Client, orchestration replay.OrchestrationHandle[I, O], id string, input I, options ...replay.Option) (O, error) {
	panic(stub)
}
func Send[T any](ctx context.Context, client *Client, id string, event replay.EventHandle[T], data T, options ...replay.Option) error {
	panic(stub)
}
func StartRun[I, O any](ctx context.Context, client *Client, orchestration replay.OrchestrationHandle[I, O], id string, input I, options ...replay.Option) (*Run[O], error) {
	panic(stub)
}
func Tags(tags map[string]string) replay.Option { panic(stub) }

func (c *Client) Get(ctx context.Context, id string, options ...replay.Option) (*Status, error) {
	panic(stub)
}
func (c *Client) Terminate(ctx context.Context, id, reason string) error { panic(stub) }
func (n *Node) Client() *Client                                          { panic(stub) }
func (n *Node) ID() string                                               { panic(stub) }
func (r *Run[O]) Wait(ctx context.Context) (O, error)                    { panic(stub) }
func (s *Status) Ended() bool                                            { panic(stub) }
