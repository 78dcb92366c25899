package cluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/cluster/internal/telemetry"
	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// reportsOf returns the reports that a client collects.
func reportsOf(t testing.TB, ctx context.Context, client *Client) []access.NodeReport {
	t.Helper()
	internals, err := client.Internal(access.Key{})
	if err != nil {
		t.Fatal(err)
	}
	reports, err := internals.Reports(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return reports
}

// Every client of a cluster, and a remote one, gets the reports of all nodes. They agree on the
// leader and on what ran.
func TestReports_OfAllNodes(t *testing.T) {
	trusted := newAuthority(t)
	nodes, _ := startWithTLS(t, trusted, nil)
	ctx := testContext(t)
	remote := dialSecured(t, trusted, trusted.Client("gw"), nodes...)
	if _, err := Call(ctx, remote, doubled, "i", 1); err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes {
		eventually(t, node.ID()+" is ready", func() bool { return node.Health().Ready() == nil })
	}
	for i, client := range []*Client{nodes[0].Client(), nodes[1].Client(), remote} {
		var reports []access.NodeReport
		// A call is answered before its start is counted and the slot of its activity is free. A
		// node may take too long to answer, or learn of another leader.
		eventually(t, fmt.Sprintf("client %d: all nodes report and agree", i), func() bool {
			reports = reportsOf(t, ctx, client)
			return len(reports) == len(nodes) && doReportsAgree(reports, len(nodes[0].partitions))
		})
		for j, r := range reports {
			checkReport(t, nodes[j], r.Report)
		}
	}
}

// doReportsAgree reports whether all nodes have reported one start, one leader of each partition,
// which all know, and that nothing runs.
func doReportsAgree(reports []access.NodeReport, partitions int) bool {
	var started, leaders int
	for _, r := range reports {
		if r.Err != nil || r.Report.FreeSlots != r.Report.Slots {
			return false
		}
		started += int(sumOf(r.Report.Rates.Started))
		for _, p := range r.Report.Partitions {
			if p.Leader == "" || p.ClockOffset == nil {
				return false
			}
			if p.Role == string(RoleLeader) {
				leaders++
			}
		}
	}
	return started == 1 && leaders == partitions
}

func sumOf(counts []uint32) (sum uint32) {
	for _, n := range counts {
		sum += n
	}
	return sum
}

// checkReport checks what a node with a certificate and the code of definitions() says of itself.
func checkReport(t *testing.T, node *Node, r *clusterpb.NodeReport) {
	t.Helper()
	if r.Node != node.ID() || r.Address != node.config.address() || r.Protocol != protocolVersion || r.Uptime <= 0 {
		t.Errorf("%s: the report is of %q at %q, protocol %d, up for %d ns", node.ID(), r.Node, r.Address, r.Protocol, r.Uptime)
	}
	if expires := time.Unix(0, r.CertificateExpires); time.Until(expires) <= 0 {
		t.Errorf("%s: the certificate expires at %v", node.ID(), expires)
	}
	reader := sdk.NewManualReader()
	if err := node.AddMeterProvider(sdk.NewMeterProvider(sdk.WithReader(reader))); err != nil {
		t.Fatal(err)
	}
	metrics := collectMetrics(t, reader)
	remaining := sumMetric(metrics["tenuto.certificate.remaining"])
	if want := time.Until(time.Unix(0, r.CertificateExpires)).Seconds(); math.Abs(remaining-want) > 60 {
		t.Errorf("%s: the certificate expires in %.0f s according to the metric, want %.0f", node.ID(), remaining, want)
	}
	offsets, _ := metrics["tenuto.clock.offset"].Data.(metricdata.Gauge[float64])
	if len(offsets.DataPoints) != len(r.Partitions) {
		t.Errorf("%s: clock offsets of %d partitions, want %d", node.ID(), len(offsets.DataPoints), len(r.Partitions))
	}
	if len(r.Rates.Started) != telemetry.RateSteps || r.Slots == 0 || r.FreeSlots != r.Slots {
		t.Errorf("%s: %d steps, %d of %d slots free", node.ID(), len(r.Rates.Started), r.FreeSlots, r.Slots)
	}
	has := func(c *clusterpb.OrchestrationCode) bool { return c.Name == "doubled" }
	if !slices.ContainsFunc(r.Orchestrations, has) {
		t.Errorf("%s: the code is %v", node.ID(), r.Orchestrations)
	}
	for i, p := range r.Partitions {
		if p.Leader == "" || p.Term == 0 || p.Applied == 0 || p.DiskWrites == 0 || p.DiskWriteP99 < p.DiskWriteP50 || p.ClockOffset == nil {
			t.Errorf("%s, partition %d: %v", node.ID(), i, p)
		}
	}
}

// A node that does not answer has an error and no report. The others are there.
func TestReports_NodeWithoutAnswer(t *testing.T) {
	nodes := startPeersWith(t, 3, definitions()...)
	remote := dialNodes(t, DialConfig{}, nodes...)
	if err := nodes[2].Close(); err != nil {
		t.Fatal(err)
	}
	for where, client := range map[string]*Client{"on a node": nodes[0].Client(), "remote": remote} {
		eventually(t, "the others report, "+where, func() bool { // one that is slow has an error, too
			reports := reportsOf(t, testContext(t), client)
			if len(reports) == 3 && (reports[2].Err == nil || reports[2].Report != nil) {
				t.Fatalf("%s, the reports are %v", where, reports)
			}
			return len(reports) == 3 && reports[0].Err == nil && reports[1].Err == nil
		})
	}
	internals, err := nodes[2].Client().Internal(access.Key{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := internals.Reports(testContext(t)); !errors.Is(err, ErrClosed) {
		t.Errorf("of a closed node: %v", err)
	}
}

// A context that ends bounds the wait for the others; the node's own report needs none.
func TestReports_ContextBoundsWait(t *testing.T) {
	nodes := startPeersWith(t, 3, definitions()...)
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	reports := reportsOf(t, ctx, nodes[0].Client())
	for i, r := range reports {
		if (r.Err != nil) != (i > 0) {
			t.Errorf("%s: %v", r.Node, r.Err)
		}
	}
}

// A remote client needs the right to see members. A request that reaches another node is rejected.
func TestReports_Rights(t *testing.T) {
	trusted := newAuthority(t)
	nodes, _ := startWithTLS(t, trusted, func(_ int, config *Config) {
		config.Authorize = func(_ context.Context, caller Principal, action Action, _ string) error {
			if action == ActionSeeMembers && caller.Name == "gw" {
				return nil
			}
			return errors.New("not today")
		}
	})
	ask := func(client, node string) error {
		peerInfo := transport.AuthInfo{Peer: transport.Principal{Kind: transport.KindClient, Name: client}}
		ctx := peer.NewContext(testContext(t), &peer.Peer{AuthInfo: peerInfo})
		request := &clusterpb.Request{Call: &clusterpb.Request_NodeReport{NodeReport: &clusterpb.NodeReportRequest{Node: node}}}
		request.Protocol = protocolVersion
		_, err := withoutFailure((&nodeService{nodes[0]}).Serve(ctx, request))
		return err
	}
	if err := ask("gw", nodes[0].ID()); err != nil {
		t.Errorf("a client with the right: %v", err)
	}
	if err := ask("other", nodes[0].ID()); !errors.Is(err, ErrNotAuthorized) {
		t.Errorf("a client without the right: %v", err)
	}
	if err := ask("gw", nodes[1].ID()); !errors.Is(err, ErrNotMember) {
		t.Errorf("a request for another node: %v", err)
	}
}

// A report of a node with very much code stays below 256 KiB, and says how much is left out.
func TestReport_Bounded(t *testing.T) {
	var all []replay.Definition
	for i := range 3000 {
		all = append(all, replay.Activity[int, int](fmt.Sprintf("%04d-%s", i, strings.Repeat("x", 120))).Bind(
			func(context.Context, int) (int, error) { return 0, nil }))
		all = append(all, replay.Orchestration[int, int](fmt.Sprintf("%04d-%s", i, strings.Repeat("y", 120))).Bind(
			func(*replay.Context, int) (int, error) { return 0, nil }))
	}
	r := telemetrySource{startNode(t, Config{InMemory: true, Definitions: all})}.report()
	if size := proto.Size(r); size > 256<<10 {
		t.Errorf("the report has %d bytes", size)
	}
	if n := len(r.Orchestrations); n < 500 || n+int(r.OrchestrationsOmitted) != 3000 || !strings.HasPrefix(r.Orchestrations[n-1].Name, fmt.Sprintf("%04d", n-1)) {
		t.Errorf("%d orchestrations, %d omitted", n, r.OrchestrationsOmitted)
	}
	if n := len(r.Activities); n < 500 || n+int(r.ActivitiesOmitted) != 3000 {
		t.Errorf("%d activities, %d omitted", n, r.ActivitiesOmitted)
	}
}

func BenchmarkReport(b *testing.B) {
	source := telemetrySource{startNode(b, Config{InMemory: true, Definitions: definitions()})}
	b.ReportAllocs()
	for b.Loop() {
		source.report()
	}
}
