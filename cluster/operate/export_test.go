package operate

// PlanDrainOf is planDrain for tests.
var PlanDrainOf = planDrain
