package engine

import (
	"fmt"
	"math"
	"path"
	"runtime"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// StackQuery is the name of the query whose output is a [replay.Coroutine] for each coroutine.
// Every orchestration without a handler of that name answers it.
const StackQuery = "tenuto.stack"

// stackBytesMax bounds the text in the answer to a stack query.
const stackBytesMax = 512 << 10

// queryStack answers a stack query. It leaves out coroutines that would make the answer too large.
func (x *Execution) queryStack() (*journalpb.Payload, error) {
	list, bytes := []replay.Coroutine{}, 0
	for _, c := range x.program.coroutines.all {
		if c.waiting == nil {
			continue
		}
		described := c.describe()
		if bytes += len(described.Stack); bytes > stackBytesMax {
			break
		}
		list = append(list, described)
	}
	return x.program.registry.payloads.encodeStack(list)
}

// EncodeHungStack encodes the answer to a stack query of hung code.
func (p PayloadConverter) EncodeHungStack(stack string, since time.Time) (*journalpb.Payload, error) {
	stack = stack[:min(len(stack), stackBytesMax)]
	return p.encodeStack([]replay.Coroutine{{Since: since, Stack: strings.ToValidUTF8(stack, "")}})
}

// encodeStack encodes the answer to a stack query. Settings do not bound its size.
func (p PayloadConverter) encodeStack(list []replay.Coroutine) (*journalpb.Payload, error) {
	info := replay.PayloadInfo{Kind: "query", Name: StackQuery, Part: "output"}
	plain, err := serialize(info, list, math.MaxInt)
	if err != nil {
		return nil, err
	}
	return p.seal(plain)
}

// describe returns where a waiting coroutine is. It must not be running.
func (c *coroutine) describe() replay.Coroutine {
	described := replay.Coroutine{Since: unixTime(c.waiting.since)}
	for _, p := range c.waiting.promises {
		if op := p.op; op != nil {
			described.WaitsFor = append(described.WaitsFor, replay.AwaitedOperation{
				EventID: op.eventID, Type: journalpb.TypeName(op.eventType), Name: op.name, Instance: op.child,
			})
		}
	}
	c.reportStack()
	stack := newCallStack(c.stack)
	c.stack = nil
	described.Call, described.Source, described.Stack = stack.call, stack.source, stack.text.String()
	if stack.source == "" { // the engine itself waits until the code may begin
		described.Call = "StartAt"
	}
	return described
}

// A callStack is the call stack of a coroutine.
type callStack struct {
	call   string          // the function of package replay that the author called
	source string          // directory/file:line of that call
	text   strings.Builder // the author's functions
}

// newCallStack reads the stack of a parked coroutine. Its innermost functions are those of this
// package and of package replay.
func newCallStack(callers []uintptr) *callStack {
	s := new(callStack)
	for frame := range frames(callers) {
		switch {
		case isOwnFunction(frame.Function) || isOwnFile(frame.File):
			if name, ok := strings.CutPrefix(frame.Function, replayPrefix); ok && s.source == "" {
				s.call = methodName(name)
			}
		default:
			if s.source == "" {
				s.source = shortPath(frame.File, frame.Line)
			}
			fmt.Fprintf(&s.text, "%s\n\t%s:%d\n", frame.Function, frame.File, frame.Line)
		}
	}
	return s
}

// methodName returns a function's name without the punctuation of a pointer receiver and without
// type arguments.
func methodName(name string) string {
	return strings.NewReplacer("(*", "", ")", "", "[...]", "").Replace(name)
}

// frames yields the frames of a stack, up to the coroutine's entry.
func frames(callers []uintptr) func(yield func(runtime.Frame) bool) {
	return func(yield func(runtime.Frame) bool) {
		for len(callers) > 0 && callers[len(callers)-1] == 0 {
			callers = callers[:len(callers)-1]
		}
		if len(callers) == 0 {
			return
		}
		list := runtime.CallersFrames(callers)
		for more := true; more; {
			var frame runtime.Frame
			if frame, more = list.Next(); frame.Function == "" || strings.HasPrefix(frame.Function, "runtime.") || !yield(frame) {
				return
			}
		}
	}
}

// The prefixes of the names of functions of this package and of package replay.
const (
	enginePrefix = "github.com/tenuto-dev/tenuto/replay/engine."
	replayPrefix = "github.com/tenuto-dev/tenuto/replay."
)

// sourceLine returns directory/file:line of the first call outside the two packages.
func sourceLine(callers []uintptr) string { return newCallStack(callers).source }

func isOwnFunction(name string) bool {
	return strings.HasPrefix(name, enginePrefix) || strings.HasPrefix(name, replayPrefix)
}

// isOwnFile reports whether a file belongs to the two packages. A function of theirs that was
// inlined has the name of the author's function.
func isOwnFile(file string) bool {
	_, own, _, _ := runtime.Caller(0)
	dir, engine := path.Dir(file), path.Dir(own)
	return (dir == engine || dir == path.Dir(engine)) && !strings.HasSuffix(file, "_test.go")
}

func shortPath(file string, line int) string {
	return fmt.Sprintf("%s/%s:%d", path.Base(path.Dir(file)), path.Base(file), line)
}
