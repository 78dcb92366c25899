package cluster

import (
	"cmp"
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/cluster/internal/report"
	"github.com/tenuto-dev/tenuto/cluster/internal/telemetry"
	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/internal/lineage"
	"github.com/tenuto-dev/tenuto/journal/state/index"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// AddMeterProvider records the metrics of this node with another provider, in addition to
// Config.MeterProvider, until the node is closed; METRICS.md lists them. Package cluster/prometheus
// uses it. After [Node.Close] it returns [ErrClosed].
func (n *Node) AddMeterProvider(provider metric.MeterProvider) error {
	if err := n.check(); err != nil {
		return err
	}
	if provider == nil {
		return invalidArgument("meter provider", "is nil")
	}
	return n.metrics.Attach(provider)
}

// SpanIDs generates span IDs for OpenTelemetry's SDK. Unlike the SDK's own generator, it derives
// the IDs of execution spans from recorded events. So an attempt on any node can name its parent
// span before that span ends. Every node of the cluster needs it:
//
//	sdktrace.NewTracerProvider(sdktrace.WithIDGenerator(cluster.SpanIDs{}), …)
//
// The span of an execution has the cluster time of its first and last event. The span of an attempt
// has the wall-clock time of the machine that runs it.
//
// With another generator, the spans of attempts are siblings of their execution's span: children of
// the span that started the instance.
type SpanIDs struct{}

// NewIDs implements the SDK's IDGenerator.
func (SpanIDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	return telemetry.NewIDs(ctx)
}

// NewSpanID implements the SDK's IDGenerator.
func (SpanIDs) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	return telemetry.NewSpanID(ctx)
}

// traceStart makes the span of a call that starts an instance and stores it in the request. Without
// a provider the request carries the span of ctx, if there is one.
func (c *Client) traceStart(ctx context.Context, id string, start *clusterpb.StartRequest) (traced context.Context, ended func(error)) {
	local, ok := c.transport.(*router)
	switch {
	case !ok:
		traced, start.Trace, ended = telemetry.StartRemoteCall(ctx, start.Name, id)
	case local.node.tracing == nil:
		start.Trace = telemetry.FormatTrace(trace.SpanContextFromContext(ctx))
		return ctx, func(error) {}
	default:
		traced, start.Trace, ended = local.node.tracing.StartCall(ctx, start.Name, id)
	}
	return traced, ended
}

// A telemetrySource shows a node to its metrics and traces.
type telemetrySource struct{ node *Node }

// Sample implements telemetry.Source.
func (t telemetrySource) Sample() *telemetry.Sample {
	n := t.node
	var led []*actors.Partition
	for _, g := range n.ledPartitions() {
		led = append(led, g.actorPartition.Load())
	}
	s := &telemetry.Sample{Ready: n.Health().Ready() == nil, Actors: n.system.Stats(led...), Attempts: n.system.ActivityCounts()}
	s.Protocol = n.partitions[0].journal.Protocol()
	s.NextProtocol, _ = n.partitions[0].journal.ReadyProtocol()
	s.VotersWanted, s.RoleChanges = n.settings.current.Load().Voters, n.roles.Changes()
	if n.dialer.TLSSource != nil {
		s.CertificateExpires = n.dialer.TLSSource.Expires()
	}
	s.Backups, s.SinceStart = reportBackups(n), time.Since(n.startedAt)
	for _, g := range n.partitions {
		s.StartsShed += g.startLimiter.Rejected()
		s.StartsWaiting += g.startLimiter.Queued()
		health := g.health()
		compared := telemetry.PartitionSample{Differences: g.comparisonStats.Differences.Load(), ComparisonTook: time.Duration(g.comparisonStats.Took.Load())}
		if since := g.comparisonStats.Since.Load(); since > 0 {
			compared.ComparisonAge = time.Since(time.Unix(0, since))
		}
		compared.Quarantined, compared.Stopped = uint64(health.Quarantined), uint64(health.Stopped)
		s.Partitions = append(s.Partitions, telemetry.PartitionSample{
			Quarantined: compared.Quarantined, Stopped: compared.Stopped, Differences: compared.Differences,
			ComparisonAge: compared.ComparisonAge, ComparisonTook: compared.ComparisonTook,
			Leads:        g.isLeader(),
			Role:         string(health.Role),
			Term:         health.Term,
			Applied:      health.Applied,
			Behind:       health.Behind,
			SinceContact: health.SinceContact,
			Journal:      g.journal.Stats(),
			Members:      g.journal.Members(),
		})
	}
	return s
}

// CountInstances implements telemetry.Source.
func (t telemetrySource) CountInstances(ctx context.Context, partition int) (map[State]int, bool) {
	g := t.node.partitions[partition]
	if g.actorPartition.Load() == nil {
		return nil, false
	}
	counts := make(map[State]int)
	for _, state := range instanceStates {
		counts[state] = 0
	}
	groups, err := g.journal.CountBy(ctx, new(index.Query), index.Grouping{Dimension: index.DimensionState})
	if err != nil || g.node.stopping.Load() {
		return nil, false
	}
	for _, group := range groups {
		counts[State(group.Values[0])] = int(group.Count)
	}
	return counts, true
}

// OrchestrationOf implements telemetry.Source.
func (t telemetrySource) OrchestrationOf(instance string) (name string, ok bool) {
	known, ok := t.node.partitionOf(instance).journal.Instance(instance)
	return known.GetName(), ok
}

