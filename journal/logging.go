package journal

import (
	"context"
	"io"
	"log/slog"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/tenuto-dev/tenuto/internal/logqueue"
)

// raftLogger returns a logger for the Raft library that passes what it warns of
// on to to. A group of one elects itself at every start, which is no warning.
func raftLogger(to *slog.Logger, alone bool) hclog.Logger {
	logger := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Level: hclog.Off, Output: io.Discard})
	logger.RegisterSink(slogSink{to, alone})
	return logger
}

// notWaiting is for the library's logger, which holds a lock while it calls its sinks.
var notWaiting = logqueue.NoWait(context.Background())

type slogSink struct {
	to    *slog.Logger
	alone bool
}

// Accept implements hclog.SinkAdapter.
func (s slogSink) Accept(name string, level hclog.Level, message string, args ...any) {
	var as slog.Level
	switch {
	case level >= hclog.Error:
		as = slog.LevelError
	case level == hclog.Warn && s.alone && strings.HasPrefix(message, "heartbeat timeout reached"):
		as = slog.LevelDebug
	case level == hclog.Warn:
		as = slog.LevelWarn
	default:
		return // the library's news are not ours
	}
	s.to.Log(notWaiting, as, name+": "+message, args...)
}
