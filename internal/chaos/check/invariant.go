package check

// An Invariant is a property that must hold in every run, whatever faults were injected.
type Invariant struct {
	ID        string
	Statement string
	check     func(c *checker) // adds a violation for each breach that it finds
}

// Invariants lists all invariants, in the order in which they are checked and reported.
var Invariants = []Invariant{
	{ID: "S1", Statement: "The events of an execution are numbered 1, 2, 3 … without a gap.", check: (*checker).checkGapless},
	{ID: "S2", Statement: "Each epoch of a partition has one leader, and timestamps of a history never go back.", check: (*checker).checkOneLeader},
	{ID: "S3", Statement: "Of two reads of a history one is a prefix of the other; a later linearizable read is never shorter.", check: (*checker).checkPrefixes},
	{ID: "S4", Statement: "Nodes that have applied the same entries have the same state.", check: (*checker).checkReplicas},
	{ID: "S5", Statement: "What was acknowledged is never lost.", check: (*checker).checkAcknowledged},
	{ID: "S6", Statement: "An input with a request ID is recorded at most once.", check: (*checker).checkRecordedOnce},
	{ID: "S7", Statement: "Every event has a cause: a call that was made, or an earlier event.", check: (*checker).checkCauses},
	{ID: "S8", Statement: "An operation has at most one completion.", check: (*checker).checkOneCompletion},
	{ID: "S9", Statement: "An activity starts only after its schedule is committed.", check: (*checker).checkActivitiesScheduled},
	{ID: "S10", Statement: "The recorded result of an activity is the result of one of its attempts.", check: (*checker).checkResults},
	{ID: "S11", Statement: "No attempt starts long after its instance ended; without faults every activity is attempted once.", check: (*checker).checkAttempts},
	{ID: "S12", Statement: "No timer fires early, measured by the harness's clock.", check: (*checker).checkTimersNotEarly},
	{ID: "S13", Statement: "A timer fires once, for the deadline that was set, and never after it was canceled.", check: (*checker).checkTimers},
	{ID: "S14", Statement: "A child or a chained instance is started once, and its parent records its end once and unchanged.", check: (*checker).checkChildren},
	{ID: "S15", Statement: "Events of one sender are consumed once each, in order, also across continue-as-new; updates are executed once each, one after the other.", check: (*checker).checkSenders},
	{ID: "S16", Statement: "Replaying a history makes the code request the same operations again.", check: (*checker).checkReplay},
	{ID: "S17", Statement: "An execution has a successor if and only if it continued as new, and the successor takes over the unconsumed inputs.", check: (*checker).checkContinueAsNew},
	{ID: "S18", Statement: "No event follows a terminal event, and the state of the instance agrees with it.", check: (*checker).checkTerminalEvents},
	{ID: "S19", Statement: "After a termination is acknowledged no new attempt starts, and the instance stays terminated.", check: (*checker).checkTerminated},
	{ID: "S20", Statement: "The calls on an instance are linearizable.", check: (*checker).checkLinearizable},
	{ID: "S21", Statement: "The index that one client reads from a partition never goes back.", check: (*checker).checkSessions},
	{ID: "S22", Statement: "A node that was sent a snapshot has the same state as the others, request IDs included.", check: (*checker).checkSnapshots},
	{ID: "S23", Statement: "Payloads are returned unchanged.", check: (*checker).checkPayloads},
	{ID: "S24", Statement: "A purged instance stays purged.", check: (*checker).checkPurged},
	{ID: "S25", Statement: "A term of a partition has at most one leader, and a removed, wiped or copied node takes no part.", check: (*checker).checkTerms},
	{ID: "S26", Statement: "No error inside the engine ends its process or keeps the process from stopping.", check: (*checker).checkProcesses},
	{ID: "S27", Statement: "A call that reports that it was not executed has had no effect.", check: (*checker).checkNotExecuted},
	{ID: "S28", Statement: "Gets never go back, and a list shows each instance that existed before it exactly once.", check: (*checker).checkReads},
	{ID: "S29", Statement: "A watch shows every event once and in order, up to the end.", check: (*checker).checkWatches},
	{ID: "S30", Statement: "Cancellations, suspensions and external completions are recorded if and only if they were acknowledged.", check: (*checker).checkCommands},
	{ID: "S31", Statement: "A message between instances that was delivered is recorded once, by its receiver; a rejected one never.", check: (*checker).checkMessages},
	{ID: "S32", Statement: "A restored backup has what was acknowledged before the backup began, and each effect in it has its cause.", check: (*checker).checkBackups},
	{ID: "S33", Statement: "A recovered cluster has all that the survivor had and works; what else was acknowledged is missing only in instances that the recovery counts.", check: (*checker).checkRecoveries},
	{ID: "S34", Statement: "After voters were lost, moved or set to be standbys, as many members vote as the settings want, and none that must not.", check: (*checker).checkMembers},
	{ID: "S35", Statement: "An activity that began on a worker is completed once, and begins again only because of faults, a bounded number of times.", check: (*checker).checkWorkers},
	{ID: "L2", Statement: "After all faults are healed, every instance that can end does end.", check: (*checker).checkEnded},
	{ID: "L9", Statement: "An activity that starts in a phase without faults is attempted once.", check: (*checker).checkAttemptedOnce},
	{ID: "L10", Statement: "In a phase without faults every instance ends, and every kind of client gets answers.", check: (*checker).checkFaultFreeProgress},
	{ID: "L11", Statement: "Writes in a phase without faults take no longer than before the first fault.", check: (*checker).checkLatency},
}
