package contexts

import (
	"context"
	"log/slog"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"rules/shop"
)

type service struct{ ctx context.Context }

func (s *service) buy(ctx *replay.Context, in string) (int, error) {
	call(context.Background())                                    // want `^calls context\.Background: use the \*replay\.Context; replay\.WithTimeout and replay\.WithCancel bound what is done in it$`
	_, cancel := context.WithTimeout(context.TODO(), time.Second) // want `calls context\.WithTimeout` `calls context\.TODO`
	cancel()
	call(s.ctx)     // want `uses s\.ctx, a context\.Context`
	call(current()) // want `calls current for a context\.Context`
	ctx.Log().InfoContext(context.Background(), "the logger asks for one")
	ctx.Log().LogAttrs(context.TODO(), slog.LevelInfo, "so does this")
	inner, end := replay.WithTimeout(ctx, time.Minute)
	defer end()
	return shop.Charge.Call(inner, in)
}

func call(ctx context.Context) {}

func current() context.Context { return context.Background() }

func start(ctx context.Context) []replay.Definition {
	call(ctx)
	return []replay.Definition{
		shop.Charge.Bind(func(inner context.Context, in string) (int, error) {
			call(ctx)
			return 0, inner.Err()
		}),
		shop.Buy.Bind(func(c *replay.Context, in string) (int, error) {
			call(ctx) // want `uses ctx, a context\.Context from outside of the orchestration`
			return 0, nil
		}),
	}
}
