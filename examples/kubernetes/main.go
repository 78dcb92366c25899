// Command kubernetes is an application in two kinds of pods: the nodes of a cluster in a
// StatefulSet, and programs without a disk, which take orders and run activities, in a Deployment.
// tenuto.yaml has both, and what each line is for.
//
// # When to use it
//
// Where pods get other addresses, and may lose their disks, at any time, and no list of nodes
// exists.
//
// # What to look at
//
//   - The nodes find each other with cluster/discovery. Config.Found says how many found the
//     cluster.
//   - They advertise the addresses of their pods. When all pods move at once, all addresses change.
//   - Settings.ReplaceLostAfter makes a pod that has lost its disk come back by itself.
//   - Settings.ActivityPlacement makes the workers run the activities; the nodes run what no worker
//     has a free slot for.
//   - How to scale the StatefulSet down and up again: see replicas in tenuto.yaml.
//   - The probes are served from before the start of the node until after its end.
//   - SIGTERM hands leadership over before the node stops.
//
// # When not to use it
//
// A single process needs no cluster: see the example hello. Nodes with addresses that do not change
// can have a list: see Config.Peers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/discovery"
)

// options are the flags of the command.
type options struct {
	worker                      bool
	id, zone                    string
	listen, advertise, dir      string
	found                       int
	replaceAfter                time.Duration
	cert, key, authorities      string
	service, resolver, probesAt string
	port                        int
	ordersAt                    string
	drain                       time.Duration
}

func main() {
	o := flags(flag.CommandLine)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, *o); err != nil {
		log.Fatal(err)
	}
}

// flags defines the flags of the command, and returns where their values are.
func flags(set *flag.FlagSet) *options {
	o := new(options)
	set.BoolVar(&o.worker, "worker", false, "be a program without a disk, which takes orders and runs activities")
	set.StringVar(&o.id, "id", "", "`ID` of this node, ending in its number, or name of this worker: the name of the pod")
	set.StringVar(&o.zone, "zone", "", "`zone` of this node, such as a data center: votes are spread over zones")
	set.StringVar(&o.listen, "listen", ":7000", "`address` for nodes and clients")
	set.StringVar(&o.advertise, "advertise", "", "`address` at which others reach this node")
	set.StringVar(&o.dir, "dir", "/var/lib/tenuto", "`directory` of the journal")
	set.IntVar(&o.found, "found", 3, "`number` of nodes that found the cluster")
	set.DurationVar(&o.replaceAfter, "replace-after", time.Minute, "`time` after which a lost disk is replaced, recorded when the cluster is founded")
	set.StringVar(&o.cert, "cert", "", "`file` with the certificate; without it, only loopback can be used")
	set.StringVar(&o.key, "key", "", "`file` with the key of the certificate")
	set.StringVar(&o.authorities, "ca", "", "`file` with the trusted authorities")
	set.StringVar(&o.service, "service", "tenuto", "`name` of the headless Service in the DNS")
	set.IntVar(&o.port, "port", 7000, "`port` at which all nodes listen")
	set.StringVar(&o.resolver, "resolver", "", "`address` of a DNS server instead of that of the system")
	set.StringVar(&o.probesAt, "probes", ":8080", "`address` for /healthz and /readyz")
	set.StringVar(&o.ordersAt, "orders", ":8000", "`address` at which a worker takes orders")
	set.DurationVar(&o.drain, "drain", 0, "`time` between not being ready and stopping")
	return o
}

// run runs a node or a worker, with its probes, until ctx ends.
func run(ctx context.Context, o options) error {
	p := new(probes)
	closeProbes, err := serve(o.probesAt, p)
	if err != nil {
		return err
	}
	defer closeProbes()
	if o.worker {
		return runWorker(ctx, o, p)
	}
	return runNode(ctx, o, p)
}

