// Package cluster runs Tenuto inside an application: a node, the nodes around
// it, and the client through which instances are started, told things and
// waited for.
//
//	node, err := cluster.Start(ctx, cluster.Config{
//		Dir:         "data",
//		Definitions: []replay.Definition{Greet.Bind(greet), Hello.Bind(hello)},
//	})
//	...
//	greeting, err := cluster.Call(ctx, node.Client(), Hello, "hello-1", "Ada")
//
// One node with a directory is a complete system. Three make one that goes on
// when any of them dies.
//
// # What a client does
//
//   - It starts instances: [Call], [StartRun], with options for the version, the
//     time, tags, and what is to happen when the ID is taken.
//   - It gives them input: [Send] an event, [SendOrStart], [CallUpdate] to have
//     something done and answered, [Client.Cancel], [Client.Suspend],
//     [Client.Resume], [Client.Terminate], [Client.Retry].
//   - It ends activities from outside: [CompleteActivity], [FailActivity].
//   - It asks: [Query] reads from the running code, [Client.Get] and
//     [Client.Pending] tell what an instance is doing, [Client.Wait] and
//     [Run.Wait] how it ended, [Client.History] and [Client.Executions] what it
//     did, [Client.Watch] what it does, event by event as they commit.
//   - It finds: [Client.List] and [Client.Count] by state, name, version, tags,
//     parent, time.
//   - It clears away: [Client.Purge], and by itself with Config.Retention.
//
// Functions are typed by the handles of package replay; methods are not.
//
// # Guarantees
//
// Of every call:
//
//  1. A start, an event, an update or a result that was acknowledged is on the
//     disks of a majority of the nodes.
//  2. A call to any node is brought to the leader, through changes of leadership, until
//     it is answered, or its context ends; one without a deadline has Config.CallTimeout.
//     A start that waits in line may be refused after 2 s, see "Busy". Stale reads, waits
//     and watches read the replica of a node instead.
//  3. An error says whether nothing happened or whether the outcome is unknown
//     (see [UnavailableError]). That something is not there, is there already or
//     has ended is said by a node that leads while it says so.
//  4. Starts, events, updates, cancellations, suspensions and resumptions carry a
//     request ID: their own repetitions have no second effect, and get the answer that
//     was lost, also when the run has ended since, however much it has recorded
//     meanwhile. A repeated termination is recognized by its reason, the end of an
//     activity by its token and content. When the instance was purged and started anew
//     meanwhile, the outcome is unknown; the later run gets nothing. Starts are excepted:
//     one that is repeated after its run was purged begins a new run. A user who names a
//     call ([RequestID], [EventID], [UpdateID]) can repeat it in the same way, for as
//     long as the ID is known: [RequestID] and [EventID] say how long.
//
// Of input and signals:
//
//  5. Events are taken in the order in which they were acknowledged, one after
//     the other to one instance; none is lost that the code does not wait for yet.
//  6. A cancellation is a request: the code may clean up. An execution records at most
//     one of clients and one of its parent. A termination runs no code, and so ends what
//     is stalled or waits for code. Events, completions, timers and cancellations of a
//     suspended instance are recorded, and take effect when it is resumed; terminations,
//     queries and validations of updates do not wait.
//  7. A run has one end. Events, updates, queries, cancellations, terminations,
//     suspensions and resumptions that come after it are answered with [ErrEnded],
//     unless they repeat one that was recorded.
//  8. An update is carried out once, or not at all, and then its caller is told; or
//     the outcome is unknown, as 4 says. What was refused, and what is asked by a
//     query, is recorded nowhere.
//
// Of activities that end from outside:
//
//  9. A token is that of one attempt. Of all that is brought with it one is
//     recorded; the same again is no error, anything else is [ErrActivityClosed],
//     also in a later execution and after the end. When a later attempt has failed, or
//     has ended the activity, a recorded failure is answered with [ErrActivityClosed] too.
//  10. A pending attempt outlives its leader: it is not begun again, and its token
//     stays good.
//
// Of reading:
//
//  11. What Get and History return was true at some moment of the call; of what List,
//     Count, Executions and Pending return, each item was. All show everything that was
//     acknowledged before the call, on every node alike, unless [Stale] asks for less. A
//     long history that is purged and started anew while it is read may mix both runs. A
//     stale read is answered by this node alone, as of an index of the journal that never
//     goes back while the node runs. Get, History and List say up to which index they
//     reach (of several groups, List: the sum of their indexes).
//  12. What [Client.Watch], the Wait methods and [CallUpdate] see is committed,
//     and no event is left out; how late it is depends on this node. They end when
//     what they wait for was purged.
//  13. A page of [Client.List] follows the one before it in the order of IDs, so
//     that what is there during the whole listing is in it once.
//
// Of nodes:
//
//  14. Retention and Purge remove nothing that runs, and nothing that a relative
//     still needs. Nothing is removed before its time. Nothing of a purged run
//     reaches the run that has its ID later: no child, no result, no token and no
//     idempotency key. Runs that began before the cluster spoke protocol 3 are
//     excepted.
//  15. [Node.Close] ends every goroutine of the node, except activities that ignore the
//     end of their context, orchestration code that is blocked outside of durable calls,
//     a log handler that blocks, and, when it returns an error because the disk hangs,
//     those that wait for the disk.
//
// # Several groups
//
// One Raft group keeps all instances, and one node leads it: that is the limit of
// a cluster, however many nodes there are. Config.Groups has several groups keep
// them between them, each on all nodes; an instance belongs to one of them by its
// ID, for ever. Leaders are spread over the nodes, and moved when one carries much
// more than another; [Client.Members] and [Health] say who leads what. All guarantees
// hold with several groups: children and chained starts may be in any group, and lists
// go through all of them. On one disk more groups are slower, not faster.
//
// # Clients elsewhere
//
// [Dial] makes a client in a program that embeds no node. It is used in the same
// way, with the same guarantees, and needs the address of one node, from which it
// learns the others:
//
//	client, err := cluster.Dial(ctx, cluster.DialConfig{
//		Addresses: []string{"10.0.0.1:7400", "10.0.0.2:7400"},
//		TLS:       cluster.KeyFiles("client.crt", "client.key", "roots.crt"),
//	})
//	...
//	defer client.Close()
//
// Its waits and watches are calls of a few seconds each, which say where they
// stand, so that another node takes them on where one was lost.
//
// # Security
//
// Nodes and remote clients talk over TLS 1.3, and both sides show a certificate of
// an authority of your own. A certificate names its owner by a URI among its
// alternative names, and by nothing else:
//
//	tenuto://CLUSTER-ID/node/NODE-ID
//	tenuto://CLUSTER-ID/client/NAME
//
// Of what comes over the network
//
//   - connections for Raft are taken from nodes that are members now, and from
//     nobody else, and each message on them in the name of that node alone; a node
//     that dials another one makes sure that it is that one;
//   - what is between nodes is taken from members alone. A node that is none may
//     ask to become one, in the name that its certificate has; see below;
//   - calls are taken from clients too, if Config.Authorize has nothing against
//     them. Reads are calls as well.
//
// Keys are asked for before every handshake ([KeySource]), so they are replaced
// without a restart: first the authorities of all nodes and clients, to the old and
// the new one, then the certificates, then the authorities to the new one alone.
// Connections are renewed every 10 minutes, so that is how long a certificate may be
// in use that is not believed any more. Connections whose certificate has expired end
// within a second, and so do those that a removed node has opened, and all for Raft
// between it and the members.
//
// Without TLS a node listens, and is called, on loopback only, and everybody on the
// machine may do everything.
//
// Connections have 5 s to say who they are, 128 at a time. Of clients 1,024 may be open,
// with TLS 256 of them of one client; of nodes 256 for calls, and 256 for Raft of each
// group. A request has at most 8 MiB, and a payload in it what Config.Payloads allows, a
// third more with a codec.
//
// # Members
//
// Config.Peers found a cluster, together: each waits until all of them have answered that
// their Dir is empty too, and they agree on who they are before anything is recorded. So all
// of them have to run once, at the same time. Later nodes are added through any member
// (Config.Join), without a vote until they have caught up. [Client.Members] lists
// them, [Client.RemoveNode] removes one for ever. Three things decide who is added:
//
//   - The node ID says who it is, for ever. An ID that was removed never comes back.
//   - The certificate, with TLS, proves the ID: nobody joins under an ID that its
//     certificate does not have, whatever token it shows.
//   - The token, where Config.RequireJoinToken asks for one, is the consent of the
//     cluster to one more node, in addition: [Client.IssueJoinToken], or the command
//     "tenuto token", makes it, it is good for an hour or as long as is said, and for
//     the first node that uses it. That is recorded, so it holds through any change of
//     leaders. The node signs its request with it: what is overheard is of no use to
//     others. [Client.JoinTokens] lists tokens, [Client.RevokeJoinToken] takes one back. A member needs it no more.
//
// Every Dir has a random identity, which the cluster records with the node ID. A node whose Dir
// was lost, or is another one, gets no vote, acknowledges nothing and founds nothing: it does
// not know what it has acknowledged and for whom it has voted. It says so
// ([ErrOtherDirectory], [Health]) and waits until its own Dir is back, or until it is replaced:
// [Client.RemoveNode], and a node of another name that joins; or, to keep the name,
// [Client.AdoptNode] ("tenuto adopt"), after which it has no vote until it has caught up. Both
// need a majority of the nodes with a vote, of which that one is none, with their own Dirs:
// what a majority has lost, no command brings back. A cluster of two cannot do without either
// Dir. A node with InMemory has a new identity at each start.
//
// A copy of a Dir that is started while the node runs is refused, and steps aside with
// [ErrCopied]; the node goes on, logs it and counts it in [Health]. A copy or backup that is
// started while the node is down is refused only if a running member remembers a later start.
// It may lack what the node has acknowledged since, and if it is not refused, the node itself
// is when it starts: it may lack what the copy has acknowledged. Never start one: add an empty
// node instead. A node that was founded alone and has lost its Dir founds another
// cluster; nodes that have joined it refuse it.
//
// Nodes whose Dir was made by a release before protocol 3 get an identity when they start, and
// the cluster records the one that each shows first, once all members speak that protocol.
//
// Without a token whoever has a node's certificate of a new name is added; without
// TLS, which is on loopback only, whoever asks. Refusals are [ErrTokenRequired],
// [ErrTokenInvalid], [ErrTokenExpired] and [ErrTokenUsed], and change nothing.
//
// # Time
//
// Timers, limits of time and the timestamps of events go by a time that the leaders
// hand on to each other, not by anybody's wall clock:
//
//   - A timer of an hour fires when an hour has passed, whichever nodes have led, and
//     whatever was done to wall clocks meanwhile. It is late by the time in which
//     nobody led, and a little with each change of leaders.
//   - What waits for a date ([StartAt]) is late by what the cluster's time is behind
//     the date. While it is behind the leader's wall clock it goes faster by one part in
//     2,000: it catches up by 1.8 s an hour, and a timer of an hour may be as much
//     early.
//   - For how long all nodes were down, only wall clocks can tell. Each node knows how
//     its own stood to the cluster's time; of what they come to, the middle is taken,
//     of two the earlier. So one clock that was set meanwhile does no harm to three
//     nodes that come back; a node alone believes its own.
//   - The time in which the machines of all nodes sleep counts as none.
//   - Every time that is shown is of this clock: ctx.Now, [replay.Attempt.Scheduled], the
//     timestamps of events, of a [Status] and of an [OpenOperation]. It may differ from
//     the time of a machine by any amount. The deadline of an activity's context alone is
//     a time of the machine that makes the attempt.
//
// # Workers
//
// Every node runs activities for the one that leads, which takes its own places
// first. A node that stops hands back what it has begun, and others begin it again at
// once; one that is lost is waited for half a second. A result is kept until the
// leader has recorded it.
//
// # Busy
//
// A leader with too much to do refuses new work ([BusyError]) before anything was
// done. Calls wait then, and are repeated: one in ten as soon as the leader says, the
// others with pauses that grow to 2 s, give or take a half, until their context ends;
// one without a deadline has Config.CallTimeout, or DialConfig.CallTimeout. Starts wait
// in line; when that gets long, the newest come first, and while more come than the leader
// takes, all but 128 of a node are refused after 2 s. A caller who would rather know at
// once, to tell callers of his own, makes the call in a context of [WithoutBusyRepeats].
//
// What the leader would refuse is mostly refused by the node that was called: for a
// second after a refusal it brings the leader few more starts than that takes. Of the
// calls of a node to one group, 1,024 are with the leader at once; more wait for up to
// half a second, and are refused then. BusyError.Bound says which bound was met.
//
// A node allocates some 25 KB for an orchestration of a few activities and keeps little
// of it. With Go's default of GOGC=100 a process that does thousands a second collects its
// garbage several times a second, and while it does heartbeats have to wait for a
// processor. Processes that are to take that much should run with GOGC=400, or with
// GOMEMLIMIT; a node leaves the process's settings alone.
//
// # Stopping and upgrading
//
// [Node.Stop] hands leadership to the follower that is least behind, then ends. So a
// rolling restart (stop, start, wait until [Health.Ready], the next) loses nothing. If
// every node has a vote ([Client.Members]), it always leaves a majority that stores.
//
// While nodes differ in their code, a node may lead instances that it has no code for:
// they are in the state [WaitingForCode]. As soon as something arrives for one of them,
// or it is started, leadership of its partition moves to a ready node with a vote that has
// the code, within seconds; but only to one that has every orchestration, version and
// activity that the leader has. If there is none, leadership stays, and the instances wait.
// A child or chained instance that was started without a version, where the leader has no
// code of that name, waits as version [replay.NewestVersion]; code of any version will do.
// To spread the leaders, a partition goes to no node that is known to lack code of the
// leader; Node.Stop does not look at code. A start by a client of what the leader has no
// code for is refused with [ErrNoCode].
//
// A version of this software speaks a protocol and the one before: between nodes and
// in the journal. The cluster stays with the older one until every member speaks the
// newer one, and then comes to it by itself; Health.Protocol says how far it is.
// Until then each node may go back to the version before. Afterwards, and where
// versions are further apart, a node steps aside, or is refused, with a
// [VersionError] that names both.
//
// # Health, metrics, traces, logs
//
// [Node.Health] tells how the node is, [Health.Ready] and [Health.Live] what that
// means; [Node.HealthHandler] answers probes with it at /healthz and /readyz.
//
// Figures go to Config.MeterProvider, and package cluster/prometheus shows them
// to Prometheus; METRICS.md lists them. They carry names of definitions and of nodes,
// never an instance ID.
//
// Spans go to Config.TracerProvider: one for a call that starts an instance, one
// for each execution from its start to its end, made when the end is committed, and
// one for each attempt of an activity, on the node that makes it. The body's
// context carries it, so that spans of its own nest. The span that a start is part
// of is recorded with it, as a W3C traceparent without its tracestate; children,
// chained starts and later executions go on with it, on every node and after any
// restart. Give the provider the ID generator [SpanIDs] to have attempts and
// children within the spans of their executions. Replaying makes no spans. A node
// that stops in the wrong moment may lose one: spans are not journaled. What was
// started outside of any trace, with tracing off, is not traced later.
//
//	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithIDGenerator(cluster.SpanIDs{}))
//	node, err := cluster.Start(ctx, cluster.Config{TracerProvider: provider, …})
//	mux.Handle("/metrics", prometheus.Handler(node))
//	mux.Handle("/node/", http.StripPrefix("/node", node.HealthHandler()))
//
// Logs go to Config.Logger. Each line has "node", and "instance", "execution" and
// "event_id" where it concerns one. At INFO a node says with what it starts, and when it is
// ready; at WARN what an operator may have to act on, such as a member that has not answered for
// 10 s; at ERROR what has failed. To restart healthy nodes one after the other logs no ERROR. What
// the Raft library says of its connections and elections is logged at DEBUG. None of all this holds a payload; what an
// activity's error says is in the log.
//
// # What may not be assumed
//
// Progress without a majority. That an activity runs once. That nodes on anything
// but loopback can talk without TLS (they refuse). That the ID which a user gave to a
// call is still known after the instance was purged, or when 256 other inputs and a
// continue-as-new have come since.
//
// That a call to a stalled instance, or to one that waits for code, is answered: starts under
// its ID, events, updates, queries, cancellations, suspensions and resumptions wait in the
// memory of the leader until it goes on or their context ends. The outcome is unknown then:
// they may be recorded later, or be lost when another node leads. (Terminations, retries and
// reads do not wait, and the end of an activity is answered with [ErrStalled].) That two queries see the same
// instance at rest: it goes on between them. That an update sees what its
// validation saw: others may come in between. That a list shows one moment of all
// its pages, or that one with a filter costs less than one without: each looks at
// every instance of the index. That a watch is told of each change at once, or
// that a slow one holds anything up. That two stale reads on two nodes agree, or
// that one tells what only the leader knows: that an instance waits for code. That
// retention purges on the second: it looks when the next instance is due, but at most once
// a minute, or as often as its shortest time says if that is less; what a relative still
// needed may stay for that shortest time longer. That an ID which was purged is still
// taken: a start that is repeated after that begins anew.
package cluster
