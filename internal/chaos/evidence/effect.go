package evidence

import "time"

// A Task is the input of the activity that all workloads call.
type Task struct {
	Label string
	Value int
	Pause time.Duration `json:",omitempty"` // how long the attempt takes
	// For a task that follows a timer: the nonce of the result before the timer was set, and the
	// timer's duration.
	After string        `json:",omitempty"`
	Delay time.Duration `json:",omitempty"`
}

// A TaskResult is the result of the activity. Each attempt has another nonce, which identifies the
// attempt whose result was recorded.
type TaskResult struct {
	Value int
	Nonce string
}

// An Effect is what an attempt reports: that it starts, or that it has finished.
type Effect struct {
	Instance   string
	Execution  uint64
	EventID    uint64
	Attempt    int
	Node       string
	Generation int
	Task       Task
	Finished   bool
	Result     TaskResult // if Finished
	// At the start: this node leads the partition and had not applied the schedule.
	ScheduleNotApplied bool `json:",omitempty"`
	// It runs in a process without a node.
	Worker bool `json:",omitempty"`
	// The token with which the attempt is completed externally.
	Token string `json:",omitempty"`
	At    time.Duration
}
