package worker

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tenuto-dev/tenuto/cluster/internal/server"
	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

const (
	// PartitionHeader is the header of a stream with the partition's number. Without it, the stream
	// is for the first partition.
	PartitionHeader = "tenuto-group"
	// ClientHeader is the header of the stream of a worker that is no node.
	ClientHeader = "tenuto-worker"

	// The pause before an ended stream is opened again. It doubles up to Loop.RetryDelayMax, until
	// a stream has lasted longer than that or another node leads.
	retryDelay = 50 * time.Millisecond
)

// errLeaderChanged ends a stream to a former leader.
var errLeaderChanged = errors.New("another node leads")

// A Loop runs activities for the leader of a partition. All fields are required, but ClientHeader.
type Loop struct {
	Partition int
	// Leader returns the leader and its address; "" if the loop has nothing to do for it.
	Leader func() (leader, address string)
	// Changed returns a channel that is closed when Leader may return another.
	Changed func() <-chan struct{}
	Nodes   *transport.Pool
	// Run runs activities for the leader at the other end of in and out until ctx ends.
	Run func(ctx context.Context, in <-chan *clusterpb.ToWorker, out chan<- *clusterpb.FromWorker) error
	// Check rejects a message that a worker cannot handle.
	Check     func(*clusterpb.ToWorker) error
	Recoverer server.Recoverer
	Logger    *slog.Logger
	// RetryDelayMax bounds the pause after a stream has ended.
	RetryDelayMax time.Duration
	ClientHeader  bool // the worker is no node
}

// Work registers the worker with each leader of the partition, until ctx ends.
func (l *Loop) Work(ctx context.Context) {
	delay, lastLeader, refused := retryDelay, "", ""
	for ctx.Err() == nil {
		changed := l.Changed()
		leader, address := l.Leader()
		if leader == "" {
			l.await(ctx, changed)
			continue
		}
		if leader != lastLeader {
			lastLeader, delay = leader, retryDelay
		}
		began := time.Now()
		err := l.workFor(ctx, leader, address)
		if time.Since(began) > l.RetryDelayMax {
			delay, refused = retryDelay, ""
		}
		l.Logger.Debug("worker stream ended", "leader", leader, "partition", l.Partition, "error", err)
		if reason := refusal(err); reason != "" && reason != refused && ctx.Err() == nil {
			refused = reason
			l.Logger.Warn("leader refuses this worker; trying again", "leader", leader, "partition", l.Partition, "error", reason)
		}
		l.pause(ctx, changed, delay)
		delay = min(2*delay, l.RetryDelayMax)
	}
}

// refusal returns why a leader does not accept the worker, "" if err says something else.
func refusal(err error) string {
	switch s := status.Convert(err); s.Code() {
	case codes.PermissionDenied, codes.ResourceExhausted, codes.Unimplemented, codes.InvalidArgument:
		return s.Message()
	}
	return ""
}

func (l *Loop) await(ctx context.Context, changed <-chan struct{}) {
	select {
	case <-changed:
	case <-ctx.Done():
	}
}

// pause waits for a random time around delay, or until the leader changes.
func (l *Loop) pause(ctx context.Context, changed <-chan struct{}, delay time.Duration) {
	if l.RetryDelayMax > retryDelay { // many workers must not return at the same moment
		delay = delay/2 + rand.N(delay)
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	case <-ctx.Done():
	}
}

// workFor runs activities for a leader while it leads. The stream outlives ctx so that the worker
// can announce that it drains.
func (l *Loop) workFor(ctx context.Context, leader, address string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	streaming, end := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end()
	defer cancel(nil)
	node, err := l.Nodes.Node(address)
	if err != nil {
		return err
	}
	wg.Go(func() { cancel(l.awaitNewLeader(ctx, leader)) })
	if err := node.AwaitConnection(ctx); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, end)
	stream, err := node.NewStream(l.withHeaders(streaming), &server.WorkStream, server.WorkMethod)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	var streamEnd atomic.Pointer[error]
	in := Receive(l.Recoverer, &wg, stream, l.Check, func(err error) { streamEnd.Store(&err) })
	out := Transmit[clusterpb.FromWorker](l.Recoverer, &wg, stream, func(err error) {
		if streamEnd.Load() == nil {
			cancel(err)
		}
	})
	err = l.Run(ctx, in, out)
	if reason := streamEnd.Load(); reason != nil && !errors.Is(err, replay.ErrNodeStopping) {
		return *reason
	}
	return err
}

// withHeaders adds the headers of a stream.
func (l *Loop) withHeaders(ctx context.Context) context.Context {
	if l.ClientHeader {
		ctx = metadata.AppendToOutgoingContext(ctx, ClientHeader, "1")
	}
	if l.Partition == 0 {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, PartitionHeader, strconv.Itoa(l.Partition))
}

// awaitNewLeader returns when another node is known to lead.
func (l *Loop) awaitNewLeader(ctx context.Context, leader string) error {
	for {
		changed := l.Changed()
		if now, _ := l.Leader(); now != "" && now != leader {
			return errLeaderChanged
		}
		if l.await(ctx, changed); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}
