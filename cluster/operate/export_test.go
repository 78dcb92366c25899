package operate

// For tests.
var (
	PlanDrainOf = planDrain
	AwaitPlan   = awaitPlan
	TransferAll = transferAll
)
