package hook

// Package history sets them when it is initialized.
var (
	// New is a func(execution uint64, message *journalpb.Event) history.Event.
	New any
	// Message is a func(history.Event) *journalpb.Event.
	Message any
)
