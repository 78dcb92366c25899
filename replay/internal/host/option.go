package host

import "time"

// ActivityOptions are the options of one call of an activity. The zero value sets none.
type ActivityOptions struct {
	ScheduleToStart time.Duration
	StartToClose    time.Duration
	ScheduleToClose time.Duration
	Heartbeat       time.Duration
	Tag             string
	Retry           *RetryPolicy
}

// A RetryPolicy has the fields of replay.RetryPolicy, where they are described.
type RetryPolicy struct {
	InitialInterval   time.Duration
	Backoff           float64
	MaxInterval       time.Duration
	MaxAttempts       int
	NonRetryableCodes []string
	PanicsAreFinal    bool
}

// ChildOptions are the options of the start of a child or chained instance. The zero value sets
// none.
type ChildOptions struct {
	ID          string
	Version     string
	ClosePolicy int32 // the number in journalpb.ClosePolicy
}
