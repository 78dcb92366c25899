package operation

import "github.com/tenuto-dev/tenuto/proto/journalpb"

// A Key is a comparable [journalpb.OperationRef], or identifies one of the timers of an operation.
type Key struct {
	Instance string
	// Incarnation is that of the run that the execution belongs to.
	Incarnation uint64
	Execution   uint64
	EventID     uint64
	Timer       uint8 // which timer of an activity; 0 for the operation itself
}

// KeyOf returns the key of an operation.
func KeyOf(ref *journalpb.OperationRef) Key {
	return Key{Instance: ref.Instance, Incarnation: ref.Incarnation, Execution: ref.Execution, EventID: ref.EventId}
}
