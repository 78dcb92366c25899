package cluster

import (
	"fmt"
	"runtime/debug"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A panic in a call is a bug of this package, or of a function of the application such as
// Config.Authorize. It fails only that call, because the process belongs to the application.

// panicMessage is the log message for a call that panicked.
const panicMessage = "call panicked; only this call fails, the node keeps running"

// A panicError is the error of a call that panicked. The outcome of the call is unknown.
type panicError struct{ call, node string }

func (e *panicError) Error() string {
	return fmt.Sprintf("%s panicked on node %q, see the stack in its log", e.call, e.node)
}

// recoverCall runs a part of a call and turns a panic in it into an error.
func (n *Node) recoverCall(request *clusterpb.Request, do func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = n.logPanic(requestKind(request), request.Instance, value)
		}
	}()
	return do()
}

// recoverStream runs a part of a stream and turns a panic in it into the stream's status.
func (n *Node) recoverStream(name string, do func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = status.Error(codes.Internal, n.logPanic(name, "", value).Error())
		}
	}()
	return do()
}

// logPanic logs a panic with its stack and returns it as an error. It must be called by the
// deferred function that recovered.
func (n *Node) logPanic(call, instance string, value any) error {
	n.config.Logger.Error(panicMessage, "call", call, "instance", instance,
		"panic", fmt.Sprint(value), "stack", string(debug.Stack()))
	return &panicError{call, n.config.NodeID}
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
