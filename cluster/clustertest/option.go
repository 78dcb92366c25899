package clustertest

import (
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay"
)

// An Option changes how a cluster is made.
type Option func(*options)

type options struct {
	definitions []replay.Definition
	configure   []func(i int, config *cluster.Config)
	inMemory    bool
	timeout     time.Duration
}

const timeoutDefault = 3 * time.Minute

func newOptions(opts []Option) options {
	o := options{timeout: timeoutDefault}
	for _, option := range opts {
		option(&o)
	}
	return o
}

// Definitions sets the code of every node: bound handles.
func Definitions(definitions ...replay.Definition) Option {
	return func(o *options) { o.definitions = append(o.definitions, definitions...) }
}

// Configure changes the configuration of a node before each of its starts, including
// [Cluster.Restart]. So nodes can have different definitions, and new code can reach one node after
// the other. config has the [Definitions]. NodeID, Dir, InMemory, Listen and Peers are set
// afterwards, because they make the cluster. Logger defaults to the test's log, from level Warn up.
func Configure(change func(i int, config *cluster.Config)) Option {
	return func(o *options) { o.configure = append(o.configure, change) }
}

// InMemory keeps nothing on disk: the cluster is faster, and a killed node cannot be restarted.
func InMemory() Option { return func(o *options) { o.inMemory = true } }

// Timeout is how long [Cluster.Eventually] waits for its condition. It ends a failed test and
// measures nothing. Defaults to 3 minutes.
func Timeout(limit time.Duration) Option { return func(o *options) { o.timeout = limit } }
