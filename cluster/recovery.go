package cluster

import (
	"fmt"
	"runtime/debug"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A panic in one call is a bug of ours, or of a function of the application's such as
// Config.Authorize. It fails that call alone: the process belongs to the application.

// panicMessage is what is logged of a call that panicked.
const panicMessage = "call panicked; only this call fails, the node goes on"

// A panicError is the panic of a call, as its error. The outcome of the call is unknown.
type panicError struct{ call, node string }

func (e *panicError) Error() string {
	return fmt.Sprintf("%s panicked on node %q, whose log has the stack", e.call, e.node)
}

// recovered does one part of a call. A panic in it becomes its error.
func (n *Node) recovered(request *clusterpb.Request, do func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = n.panicked(kindOf(request), request.Instance, value)
		}
	}()
	return do()
}

// recoveredStream serves a stream. A panic in it becomes the stream's status.
func (n *Node) recoveredStream(name string, do func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = status.Error(codes.Internal, n.panicked(name, "", value).Error())
		}
	}()
	return do()
}

// panicked logs a panic with its stack and returns it as an error. The deferred function
// that has recovered must call it.
func (n *Node) panicked(call, instance string, value any) error {
	n.config.Logger.Error(panicMessage, "call", call, "instance", instance,
		"panic", fmt.Sprint(value), "stack", string(debug.Stack()))
	return &panicError{call, n.config.NodeID}
}

// kindOf names the kind of a request, as the field of its message is named.
func kindOf(request *clusterpb.Request) string {
	message := request.ProtoReflect()
	field := message.WhichOneof(message.Descriptor().Oneofs().ByName("call"))
	if field == nil {
		return "call of an unknown kind"
	}
	return string(field.Name())
}
