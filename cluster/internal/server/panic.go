package server

import (
	"fmt"
	"log/slog"
	"runtime/debug"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A panic in a call is a bug of package cluster, or of a function of the application such as
// Config.Authorize. It fails only that call, because the process belongs to the application.

// panicMessage is the log message for a call that panicked.
const panicMessage = "call panicked; only this call fails, the node keeps running"

// A Recoverer turns panics in calls into errors.
type Recoverer struct {
	Logger *slog.Logger
	Node   string // its ID
}

// A panicError is the error of a call that panicked. The outcome of the call is unknown.
type panicError struct{ call, node string }

func (e *panicError) Error() string {
	return fmt.Sprintf("%s panicked on node %q, see the stack in its log", e.call, e.node)
}

// Call runs a part of a call and turns a panic in it into an error.
func (r Recoverer) Call(request *clusterpb.Request, do func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = r.Log(requestKind(request), request.Instance, value)
		}
	}()
	return do()
}

// Stream runs a part of a stream and turns a panic in it into the stream's status.
func (r Recoverer) Stream(name string, do func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = status.Error(codes.Internal, r.Log(name, "", value).Error())
		}
	}()
	return do()
}

// Log logs a panic with its stack and returns it as an error. It must be called by the
// deferred function that recovered.
func (r Recoverer) Log(call, instance string, value any) error {
	r.Logger.Error(panicMessage, "call", call, "instance", instance,
		"panic", fmt.Sprint(value), "stack", string(debug.Stack()))
	return &panicError{call, r.Node}
}

// requestKind returns the name of a request's oneof field.
func requestKind(request *clusterpb.Request) string {
	message := request.ProtoReflect()
	field := message.WhichOneof(message.Descriptor().Oneofs().ByName("call"))
	if field == nil {
		return "unknown call"
	}
	return string(field.Name())
}
