package journal

import (
	"context"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// raftLogger returns a logger for the Raft library that passes what it warns of
// on to to.
func raftLogger(to *slog.Logger) hclog.Logger {
	logger := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Level: hclog.Off, Output: io.Discard})
	logger.RegisterSink(slogSink{to})
	return logger
}

type slogSink struct {
	to *slog.Logger
}

// Accept implements hclog.SinkAdapter.
func (s slogSink) Accept(name string, level hclog.Level, message string, args ...any) {
	var as slog.Level
	switch {
	case level >= hclog.Error:
		as = slog.LevelError
	case level == hclog.Warn:
		as = slog.LevelWarn
	default:
		return // the library's news are not ours
	}
	s.to.Log(context.Background(), as, name+": "+message, args...)
}
