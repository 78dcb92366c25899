package operate

// For tests.
var (
	PlanDrainOf = planDrain
	TransferAll = transferAll
)
