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
	patience    time.Duration
}

const patienceDefault = 3 * time.Minute

func newOptions(opts []Option) options {
	o := options{patience: patienceDefault}
	for _, option := range opts {
		option(&o)
	}
	return o
}

// Definitions are the code of every node: bound handles.
func Definitions(definitions ...replay.Definition) Option {
	return func(o *options) { o.definitions = append(o.definitions, definitions...) }
}

// Configure has the configuration of a node changed before each of its starts,
// that by [Cluster.Restart] included: so nodes differ in their definitions, and a
// new version of the code comes to one after the other. config has what
// [Definitions] says. What makes the cluster one is set afterwards: NodeID, Dir,
// InMemory, Listen and Peers. Logger defaults to the log of the test, from
// warnings up.
func Configure(change func(i int, config *cluster.Config)) Option {
	return func(o *options) { o.configure = append(o.configure, change) }
}

// InMemory has nodes keep nothing on disk: the cluster is faster, and a node that
// was killed cannot be restarted.
func InMemory() Option { return func(o *options) { o.inMemory = true } }

// Patience is how long [Cluster.Eventually] waits for its condition. It is there
// to end a test that has failed, and not to measure anything. Defaults to three minutes.
func Patience(limit time.Duration) Option { return func(o *options) { o.patience = limit } }
