package raftnode

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/internal/logqueue"
)

// NewLogger returns a logger for the Raft library that passes its warnings and errors on to the
// given one. A single node elects itself at every start, so its warning of that becomes a debug
// message. Members that are briefly away are logged by the journal instead.
func NewLogger(to *slog.Logger, alone bool) hclog.Logger {
	logger := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Level: hclog.Off, Output: io.Discard})
	logger.RegisterSink(slogSink{to, alone})
	return logger
}

// noWaitContext lets a log call return without waiting for the handler. The library's logger holds
// a lock while it calls its sinks.
var noWaitContext = logqueue.NoWait(context.Background())

type slogSink struct {
	to         *slog.Logger
	singleNode bool
}

// Accept implements hclog.SinkAdapter.
func (s slogSink) Accept(name string, level hclog.Level, message string, args ...any) {
	var as slog.Level
	switch {
	case level >= hclog.Warn && isHealthy(message, args):
		as = slog.LevelDebug
	case level >= hclog.Error:
		as = slog.LevelError
	case level == hclog.Warn && s.singleNode && strings.HasPrefix(message, "heartbeat timeout reached"):
		as = slog.LevelDebug
	case level == hclog.Warn:
		as = slog.LevelWarn
	default:
		return // the library's info messages are dropped
	}
	s.to.Log(noWaitContext, as, name+": "+message, args...)
}

// contactMessages are prefixes of messages that healthy operations make the library log: a member
// was not reached, an election or a comparison of logs is in progress, or a node has no members
// yet.
var contactMessages = []string{
	"failed to heartbeat to", "failed to appendEntries to", "failed to make requestVote RPC",
	"failed to start pipeline replication to", "failed to pipeline appendEntries", "failed to send snapshot to",
	"failed to contact", "peer has newer term", "target does not support pre-vote RPC",
	"rejecting vote request", "rejecting pre-vote request", "duplicate requestVote",
	"no known peers, aborting election", "not part of stable configuration, aborting election",
	"heartbeat timeout reached", "Election timeout reached", "new leader elected, stepping down",
	"skipping application of old log", "appendEntries rejected", "failed to get previous log", "previous log term mis-match", "clearing log suffix",
}

func isContactMessage(message string) bool {
	return slices.ContainsFunc(contactMessages, func(begin string) bool { return strings.HasPrefix(message, begin) })
}

// isHealthy reports whether healthy operations make the library log the message, with the error
// among its arguments.
func isHealthy(message string, args []any) bool {
	if isContactMessage(message) {
		return true
	}
	var err error
	for _, arg := range args {
		if e, ok := arg.(error); ok {
			err = e
		}
	}
	switch message {
	case "failed to decode incoming command", "failed to flush response":
		return isConnectionEndError(err)
	case "failed to install snapshot":
		return errors.As(err, new(*net.OpError))
	case "failed to get log": // a member needs a snapshot; where a missing entry is a fault, the library panics
		return errors.Is(err, raft.ErrLogNotFound)
	case "failed to take snapshot": // the latest change of members is not applied yet; the library has no error value
		return err != nil && strings.HasPrefix(err.Error(), "cannot take snapshot now")
	}
	return false
}

func isConnectionEndError(err error) bool {
	for _, end := range []error{net.ErrClosed, io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, raft.ErrTransportShutdown, syscall.ECONNRESET, syscall.EPIPE, syscall.ETIMEDOUT, os.ErrDeadlineExceeded} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}
