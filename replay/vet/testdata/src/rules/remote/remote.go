// Package remote calls the cluster.
package remote

import (
	"context"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay"
	"rules/shop"
)

type service struct {
	ctx    context.Context
	node   *cluster.Node
	client *cluster.Client
}

func (s *service) buy(ctx *replay.Context, in string) (int, error) {
	background, cancel := s.background()
	defer cancel()
	_ = cluster.Send(background, s.client, in, shop.Approved, true)    // want `^calls cluster\.Send: it does I/O that is not recorded; do it in an activity, or start an instance with Call, Start or Chain of its handle$`
	_, _ = cluster.Call(background, s.client, shop.Buy, in, in)        // want `calls cluster\.Call: it does I/O`
	_, _ = s.client.Get(background, in)                                // want `calls cluster\.Client\.Get`
	_ = s.node.ID()                                                    // want `calls cluster\.Node\.ID`
	run, _ := cluster.StartRun(background, s.client, shop.Buy, in, in) // want `calls cluster\.StartRun`
	_, _ = run.Wait(background)                                        // want `calls cluster\.Run\.Wait`
	s.stop(in)                                                         // want `calls service\.stop, which calls cluster\.Client\.Terminate \(remote\.go:\d+\): it does I/O`
	wait := run.Wait                                                   // an argument of type context.Context, like an activity
	_ = wait
	_ = cluster.Tags(nil)
	_ = new(cluster.Status).Ended()
	return shop.Buy.Call(ctx, in)
}

func (s *service) background() (context.Context, func()) { return s.ctx, func() {} }

func (s *service) stop(id string) { // want stop:`cluster: calls cluster\.Client\.Terminate`
	_ = s.client.Terminate(s.ctx, id, "stopped")
}

// An activity may call the cluster.
func (s *service) charge(ctx context.Context, in string) (int, error) {
	s.stop(in)
	return cluster.Call(ctx, s.client, shop.Buy, in, in)
}

func (s *service) definitions() []replay.Definition {
	return []replay.Definition{shop.Buy.Bind(s.buy), shop.Charge.Bind(s.charge)}
}
