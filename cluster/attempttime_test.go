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

	"github.com/tenuto-dev/tenuto/internal/harness"
	"github.com/tenuto-dev/tenuto/replay"
)

// deadlined is an activity that uses the deadline of its context, and timedOrchestration calls it
// on the node with the tag.
var (
	deadlineActivity   = replay.Activity[string, bool]("deadlined")
	emptyActivity      = replay.Activity[string, bool]("empty")
	timedOrchestration = replay.Orchestration[string, bool]("timedCalls")
)

func timedOrchestrationBody(ctx *replay.Context, tag string) (bool, error) {
	if _, err := emptyActivity.Call(ctx, "", replay.Tag(tag)); err != nil {
		return false, err
	}
	return deadlineActivity.Call(ctx, "", replay.Tag(tag), replay.StartToClose(20*time.Minute))
}

// deadlineActivityBody fails unless the deadline of its context is in local clock time.
func deadlineActivityBody(address string) func(context.Context, string) (bool, error) {
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
		case <-time.After(testTimeout):
			return false, replay.NonRetryable(errors.New("a shorter deadline below that of the attempt never ends"))
		}
		return true, nil
	}
}

// The cluster was founded with wall clocks that were an hour off. After they are corrected, cluster
// time continues as before.
func TestAttempt_UsesLocalClock(t *testing.T) {
	for _, offset := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(offset.String(), func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = listener.Close() }()
			wrong := func() time.Time { return time.Now().Add(offset) }
			within := harness.NewContext(testContext(t), harness.Overrides{WallClock: wrong})
			var nodes []*Node
			var readers []sdk.Reader
			peers := loopbackPeers(t, 3)
			for i := range peers {
				reader := sdk.NewManualReader()
				config := peerConfig(t, peers, i, emptyActivity.Bind(func(context.Context, string) (bool, error) { return true, nil }),
					deadlineActivity.Bind(deadlineActivityBody(listener.Addr().String())), timedOrchestration.Bind(timedOrchestrationBody))
				config.Partitions, config.Tags = 1, []string{config.NodeID}
				config.MeterProvider = sdk.NewMeterProvider(sdk.WithReader(reader))
				nodes, readers = append(nodes, startNodeIn(within, t, config)), append(readers, reader)
			}
			leader := leaderOf(t, nodes)
			for i, node := range nodes {
				if ok, err := Call(testContext(t), leader.Client(), timedOrchestration, "on-"+node.ID(), node.ID()); err != nil || !ok {
					t.Errorf("on %s, led by %s: %v, %v", node.ID(), leader.ID(), ok, err)
				}
				expectShortDurations(t, readers[i], "tenuto.activity.attempt.duration")
				expectShortDurations(t, readers[i], "tenuto.activity.delay")
			}
		})
	}
}

// expectShortDurations checks that a histogram with two attempts is not off by an hour.
func expectShortDurations(t *testing.T, reader sdk.Reader, name string) {
	t.Helper()
	var data metricdata.Histogram[float64]
	eventually(t, "both attempts are recorded", func() bool {
		data, _ = collectMetrics(t, reader)[name].Data.(metricdata.Histogram[float64])
		return sumMetric(metricdata.Metrics{Data: data}) == 2
	})
	for _, point := range data.DataPoints {
		if least, _ := point.Min.Value(); math.Abs(point.Sum) > 1200 || least < 0 {
			t.Errorf("%s: sum %v s, least %v s", name, point.Sum, least)
		}
	}
}
