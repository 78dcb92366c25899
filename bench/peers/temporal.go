package main

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"go.temporal.io/server/common/authorization"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/dynamicconfig"
	"go.temporal.io/server/common/log"
	"go.temporal.io/server/schema/sqlite"
	server "go.temporal.io/server/temporal"
)

// temporal is Temporal's server in this process, with its SDK.
type temporal struct {
	// historyShards is the number of partitions of histories, each with its own lock. It is
	// fixed when the database is created.
	historyShards int
}

const (
	temporalNamespace = "bench"
	temporalQueue     = "bench"
	// Amounts that take about 15 s on two cores.
	temporalHellos      = 60
	temporalConcurrency = 30
	temporalSteps       = 100
	temporalPollers     = 16
	// A timeout is mandatory; none is reached.
	temporalActivityMax = 10 * time.Minute
)

func (t temporal) name() string { return fmt.Sprintf("Temporal, %s", t.shards()) }

func (t temporal) shards() string {
	if t.historyShards == 1 {
		return "1 shard"
	}
	return fmt.Sprintf("%d shards", t.historyShards)
}

func (t temporal) settings() string {
	return fmt.Sprintf("server %s and SDK %s in this process, SQLite on disk (journal_mode=wal, synchronous=full, one connection, as its own "+
		"configuration for a file has it), history in %s, rate limits lifted, eager starts and activities, %d pollers of each kind",
		versionOf("go.temporal.io/server"), versionOf("go.temporal.io/sdk"), t.shards(), temporalPollers)
}

func (temporal) amounts() amounts {
	return amounts{hellos: temporalHellos, concurrency: temporalConcurrency, steps: temporalSteps}
}

func (t temporal) open(ctx context.Context, dir string) (instance, error) {
	c, err := temporalConfig(filepath.Join(dir, "temporal.db"), t.historyShards)
	if err != nil {
		return nil, err
	}
	database := c.Persistence.DataStores[temporalStore].SQL
	if err := sqlite.SetupSchema(database); err != nil {
		return nil, fmt.Errorf("create the schema: %w", err)
	}
	namespace, err := sqlite.NewNamespaceConfig(c.ClusterMetadata.CurrentClusterName, temporalNamespace, false, nil)
	if err != nil {
		return nil, err
	}
	if err := sqlite.CreateNamespaces(database, namespace); err != nil {
		return nil, fmt.Errorf("create the namespace: %w", err)
	}
	s, err := server.NewServer(
		server.WithConfig(c),
		server.ForServices(server.DefaultServices),
		server.WithLogger(log.NewNoopLogger()),
		server.WithAuthorizer(authorization.NewNoopAuthorizer()),
		server.WithDynamicConfigClient(unlimited()),
	)
	if err != nil {
		return nil, err
	}
	if err := s.Start(); err != nil {
		return nil, err
	}
	i := &temporalInstance{server: s}
	return i, i.connect(ctx, c)
}

// unlimited lifts rate limits, which protect shared clusters.
func unlimited() dynamicconfig.StaticClient {
	const perSecond = 1_000_000
	return dynamicconfig.StaticClient{
		dynamicconfig.FrontendRPS.Key():                        perSecond,
		dynamicconfig.FrontendMaxNamespaceRPSPerInstance.Key(): perSecond,
		dynamicconfig.HistoryRPS.Key():                         perSecond,
		dynamicconfig.MatchingRPS.Key():                        perSecond,
		dynamicconfig.HistoryPersistenceMaxQPS.Key():           perSecond,
		dynamicconfig.FrontendPersistenceMaxQPS.Key():          perSecond,
		dynamicconfig.MatchingPersistenceMaxQPS.Key():          perSecond,
	}
}

type temporalInstance struct {
	server server.Server
	client client.Client
	worker worker.Worker
}

// connect connects a client and a worker.
func (i *temporalInstance) connect(ctx context.Context, c *config.Config) (err error) {
	i.client, err = client.DialContext(ctx, client.Options{
		HostPort: c.PublicClient.HostPort, Namespace: temporalNamespace,
		Logger: sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)),
	})
	if err != nil {
		return err
	}
	i.worker = worker.New(i.client, temporalQueue, worker.Options{
		MaxConcurrentActivityTaskPollers: temporalPollers,
		MaxConcurrentWorkflowTaskPollers: temporalPollers,
	})
	i.worker.RegisterActivity(workBody)
	i.worker.RegisterWorkflow(temporalSequence)
	i.worker.RegisterWorkflow(temporalFanout)
	return i.worker.Start()
}

func temporalOptions(ctx workflow.Context) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: temporalActivityMax})
}

func temporalSequence(ctx workflow.Context, activities int) (n int, err error) {
	ctx = temporalOptions(ctx)
	for range activities {
		if err := workflow.ExecuteActivity(ctx, workBody, n).Get(ctx, &n); err != nil {
			return 0, err
		}
	}
	return n, nil
}

func temporalFanout(ctx workflow.Context, activities int) (int, error) {
	ctx = temporalOptions(ctx)
	futures := make([]workflow.Future, activities)
	for i := range futures {
		futures[i] = workflow.ExecuteActivity(ctx, workBody, i)
	}
	for _, future := range futures {
		if err := future.Get(ctx, nil); err != nil {
			return 0, err
		}
	}
	return len(futures), nil
}

func (i *temporalInstance) sequence(ctx context.Context, id string, activities int) (int, error) {
	return i.call(ctx, temporalSequence, id, activities)
}

func (i *temporalInstance) fanout(ctx context.Context, id string, activities int) (int, error) {
	return i.call(ctx, temporalFanout, id, activities)
}

func (i *temporalInstance) call(ctx context.Context, code any, id string, activities int) (n int, err error) {
	run, err := i.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID: id, TaskQueue: temporalQueue, EnableEagerStart: true,
	}, code, activities)
	if err != nil {
		return 0, err
	}
	err = run.Get(ctx, &n)
	return n, err
}

func (i *temporalInstance) close() error {
	if i.worker != nil {
		i.worker.Stop()
	}
	if i.client != nil {
		i.client.Close()
	}
	return i.server.Stop()
}
