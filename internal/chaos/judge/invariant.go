package judge

// An Invariant is something that must hold in every run, whatever is done to
// the nodes.
type Invariant struct {
	ID        string
	Statement string
	check     func(c *trial) // looks for violations
}

// Invariants are all of them, in order.
var Invariants = []Invariant{
	{ID: "S1", Statement: "The events of an execution are numbered 1, 2, 3 … without a gap.", check: (*trial).gapless},
	{ID: "S2", Statement: "One owner at a time writes: an epoch of a group has one leader, and timestamps of a history never go back.", check: (*trial).oneOwner},
	{ID: "S3", Statement: "Of two reads of a history one is a prefix of the other, and the later linearizable one is the longer.", check: (*trial).prefixes},
	{ID: "S4", Statement: "Nodes that have applied the same have the same.", check: (*trial).replicas},
	{ID: "S5", Statement: "What was acknowledged is there, for ever.", check: (*trial).acknowledged},
	{ID: "S6", Statement: "What has a request ID is recorded at most once.", check: (*trial).once},
	{ID: "S7", Statement: "Every event has a cause: a call that was made, or an event before it.", check: (*trial).caused},
	{ID: "S8", Statement: "An operation has at most one completion.", check: (*trial).oneCompletion},
	{ID: "S9", Statement: "An activity begins after its schedule is committed, and only then.", check: (*trial).noGhosts},
	{ID: "S10", Statement: "The recorded result of an activity is what one of its attempts came to.", check: (*trial).realResults},
	{ID: "S11", Statement: "Nothing is attempted long after the end; without faults everything is attempted once.", check: (*trial).attempts},
	{ID: "S12", Statement: "No timer fires early, by the harness's clock.", check: (*trial).neverEarly},
	{ID: "S13", Statement: "A timer fires once, for the time for which it was set, and not when it was given up.", check: (*trial).timers},
	{ID: "S14", Statement: "A child or a chained instance is one instance, and the end of a child comes to its parent once and unchanged.", check: (*trial).children},
	{ID: "S15", Statement: "Events of one sender are consumed once each, in order, also across continue-as-new; updates are carried out once each, one on what the other has left.", check: (*trial).senders},
	{ID: "S16", Statement: "The code asks for the same again when a history is replayed.", check: (*trial).replayed},
	{ID: "S17", Statement: "An execution follows another exactly when that continued as new, and takes over what was not consumed.", check: (*trial).continued},
	{ID: "S18", Statement: "Nothing follows a terminal event, and the state is what it says.", check: (*trial).terminals},
	{ID: "S19", Statement: "After a termination was acknowledged nothing more is attempted, and terminated is what it stays.", check: (*trial).terminated},
	{ID: "S20", Statement: "The calls on an instance are linearizable.", check: (*trial).linearizable},
	{ID: "S21", Statement: "The index that reads of a group show to one client never goes back.", check: (*trial).sessions},
	{ID: "S22", Statement: "A node that was sent a snapshot has what the others have, request IDs included.", check: (*trial).snapshots},
	{ID: "S23", Statement: "Payloads come out as they went in.", check: (*trial).payloads},
	{ID: "S24", Statement: "What was purged stays purged.", check: (*trial).purged},
	{ID: "S25", Statement: "A term of a group has one leader at most, and whoever was removed, wiped or copied takes no part.", check: (*trial).terms},
	{ID: "S26", Statement: "No fault of the engine ends the process around it, or keeps it from ending.", check: (*trial).hostsSurvive},
	{ID: "S27", Statement: "A call that says that nothing was done has done nothing.", check: (*trial).nothingDone},
	{ID: "S28", Statement: "Gets never go back, and a list shows once what was there before it.", check: (*trial).looks},
	{ID: "S29", Statement: "A watch shows every event once and in order, to the end.", check: (*trial).watches},
	{ID: "S30", Statement: "A cancellation, a suspension and a completion from outside are recorded if they were acknowledged, and only then.", check: (*trial).commands},
	{ID: "L2", Statement: "What can come to its end has come to it when nothing is wrong any more.", check: (*trial).ended},
	{ID: "L9", Statement: "What is begun while there are no faults is attempted once.", check: (*trial).triedOnce},
	{ID: "L10", Statement: "While there are no faults everything comes to its end, and every kind of client has answers.", check: (*trial).endedWithoutFaults},
	{ID: "L11", Statement: "Writes take no longer without faults than they did before the first one.", check: (*trial).latency},
}
