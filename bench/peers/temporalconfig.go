package main

import (
	"fmt"
	"net"
	"runtime/debug"
	"time"

	"go.temporal.io/server/common/cluster"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/persistence/sql/sqlplugin/sqlite"
)

const (
	temporalStore   = sqlite.PluginName
	temporalCluster = "active"
	loopback        = "127.0.0.1"
)

// temporalConfig is the configuration of Temporal's test server, with the database settings of
// its file configuration.
func temporalConfig(file string, historyShards int) (*config.Config, error) {
	ports, err := freePorts(9)
	if err != nil {
		return nil, err
	}
	c := &config.Config{}
	c.Global.Membership = config.Membership{MaxJoinDuration: 30 * time.Second, BroadcastAddress: loopback}
	c.Global.Metrics = nil
	database := &config.SQL{
		PluginName:   sqlite.PluginName,
		DatabaseName: file,
		ConnectAttributes: map[string]string{
			"mode": "rwc", "cache": "private", "journal_mode": "wal", "synchronous": "2",
		},
		MaxConns:     1,
		MaxIdleConns: 1,
	}
	c.Persistence = config.Persistence{
		DefaultStore:     temporalStore,
		VisibilityStore:  temporalStore,
		NumHistoryShards: int32(historyShards),
		DataStores:       map[string]config.DataStore{temporalStore: {SQL: database}},
	}
	frontend := fmt.Sprintf("%s:%d", loopback, ports[0])
	c.ClusterMetadata = &cluster.Config{
		FailoverVersionIncrement: 10,
		MasterClusterName:        temporalCluster,
		CurrentClusterName:       temporalCluster,
		ClusterInformation: map[string]cluster.ClusterInformation{
			temporalCluster: {Enabled: true, InitialFailoverVersion: 1, RPCAddress: frontend},
		},
	}
	c.DCRedirectionPolicy = config.DCRedirectionPolicy{Policy: "noop"}
	c.Services = make(map[string]config.Service)
	for i, name := range []string{"frontend", "history", "matching", "worker"} {
		c.Services[name] = config.Service{RPC: config.RPC{
			GRPCPort: ports[2*i], MembershipPort: ports[2*i+1], BindOnIP: loopback,
		}}
	}
	c.Archival = config.Archival{
		History:    config.HistoryArchival{State: "disabled"},
		Visibility: config.VisibilityArchival{State: "disabled"},
	}
	c.NamespaceDefaults = config.NamespaceDefaults{Archival: config.ArchivalNamespaceDefaults{
		History:    config.HistoryArchivalNamespaceDefaults{State: "disabled"},
		Visibility: config.VisibilityArchivalNamespaceDefaults{State: "disabled"},
	}}
	c.PublicClient = config.PublicClient{HostPort: frontend}
	return c, nil
}

// freePorts returns free ports.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		listener, err := net.Listen("tcp", loopback+":0")
		if err != nil {
			return nil, err
		}
		defer listener.Close()
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// versionOf returns the version of a module of this program.
func versionOf(module string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "?"
	}
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			return dependency.Version
		}
	}
	return "?"
}
