package cluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/tenuto-dev/tenuto/internal/rig"
	"github.com/tenuto-dev/tenuto/replay"
)

// deadlined is an activity that uses the deadline of its context, and timedCalls calls it on
// the node with the tag.
var (
	deadlined  = replay.Activity[string, bool]("deadlined")
	empty      = replay.Activity[string, bool]("empty")
	timedCalls = replay.Orchestration[string, bool]("timedCalls")
)

func timedCallsBody(ctx *replay.Context, tag string) (bool, error) {
	if _, err := empty.Call(ctx, "", replay.Tag(tag)); err != nil {
		return false, err
	}
	return deadlined.Call(ctx, "", replay.Tag(tag), replay.StartToClose(20*time.Minute))
}

// deadlinedBody fails unless the deadline of its context is one of the local clock.
func deadlinedBody(address string) func(context.Context, string) (bool, error) {
	return func(ctx context.Context, _ string) (bool, error) {
		deadline, ok := ctx.Deadline()
		if left := time.Until(deadline); !ok || left <= 0 || left > 20*time.Minute {
			return false, replay.NonRetryable(fmt.Errorf("the context has %v left (%t)", left, ok))
		}
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return false, replay.NonRetryable(fmt.Errorf("dial: %w", err))
		}
		if err := conn.Close(); err != nil {
			return false, err
		}
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		select {
		case <-short.Done():
		case <-time.After(patience):
			return false, replay.NonRetryable(errors.New("a shorter deadline below that of the attempt never ends"))
		}
		return true, nil
	}
}

// The cluster was founded with wall clocks that were an hour off. They are set right,
// and the cluster time goes on as before.
func TestAttemptsGoByTheLocalClockWhateverTheClusterTimeIs(t *testing.T) {
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = listener.Close() }()
			wrong := func() time.Time { return time.Now().Add(off) }
			within := rig.With(testContext(t), rig.Rig{WallClock: wrong})
			var nodes []*Node
			var readers []sdk.Reader
			peers := loopbackPeers(t, 3)
			for i := range peers {
				reader := sdk.NewManualReader()
				config := peerConfig(t, peers, i, empty.Bind(func(context.Context, string) (bool, error) { return true, nil }),
					deadlined.Bind(deadlinedBody(listener.Addr().String())), timedCalls.Bind(timedCallsBody))
				config.Groups, config.Tags = 1, []string{config.NodeID}
				config.MeterProvider = sdk.NewMeterProvider(sdk.WithReader(reader))
				nodes, readers = append(nodes, startNodeIn(within, t, config)), append(readers, reader)
			}
			leader := leaderOf(t, nodes)
			for i, node := range nodes {
				if ok, err := Call(testContext(t), leader.Client(), timedCalls, "on-"+node.ID(), node.ID()); err != nil || !ok {
					t.Errorf("on %s, led by %s: %v, %v", node.ID(), leader.ID(), ok, err)
				}
				wantSoon(t, readers[i], "tenuto.activity.attempt.duration")
				wantSoon(t, readers[i], "tenuto.activity.delay")
			}
		})
	}
}

// wantSoon checks that what two attempts have recorded in a histogram is not off by an
// hour.
func wantSoon(t *testing.T, reader sdk.Reader, name string) {
	t.Helper()
	var data metricdata.Histogram[float64]
	eventually(t, "both attempts are recorded", func() bool {
		data, _ = collected(t, reader)[name].Data.(metricdata.Histogram[float64])
		return total(metricdata.Metrics{Data: data}) == 2
	})
	for _, point := range data.DataPoints {
		if least, _ := point.Min.Value(); math.Abs(point.Sum) > 1200 || least < 0 {
			t.Errorf("%s: sum %v s, least %v s", name, point.Sum, least)
		}
	}
}
