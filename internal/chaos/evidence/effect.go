package evidence

import "time"

// A Task is the input of the activity that all workloads call.
type Task struct {
	Label string
	Value int
	Pause time.Duration `json:",omitempty"` // how long the work takes
	// The result that was had before a timer was set, and how long that was
	// for: this task is what follows the timer.
	After string        `json:",omitempty"`
	Delay time.Duration `json:",omitempty"`
}

// Done is its result. The nonce is another for every attempt, so that it tells
// whose result was recorded.
type Done struct {
	Value int
	Nonce string
}

// An Effect is what an attempt of an activity says of itself: that it begins,
// and that it is done.
type Effect struct {
	Instance  string
	Execution uint64
	EventID   uint64
	Attempt   int
	Node      string
	Life      int
	Task      Task
	Finished  bool
	Done      Done // when finished
	// At the beginning: the node on which it runs had not applied the schedule.
	Unseen bool `json:",omitempty"`
	// By which the attempt is completed from outside.
	Token string `json:",omitempty"`
	At    time.Duration
}
