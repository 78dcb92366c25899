// Package journalpb stands in for the real one.
package journalpb

type (
	ActivityOptions           struct{}
	SubOrchestrationScheduled struct{}
	ClosePolicy               int32
)

const ClosePolicy_CLOSE_POLICY_ABANDON ClosePolicy = 3