// readEvent reads an event of this node's replica.
func (t telemetrySource) readEvent(instance string, execution, eventID uint64) (*journalpb.Event, error) {
	return t.node.partitionOf(instance).journal.Event(instance, execution, eventID)
}

// reportNode answers what this node knows of itself.
func (r *replicaCalls) reportNode(_ context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	if err := r.checkAsked(request.GetNodeReport().Node); err != nil {
		return nil, err
	}
	return &clusterpb.Response{Result: &clusterpb.Response_NodeReport{NodeReport: telemetrySource{r.node}.report()}}, nil
}

// report returns what the node knows of itself. It asks no other node and waits for no disk.
func (t telemetrySource) report() *clusterpb.NodeReport {
	n, c, sample, health := t.node, t.node.config, t.Sample(), t.node.Health()
	r := &clusterpb.NodeReport{
		Node: c.NodeID, Address: c.address(), Version: moduleVersion(), Revision: report.Revision(), Protocol: c.protocol,
		Uptime: int64(time.Since(n.startedAt)), Tags: c.Tags,
		Overload: report.Overload(sample, n.system.Bounds(), len(n.ledPartitions())), Rates: report.Rates(n.rates.Read()),
		Backup: reportBackups(n), UsedProtocol: n.partitions[0].journal.Protocol(),
	}
	if r.NextProtocol = health.NextProtocol; r.NextProtocol > 0 {
		r.NextProtocolAt = health.NextProtocolAt.UnixNano()
	}
	r.Lineage = lineage.Latest(n.partitions[0].journal.Lineages())
	if err := health.Ready(); err != nil {
		r.NotReady = err.Error()
	}
	for i, of := range health.all() {
		p := &clusterpb.PartitionReport{
			Role: string(of.Role), Leader: of.Leader, Term: of.Term, Applied: of.Applied, Behind: of.Behind,
			Lag: int64(of.Lag), SinceContact: int64(of.SinceContact), DiskFull: of.DiskFull, OtherDirectory: of.OtherDirectory,
		}
		report.SetStats(p, &sample.Partitions[i].Journal)
		r.Partitions = append(r.Partitions, p)
	}
	report.SetExpiry(r, sample.CertificateExpires)
	rates := make(map[string]report.Rate)
	for name, rate := range n.settings.current.Load().ActivityRates {
		rates[name] = report.Rate(rate)
	}
	report.SetCode(r, c.orchestrationCode())
	report.SetActivities(r, c.activityNames(), n.system.ActivityUse(), rates)
	return r
}

// nodeAddresses implements caller: the members that this node knows, and always this node.
func (r *router) nodeAddresses(context.Context) (map[string]string, error) {
	select {
	case <-r.node.closing:
		return nil, ErrClosed
	default:
	}
	addresses := map[string]string{r.node.config.NodeID: r.node.config.address()}
	for _, m := range r.node.partitions[0].journal.Members() {
		addresses[m.Node] = m.Address
	}
	return addresses, nil
}

// askNode implements caller.
func (r *router) askNode(ctx context.Context, node, address string, request *clusterpb.Request) (*clusterpb.Response, error) {
	request.Protocol = requestProtocol(r.node.config.protocol, request)
	if request.Node = r.node.config.NodeID; node == request.Node {
		return answerOfNode(ctx, r.node.dispatcher.serve(ctx, request))
	}
	return answerOfNode(ctx, r.node.peers.ask(ctx, address, request))
}

// nodeAddresses implements caller: the members that one node knows.
func (r *remoteTransport) nodeAddresses(ctx context.Context) (map[string]string, error) {
	response, err := r.callWithRetry(ctx, membersRequest(), admission.Retrier{}, r.askAnyNode)
	if err != nil {
		return nil, err
	}
	addresses := make(map[string]string)
	for _, m := range response.GetMembers().GetMembers() {
		addresses[m.Node] = m.Address
	}
	return addresses, nil
}

// askNode implements caller.
func (r *remoteTransport) askNode(ctx context.Context, _, address string, request *clusterpb.Request) (*clusterpb.Response, error) {
	request.Protocol = requestProtocol(protocolVersion, request)
	return answerOfNode(ctx, r.callNode(ctx, address, request))
}

// answerOfNode returns the failure in the response of one node as an error: an *UnavailableError if
// the node has not answered.
func answerOfNode(ctx context.Context, response *clusterpb.Response) (*clusterpb.Response, error) {
	if failure := response.GetFailure(); failure != nil && wire.IsRetryable(failure) {
		return nil, &UnavailableError{Err: cmp.Or(ctx.Err(), errors.New(failure.Message)), read: true}
	}
	return withoutFailure(response)
}

// withoutFailure returns the failure in a response as an error.
func withoutFailure(response *clusterpb.Response) (*clusterpb.Response, error) {
	if failure := response.GetFailure(); failure != nil {
		return nil, fromFailure(failure)
	}
	return response, nil
}

// reportsOfNodes returns what each member reports of itself.
func reportsOfNodes(ctx context.Context, by caller) ([]access.NodeReport, error) {
	ctx, cancel := context.WithTimeout(ctx, report.Timeout)
	defer cancel()
	addresses, err := by.nodeAddresses(ctx)
	if err != nil {
		return nil, err
	}
	return report.Collect(ctx, addresses, func(ctx context.Context, node, address string) (*clusterpb.NodeReport, error) {
		response, err := by.askNode(ctx, node, address, &clusterpb.Request{Call: &clusterpb.Request_NodeReport{
			NodeReport: &clusterpb.NodeReportRequest{Node: node},
		}})
		return response.GetNodeReport(), err
	}), nil
}