// discover returns how nodes and workers find nodes: by the addresses of the pods of the Service.
func (o options) discover() discovery.Func {
	if o.resolver == "" {
		return discovery.DNS(o.service, o.port, nil)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", o.resolver)
	}
	return discovery.DNS(o.service, o.port, &net.Resolver{PreferGo: true, Dial: dial})
}

// keys returns where TLS keys come from. The files are read again when they change.
func (o options) keys() cluster.KeySource {
	if o.cert == "" {
		return nil
	}
	return cluster.KeyFiles(o.cert, o.key, o.authorities)
}

// runNode runs a node until ctx ends or the node fails.
func runNode(ctx context.Context, o options, p *probes) error {
	node, err := cluster.Start(ctx, cluster.Config{
		NodeID: o.id, Zone: o.zone, Listen: o.listen, Advertise: o.advertise, Dir: o.dir, TLS: o.keys(),
		Discover: o.discover(),
		Found:    o.found,
		Settings: cluster.Settings{
			ReplaceLostAfter: o.replaceAfter,
			// There may be any number of workers, so the activities are theirs: by default they
			// would get only those for which the leader's node has no slot.
			ActivityPlacement: "workers first",
		},
		Definitions: definitions(o.id),
	})
	if err != nil {
		return ended(ctx, err)
	}
	p.use(node.HealthHandler())
	select {
	case <-ctx.Done():
		// The end of ctx has begun to stop the node: it hands its leadership over first.
		return node.Stop(context.WithoutCancel(ctx))
	case <-node.Failed():
		return errors.Join(node.Err(), node.Close()) // Kubernetes starts another process
	}
}

// dialConfig returns how a worker reaches the cluster.
func (o options) dialConfig() cluster.DialConfig {
	return cluster.DialConfig{
		TLS:         o.keys(),
		Discover:    o.discover(),
		WorkerName:  o.id,
		Definitions: definitions(o.id),
	}
}

// runWorker takes orders and runs activities until ctx ends.
func runWorker(ctx context.Context, o options, p *probes) error {
	var client *cluster.Client
	for client == nil { // the nodes may be starting
		var err error
		if client, err = cluster.Dial(ctx, o.dialConfig()); err != nil && !errors.As(err, new(*cluster.UnavailableError)) {
			return ended(ctx, err)
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	defer client.Close()
	closeOrders, err := serve(o.ordersAt, takeOrders(client))
	if err != nil {
		return err
	}
	defer closeOrders()
	p.use(workerProbes(ctx, client))
	<-ctx.Done()
	p.drain()
	time.Sleep(o.drain) // load balancers may still send orders here
	return nil
}

// ended returns nil instead of an error that came because the program was told to stop.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// probes answers /healthz and /readyz: before the start has ended, that the process is alive and
// not ready.
type probes struct{ handler atomic.Pointer[http.Handler] }

// use passes probes on to a handler.
func (p *probes) use(handler http.Handler) { p.handler.Store(&handler) }

// drain makes the process not ready any more.
func (p *probes) drain() { p.handler.Store(nil) }

// ServeHTTP implements http.Handler.
func (p *probes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if handler := p.handler.Load(); handler != nil {
		(*handler).ServeHTTP(w, r)
		return
	}
	if r.URL.Path != "/healthz" {
		http.Error(w, "starting or stopping", http.StatusServiceUnavailable)
	}
}

// workerProbes returns probes of a program that is ready while the cluster has a leader.
func workerProbes(ctx context.Context, client *cluster.Client) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		soon, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if _, err := client.Members(soon); err != nil || ctx.Err() != nil {
			http.Error(w, fmt.Sprint("the cluster does not answer: ", err), http.StatusServiceUnavailable)
		}
	})
	return mux
}

// serve serves HTTP at an address. done stops it and waits for requests in progress, for at most 5
// s.
func serve(address string, handler http.Handler) (done func(), err error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Print(err)
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = server.Shutdown(ctx)
		<-ended
	}, nil
}
